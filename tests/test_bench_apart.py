"""Measuring in a process of its own: what comes back, and what is said when nothing does."""

import os
import signal

import pytest

from data_prep.errors import Failed, InputError
from lottery.bench import apart


def add(one, other):
    """What a process of its own computes, and in which."""
    return {"sum": one + other, "process": os.getpid()}


def refuse(reason):
    raise ValueError(f"{reason}\nand more")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(autouse=True)
def this_module_can_be_imported_there(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__), prepend=os.pathsep)


def test_a_function_is_called_in_a_process_of_its_own():
    found = apart.call("test_bench_apart:add", one=1, other=[2][0])

    assert found["sum"] == 3
    assert found["process"] != os.getpid()


def exhaust():
    raise MemoryError("no room for 3 GB")


def mistrust(name):
    raise InputError(f"there is no {name}: name another")


def test_bad_input_is_told_apart():
    with pytest.raises(apart.Refused, match=r"^there is no spoon: name another$"):
        apart.call("test_bench_apart:mistrust", name="spoon")


def test_a_process_that_is_killed_is_one_line_and_may_have_been_so_for_want_of_memory():
    with pytest.raises(apart.TooLarge, match="ended by SIGKILL; is there memory enough"):
        apart.call("test_bench_apart:die")


def test_together_all_are_asked_of_one_process_until_it_ends():
    with apart.calling(together=True) as call:
        first = call("test_bench_apart:add", one=1, other=2)["process"]
        with pytest.raises(Failed, match=r"^ValueError: no room$"):
            call("test_bench_apart:refuse", reason="no room")
        with pytest.raises(apart.TooLarge, match=r"^MemoryError: no room for 3 GB$"):
            call("test_bench_apart:exhaust")
        assert call("test_bench_apart:add", one=1, other=3) == {"sum": 4, "process": first}
        with pytest.raises(apart.TooLarge):
            call("test_bench_apart:die")
        last = call("test_bench_apart:add", one=1, other=4)["process"]

    assert last != first
    for process in (first, last):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_not_together_each_is_asked_of_its_own():
    with apart.calling(together=False) as call:
        assert call is apart.call


def test_a_process_that_cannot_start_is_one_line(monkeypatch):
    monkeypatch.setattr(apart, "COMMAND", ("sh", "-c", "exit 3"))

    with pytest.raises(Failed, match="ended with code 3"):
        apart.call("test_bench_apart:add")
