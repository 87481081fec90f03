"""Measuring in a process of its own: what comes back, and what is said when nothing does."""

import os
import signal
import subprocess
import sys
import time

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


def stay(noted):
    """Note which process this is, and go on."""
    with open(f"{noted}.new", "w") as file:
        file.write(str(os.getpid()))
    os.replace(f"{noted}.new", noted)
    time.sleep(600)


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


def lives(pid):
    """Whether the process goes on; one that has ended may wait for whoever started it to take notice."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_ends_with_the_one_that_asked_even_where_that_is_killed(tmp_path):
    noted = tmp_path / "pid"
    source = f"from lottery.bench import apart; apart.call('test_bench_apart:stay', noted={str(noted)!r})"
    here = os.path.dirname(__file__)
    asking = subprocess.Popen([sys.executable, "-c", source], env={**os.environ, "PYTHONPATH": here}, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not noted.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    measuring = int(noted.read_text())
    assert lives(measuring)

    asking.kill()
    asking.wait()

    while lives(measuring) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not lives(measuring)
