"""The ranks of this job, over MPI. The one module that imports mpi4py."""

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.errors import InputError
from lottery.fanout.coordinator import Lost
from lottery.fanout.launcher import launched_rank, launched_size, local_size
from lottery.preemption import EXIT_CODE
from lottery.progress import duration

START_SECONDS = 600.0  # in which all ranks must have begun: hundreds that read Python from one file server take minutes
LOOK_SECONDS = 0.5
DAEMONS = ("prterun", "prted")  # the parents of ranks where Open MPI lets them outlive each other


class World:
    """The ranks, over the module `mpi4py.MPI`. Speaking with one whose process has failed raises Lost."""

    def __init__(self, mpi: Any):
        self.mpi, self.ranks = mpi, mpi.COMM_WORLD
        self.rank, self.size = self.ranks.rank, self.ranks.size

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

    Raises InputError when MPI cannot be loaded, or is another one than the launcher's. Ends the process, with the exit code of
    one that was told to stop, when a rank is lost before all have begun: MPI would wait for it for ever.
    """
    if launched_rank() is None:
        return None
    mpi = _load()
    if not mpi.Is_initialized():
        _begin(mpi)
    if launched_size() not in (None, mpi.COMM_WORLD.size):
        raise InputError(
            f"the launcher started {launched_size()} ranks, but MPI sees {mpi.COMM_WORLD.size}: mpirun and mpi4py belong to "
            "different MPIs; use the mpirun of the MPI that mpi4py loads"
        )
    return World(mpi)


def _load() -> Any:
    """mpi4py's MPI, not yet begun."""
    try:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=True)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"this process was started by an MPI launcher, but MPI cannot be loaded ({error}): "
            "`pip install 'imp-lottery[local]'` brings one"
        ) from None
    return MPI


def _begin(mpi: Any) -> None:
    """What mpi4py does, which would let no other thread of this process run meanwhile; ctypes does."""
    with _all_beginning():
        ctypes.CDLL(mpi.__file__).MPI_Init_thread(None, None, mpi.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
    mpi.COMM_WORLD.Set_errhandler(mpi.ERRORS_RETURN)  # mpi4py makes exceptions of them


@contextlib.contextmanager
def _all_beginning() -> Iterator[None]:
    over = threading.Event()
    threading.Thread(target=_give_up, args=[over], daemon=True, name="beginning").start()
    try:
        yield
    finally:
        over.set()


def _give_up(over: threading.Event) -> None:
    """End this process unless it is `over` in time."""
    until = time.monotonic() + START_SECONDS
    while not over.wait(LOOK_SECONDS):
        if _neighbour_is_lost():
            reason = "another rank was lost before all had begun"
        elif time.monotonic() > until:
            reason = f"not all ranks have begun within {duration(START_SECONDS)}"
        else:
            continue
        print(f"imp: rank {launched_rank()}: {reason}; the same command goes on from here", file=sys.stderr, flush=True)
        os._exit(EXIT_CODE)


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
