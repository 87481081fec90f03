"""The ranks over MPI: joining them, losing one, and not waiting for one that will never come. No MPI is needed."""

import contextlib
import sys
import threading
import types

import pytest

from lottery.base.errors import InputError
from lottery.base.preemption import Preempted
from lottery.base.progress import Reporter
from lottery.executors import communicator
from lottery.executors.choice import executor
from lottery.executors.coordinator import Lost
from lottery.executors.workload import IN_PROCESS, Workload


@pytest.fixture(autouse=True)
def apart(no_launcher, monkeypatch):
    monkeypatch.setattr(communicator, "THREAD", "MPI of a test")  # of which one that is left here would be stuck


class Library:
    """The C functions."""

    def __init__(self):
        self.said = []
        self.begins, self.ends = threading.Event(), threading.Event()
        self.begins.set()
        self.ends.set()

    def MPI_Init_thread(self, *_):  # noqa: N802
        self.said.append("begin")
        self.begins.wait()

    def MPI_Finalize(self):  # noqa: N802
        self.said.append("end")
        self.ends.wait()


@pytest.fixture
def mpi4py(monkeypatch):
    """A function that makes an mpi4py whose world has so many ranks; its MPI, with its
    `library`, whose functions return once `begins` and `ends` are set."""

    def make(size):
        found = types.SimpleNamespace(
            COMM_WORLD=types.SimpleNamespace(rank=0, size=size, Set_errhandler=lambda handler: None),
            THREAD_MULTIPLE=3,
            ERRORS_RETURN="errors return",
            __file__="MPI.so",
            library=Library(),
        )
        monkeypatch.setattr(communicator.ctypes, "CDLL", lambda path: found.library)
        monkeypatch.setitem(sys.modules, "mpi4py", types.SimpleNamespace(MPI=found, rc=lambda **_: None))
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
        return found

    return make


@pytest.mark.parametrize(("said", "size"), [("4", 4), (None, 4), ("1", 1)])
def test_the_world_is_taken_when_the_launcher_agrees_or_does_not_say_and_a_rank_alone_needs_none(
    monkeypatch, mpi4py, said, size
):
    assert communicator.join() is None  # without a launcher
    made = mpi4py(size)
    if said:
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", said)

    joined = communicator.join()

    if size == 1:
        assert (joined, made.library.said) == (None, [])
        return
    with joined:
        assert joined.world is made.COMM_WORLD
        assert made.library.said == ["begin"]
    assert made.library.said == ["begin", "end"]


def test_nobody_waits_for_ever_for_ranks_that_do_not_begin(monkeypatch, mpi4py):
    mpi4py(4).library.begins.clear()
    monkeypatch.setattr(communicator, "START_SECONDS", 0.05)

    with pytest.raises(Preempted, match="not all ranks have begun within 0 s"):
        communicator.join()


def test_nobody_waits_for_ever_for_ranks_that_do_not_end(monkeypatch, mpi4py):
    mpi4py(4).library.ends.clear()
    monkeypatch.setattr(communicator, "LEAVE_SECONDS", 0.05)

    with communicator.join():
        pass


@pytest.mark.parametrize(("said", "seen"), [("4", 1), ("2", 4), ("3", 2)])
def test_a_world_of_another_size_than_the_launchers_is_refused_before_anything_is_done(monkeypatch, mpi4py, said, seen):
    def refuse(*_):
        raise AssertionError("started")

    mpi4py(seen)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", said)

    with pytest.raises(InputError, match=f"started {said} ranks, but MPI sees {seen}: mpirun and mpi4py"):
        executor(IN_PROCESS).run(Workload(refuse, refuse, refuse, Reporter()))


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
        communicator.join()


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
    module = types.SimpleNamespace(COMM_WORLD=Ending(why), Exception=Failure, ERR_PROC_FAILED="process failed")
    channel = communicator.RankChannel(module, 1)

    for speak in (channel.poll, channel.recv):
        with pytest.raises(raised):
            speak()
    with contextlib.nullcontext() if raised is Lost else pytest.raises(raised):
        channel.send("a task")
