"""Measuring in a process of its own: what comes back, and what is said when nothing does."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import wait_for

from lottery.base.errors import Failed, InputError
from lottery.bench.process import Process


def add(one, other):
    """What a process of its own computes, and in which."""
    return {"sum": one + other, "process": os.getpid()}


def refuse(reason):
    raise ValueError(f"{reason}\nand more")


def exhaust():
    raise MemoryError("no room for 3 GB")


def mistrust(name):
    raise InputError(f"there is no {name}: name another")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(3)


def stay(noted):
    """Note which process this is, and go on."""
    with open(f"{noted}.new", "w") as file:
        file.write(str(os.getpid()))
    os.replace(f"{noted}.new", noted)
    time.sleep(600)


def test_a_process_answers_until_it_ends_and_then_another_does():
    with Process(tensorflow=False) as process:
        first = process.call(add, one=1, other=2)["process"]
        with pytest.raises(Failed, match=r"^ValueError: no room$"):
            process.call(refuse, reason="no room")
        with pytest.raises(Failed, match=r"^MemoryError: no room for 3 GB$"):
            process.call(exhaust)
        with pytest.raises(InputError, match=r"^there is no spoon: name another$"):
            process.call(mistrust, name="spoon")
        assert process.call(add, one=1, other=3) == {"sum": 4, "process": first}
        with pytest.raises(Failed, match="ended by SIGKILL; is there memory enough"):
            process.call(die)
        last = process.call(add, one=1, other=4)["process"]
        with pytest.raises(Failed, match="ended with code 3"):
            process.call(leave)

    assert len({first, last, os.getpid()}) == 3
    for ended in (first, last):
        with pytest.raises(ProcessLookupError):
            os.kill(ended, 0)


def start_another(noted):
    """Start a process, note which it is, and wait."""
    with open(noted, "w") as file:
        file.write(str(subprocess.Popen(["sleep", "600"]).pid))
    os.replace(noted, f"{noted}.done")
    time.sleep(600)


def test_a_process_that_is_killed_takes_what_it_started_along(tmp_path):
    noted = tmp_path / "pid"
    with Process(tensorflow=False) as process, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(process.call, start_another, noted=str(noted))
        wait_for((tmp_path / "pid.done").exists)
        process.kill()
        with pytest.raises(Failed, match="SIGKILL"):
            waiting.result()
        assert process.call(add, one=1, other=2)["sum"] == 3
    started = int((tmp_path / "pid.done").read_text())
    wait_for(lambda: not lives(started), seconds=10)


def loaded(name):
    return name in sys.modules


@pytest.mark.parametrize("tensorflow", [True, False])
def test_a_process_has_tensorflow_unless_told_otherwise(tensorflow):
    with Process(tensorflow) as process:
        assert process.call(loaded, name="tensorflow") is tensorflow


def lives(pid):
    """Whether the process goes on; one that has ended may wait for whoever started it to take notice."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_ends_with_the_one_that_asked_even_where_that_is_killed(tmp_path):
    noted = tmp_path / "pid"
    source = "from lottery.bench.process import Process; import test_bench_process as here; "
    source += f"Process(tensorflow=False).call(here.stay, noted={str(noted)!r})"
    here = os.path.dirname(__file__)
    asking = subprocess.Popen([sys.executable, "-c", source], env={**os.environ, "PYTHONPATH": here}, stderr=subprocess.DEVNULL)
    wait_for(noted.exists)
    measuring = int(noted.read_text())
    assert lives(measuring)

    asking.kill()
    asking.wait()

    wait_for(lambda: not lives(measuring))
