"""The ranks over MPI: joining them, losing one, and not waiting for one that will never come. No MPI is needed."""

import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from helpers import LAUNCHER

from data_prep.errors import InputError
from lottery.fanout import ranks, world
from lottery.fanout.coordinator import Lost


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(world, "LOOK_SECONDS", 0.005)


@pytest.fixture
def mpi(monkeypatch):
    """A function that makes an mpi4py whose world has so many ranks; its MPI."""
    monkeypatch.setattr(world, "_begin", lambda mpi: mpi.begun.append("now"))

    def make(size):
        begun = []
        there = types.SimpleNamespace(rank=0, size=size)
        found = types.SimpleNamespace(COMM_WORLD=there, begun=begun, Is_initialized=lambda: bool(begun))
        monkeypatch.setitem(sys.modules, "mpi4py", types.SimpleNamespace(MPI=found, rc=lambda **_: None))
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
        return found

    return make


def test_without_a_launcher_there_are_no_ranks():
    assert world.join() is None


@pytest.mark.parametrize("said", ["4", None])
def test_the_world_is_taken_when_the_launcher_agrees_or_does_not_say(monkeypatch, mpi, said):
    made = mpi(4)
    if said:
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", said)

    assert world.join().ranks is world.join().ranks is made.COMM_WORLD
    assert made.begun == ["now"]


@pytest.mark.parametrize(("said", "seen"), [("4", 1), ("2", 4), ("1", 2)])
def test_a_world_of_another_size_than_the_launchers_is_refused_before_anything_is_done(monkeypatch, mpi, said, seen):
    def refuse(*_):
        raise AssertionError("started")

    mpi(seen)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", said)

    with pytest.raises(InputError, match=f"started {said} ranks, but MPI sees {seen}: mpirun and mpi4py"):
        ranks.fan_out(refuse, refuse, refuse, print)


class _WithoutLibrary:
    rc = staticmethod(lambda **_: None)

    @property
    def MPI(self):  # noqa: N802
        raise RuntimeError("cannot load MPI library")


@pytest.mark.parametrize("module", [None, _WithoutLibrary()])
def test_a_launcher_without_an_mpi_to_load_is_refused_with_the_way_out(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "mpi4py", module)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")

    with pytest.raises(InputError, match=r"MPI cannot be loaded .*pip install"):
        world.join()


class Failure(Exception):
    """What MPI raises."""

    def Get_error_class(self):  # noqa: N802
        return self.args[0]


class Ending:
    """A communicator on which all that is said to another rank, or asked of it, fails."""

    rank, size = 0, 2

    def __init__(self, why):
        self.why = why

    def fail(self, *_, **__):
        raise Failure(self.why)

    iprobe = recv = send = fail


@pytest.mark.parametrize(("why", "raised"), [("process failed", Lost), ("truncated", Failure)])
def test_a_rank_whose_process_has_failed_is_lost_and_any_other_error_is_an_error(why, raised):
    mpi = types.SimpleNamespace(COMM_WORLD=Ending(why), Exception=Failure, ERR_PROC_FAILED="process failed")
    found = world.World(mpi)

    for speak in (lambda: found.has_spoken(1), lambda: found.receive(1), lambda: found.send("a job", 1)):
        with pytest.raises(raised):
            speak()


class Ended(BaseException):
    """What `os._exit` does to the thread that calls it."""


@pytest.mark.parametrize(
    ("lost", "seconds", "line"),
    [
        (True, 600, "another rank was lost before all had begun"),
        (False, 0, "not all ranks have begun within 0 s"),
    ],
)
def test_a_process_that_would_wait_for_ever_for_the_others_ends(monkeypatch, capsys, lost, seconds, line):
    def leave(code):
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(world, "START_SECONDS", seconds)
    monkeypatch.setattr(world, "_neighbour_is_lost", lambda: lost)
    monkeypatch.setenv("PMIX_RANK", "2")

    with pytest.raises(Ended, match="75"):
        world._give_up(threading.Event())

    assert capsys.readouterr().err == f"imp: rank 2: {line}; the same command goes on from here\n"


def test_once_all_have_begun_nobody_gives_up(monkeypatch):
    monkeypatch.setattr(world, "START_SECONDS", 0)
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("ended"))
    monkeypatch.setattr(world, "LOOK_SECONDS", 10)

    with world._all_beginning():
        pass
    for thread in threading.enumerate():
        if thread.name == "beginning":
            thread.join(5)


@pytest.fixture
def neighbour():
    """Another process with the same parent as this one would have: both are children of this process."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_a_neighbour_that_is_no_more_is_missed_even_as_a_zombie(monkeypatch, neighbour):
    monkeypatch.setattr(os, "getppid", os.getpid)
    children = [path for path in Path("/proc").glob("[0-9]*") if world._runs_under(os.getpid(), path)]
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", str(len(children)))
    assert not world._neighbour_is_lost()  # this parent starts no ranks

    monkeypatch.setattr(world, "DAEMONS", (Path("/proc/self/comm").read_text().strip(),))
    assert not world._neighbour_is_lost()
    neighbour.kill()
    until = time.monotonic() + 10
    while not world._neighbour_is_lost():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_where_the_launcher_does_not_say_how_many_there_are_nobody_is_missed(monkeypatch):
    monkeypatch.delenv("OMPI_COMM_WORLD_LOCAL_SIZE", raising=False)
    monkeypatch.delenv("MPI_LOCALNRANKS", raising=False)

    assert not world._neighbour_is_lost()
