"""The MPI ranks of this job. The one module that imports mpi4py."""

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from lottery.base.errors import InputError
from lottery.base.preemption import Preempted
from lottery.base.progress import duration
from lottery.executors.coordinator import Lost
from lottery.executors.launcher import launched_rank, launched_size

START_SECONDS = 600.0  # in which all ranks must have begun: hundreds that read Python from one file server take minutes
LEAVE_SECONDS = 30.0  # in which they must have ended: all leave at the same time
NOTICE_SECONDS = 1.0  # in which every rank notices that another is lost
THREAD = "MPI"


class RankChannel:
    """This rank's end of its connection with `rank`, as of `multiprocessing.Pipe`."""

    def __init__(self, mpi: Any, rank: int):
        self.mpi, self.world, self.rank = mpi, mpi.COMM_WORLD, rank

    def send(self, message: Any) -> None:
        with contextlib.suppress(Lost), self._losing():
            self.world.send(message, self.rank)

    def poll(self) -> bool:
        with self._losing():
            return bool(self.world.iprobe(source=self.rank))

    def recv(self) -> Any:
        with self._losing():
            return self.world.recv(source=self.rank)

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except self.mpi.Exception as error:
            if error.Get_error_class() != self.mpi.ERR_PROC_FAILED:
                raise
            raise Lost from None


class Communicator:
    """All ranks of this job, over the module `mpi4py.MPI`, once all have begun; a context, at whose end this process leaves
    them. Raises Preempted when not all begin. MPI is begun and ended in a thread of its own, through ctypes, which lets other
    threads run meanwhile: where a rank is lost, MPI waits for it for ever, and this process shall not."""

    def __init__(self, mpi: Any):
        self.mpi, self.world = mpi, mpi.COMM_WORLD
        self._begun, self._leaving = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._take_part, daemon=True, name=THREAD)
        self._thread.start()
        if not self._begun.wait(START_SECONDS):
            raise Preempted(f"not all ranks have begun within {duration(START_SECONDS)}")
        self.world.Set_errhandler(mpi.ERRORS_RETURN)  # mpi4py makes exceptions of them
        self.rank, self.size = self.world.rank, self.world.size

    def _take_part(self) -> None:
        library = ctypes.CDLL(self.mpi.__file__)  # through which the functions of the MPI that it is linked to are found
        library.MPI_Init_thread(None, None, self.mpi.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
        self._begun.set()
        self._leaving.wait()
        library.MPI_Finalize()

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join(LEAVE_SECONDS)

    def channel(self, rank: int) -> RankChannel:
        return RankChannel(self.mpi, rank)

    def abort(self, code: int) -> None:
        """End all ranks."""
        self.world.Abort(code)


def join() -> Communicator | None:
    """The ranks that this process was started among, once all have begun; None where no MPI launcher started it, or it is the
    only one. Raises InputError when MPI cannot be loaded, or is another one than the launcher's, and as `Communicator` does."""
    started = launched_size()
    if launched_rank() is None or started == 1:
        return None
    try:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"this process was started by an MPI launcher, but MPI cannot be loaded ({error}): "
            "`pip install 'imp-lottery[pipeline,local]'` brings one"
        ) from None
    communicator = Communicator(MPI)
    if started in (None, communicator.size):
        return communicator
    with communicator:
        raise InputError(
            f"the launcher started {started} ranks, but MPI sees {communicator.size}: mpirun and mpi4py belong to different "
            "MPIs; use the mpirun of the MPI that mpi4py loads"
        )


def is_stuck() -> bool:
    """Whether MPI is still being begun or ended, in its thread."""
    return any(thread.name == THREAD for thread in threading.enumerate())


def end(code: int) -> NoReturn:
    """End this process while MPI `is_stuck`. An ordinary exit would unload the libraries under its thread and crash now and
    then; the launcher's exit code would be 0. The other ranks get time to say why they end: the launcher kills them next."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(NOTICE_SECONDS)
    os._exit(code)
