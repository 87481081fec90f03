"""The ranks of this job, over MPI. The one module that imports mpi4py."""

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from data_prep.errors import InputError
from lottery.fanout.coordinator import Lost
from lottery.fanout.launcher import launched_rank, launched_size, local_size
from lottery.preemption import Preempted
from lottery.progress import duration

START_SECONDS = 600.0  # in which all ranks must have begun: hundreds that read Python from one file server take minutes
LEAVE_SECONDS = 30.0  # in which they must have ended: all leave at the same time
LOOK_SECONDS = 0.5
DAEMONS = ("prterun", "prted")  # the parents of ranks where Open MPI lets them outlive each other


class World:
    """The ranks, over the module `mpi4py.MPI`; a context, at whose end this process leaves them. Speaking with one whose
    process has failed raises Lost."""

    def __init__(self, mpi: Any, leave: Callable[[], None]):
        self.mpi, self.ranks, self._leave = mpi, mpi.COMM_WORLD, leave
        self.rank, self.size = self.ranks.rank, self.ranks.size

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def has_spoken(self, rank: int) -> bool:
        with self._losing():
            return self.ranks.iprobe(source=rank)

    def receive(self, rank: int) -> Any:
        with self._losing():
            return self.ranks.recv(source=rank)

    def send(self, message: Any, rank: int) -> None:
        with self._losing():
            self.ranks.send(message, rank)

    def abort(self, code: int) -> None:
        """End all ranks."""
        self.ranks.Abort(code)

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except self.mpi.Exception as error:
            if error.Get_error_class() != self.mpi.ERR_PROC_FAILED:
                raise
            raise Lost from None


def join() -> World | None:
    """The ranks that this process was started among, once all have begun; None where no MPI launcher started it.

    Raises InputError when MPI cannot be loaded, or is another one than the launcher's; Preempted when a rank is lost before all
    have begun.
    """
    if launched_rank() is None or launched_size() == 1:
        return None
    mpi = _load()
    member = _Member(mpi)
    member.begin()
    if launched_size() not in (None, seen := mpi.COMM_WORLD.size):
        member.leave()
        raise InputError(
            f"the launcher started {launched_size()} ranks, but MPI sees {seen}: mpirun and mpi4py belong to different MPIs; "
            "use the mpirun of the MPI that mpi4py loads"
        )
    return World(mpi, member.leave)


def _load() -> Any:
    """mpi4py's MPI, not yet begun."""
    try:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"this process was started by an MPI launcher, but MPI cannot be loaded ({error}): "
            "`pip install 'imp-lottery[local]'` brings one"
        ) from None
    return MPI


class _Member:
    """This process's part in MPI, begun and ended in a thread of its own, through ctypes, which lets other threads run
    meanwhile: where a rank is lost, MPI waits for it for ever, and this process shall not."""

    def __init__(self, mpi: Any):
        self.mpi = mpi
        self.begun, self.leaving, self.ended = threading.Event(), threading.Event(), threading.Event()

    def begin(self) -> None:
        """Raises Preempted when not all ranks begin."""
        library = ctypes.CDLL(self.mpi.__file__)  # through which the functions of the MPI that it is linked to are found
        threading.Thread(
            target=self._take_part, args=[library.MPI_Init_thread, library.MPI_Finalize], daemon=True, name="MPI"
        ).start()
        until = time.monotonic() + START_SECONDS
        while not self.begun.wait(LOOK_SECONDS):
            if _neighbour_is_lost():
                raise Preempted("another rank was lost before all had begun")
            if time.monotonic() > until:
                raise Preempted(f"not all ranks have begun within {duration(START_SECONDS)}")
        self.mpi.COMM_WORLD.Set_errhandler(self.mpi.ERRORS_RETURN)  # mpi4py makes exceptions of them

    def leave(self) -> None:
        self.leaving.set()
        self.ended.wait(LEAVE_SECONDS)

    def _take_part(self, init: Callable[..., object], finalize: Callable[[], object]) -> None:
        init(None, None, self.mpi.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
        self.begun.set()
        self.leaving.wait()
        finalize()
        self.ended.set()


def _neighbour_is_lost() -> bool:
    """Whether fewer ranks than were started on this host are still there."""
    parent, started = os.getppid(), local_size()
    if started is None or Path(f"/proc/{parent}/comm").read_text().strip() not in DAEMONS:
        return False
    return sum(_runs_under(parent, process) for process in Path("/proc").iterdir() if process.name.isdigit()) < started


def _runs_under(parent: int, process: Path) -> bool:
    try:
        state, its_parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:  # it has just ended
        return False
    return its_parent == str(parent) and state not in "ZX"
