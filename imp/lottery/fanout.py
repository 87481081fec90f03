"""Hand jobs out to MPI ranks: rank 0 coordinates, the others work. The one module that imports mpi4py.

Alone, or without mpirun, a process does all the jobs itself. Ranks talk only to rank 0, and wait asleep: Open MPI's own
waiting would burn a core that a training needs.
"""

import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import InputError
from lottery.grids import Job

Result = dict[str, Any]
Work = Callable[[Job], Result]

POLL_SECONDS = 0.02
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def launched_rank() -> int | None:
    """This process's rank as its launcher set it, or None when no MPI launcher started it. Needs no MPI."""
    return next((int(os.environ[name]) for name in _RANK_VARIABLES if os.environ.get(name, "").isdigit()), None)


def refuse_launcher() -> None:
    """Raise InputError under an MPI launcher: of all stages only retraining is for many ranks."""
    if launched_rank() is not None:
        raise InputError("`imp run` starts its own ranks: leave mpirun out, and say `imp run --ranks N`")


def fan_out(
    make_jobs: Callable[[], list[Job]],
    make_work: Callable[[], Work],
    done: Callable[[Job, Result], None],
    say: Callable[[str], None],
) -> bool:
    """Do the jobs that `make_jobs` lists, in its order; call `done` with each result as it comes.

    `make_jobs` and `done` run on one rank, `make_work` once in each process that gets a job. Returns whether this process
    is the one that coordinated. An InputError of `make_jobs` is raised there, and ends the other ranks quietly.
    """
    if launched_rank() is None:
        _alone(make_jobs(), make_work, done)
        return True
    world = _world()
    if world.size == 1:
        _alone(make_jobs(), make_work, done)
        return True
    hosts = world.allgather(platform.node())
    try:
        if world.rank == 0:
            _coordinate(world, make_jobs, done, say)
        else:
            _serve(world, hosts, make_work)
    except BaseException as error:
        if world.rank == 0 and isinstance(error, InputError):
            raise  # the other ranks have been told
        print(f"rank {world.rank}: {one_line(error) or traceback.format_exc()}", file=sys.stderr, flush=True)
        world.Abort(2 if one_line(error) else 1)
    return bool(world.rank == 0)


def one_line(error: BaseException) -> str | None:
    """The one line that a user needs of an error that they can mend; None for any other."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file'}: {error.strerror}"
    return None


def command(ranks: int, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment that start `imp` with `arguments` on `ranks` ranks of this host.

    More ranks than cores are allowed, and so is root. Raises InputError where there is no mpirun.
    """
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if not mpirun:
        raise InputError("no mpirun found: `pip install 'imp-lottery[local]'` brings one, or load your cluster's MPI")
    line = [
        mpirun,
        "-n",
        str(ranks),
        "--oversubscribe",
        "--bind-to",
        "none",
        sys.executable,
        "-m",
        "lottery",
        *arguments,
    ]
    return line, {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def own_share(devices: Sequence[str], position: int, workers: int) -> list[str]:
    """The devices of worker number `position` of the `workers` on a host: a part of its own, or one shared if too few."""
    if not devices:
        return []
    return list(devices[position::workers]) or [devices[position % len(devices)]]


def _alone(jobs: list[Job], make_work: Callable[[], Work], done: Callable[[Job, Result], None]) -> None:
    if not jobs:
        return
    work = make_work()
    for job in jobs:
        done(job, work(job))


def _world() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"this process was started by an MPI launcher, but MPI cannot be loaded ({error}): "
            "`pip install 'imp-lottery[local]'` brings one"
        ) from None
    return MPI.COMM_WORLD


def _coordinate(
    world: Any, make_jobs: Callable[[], list[Job]], done: Callable[[Job, Result], None], say: Callable[[str], None]
) -> None:
    try:
        jobs = make_jobs()
    except InputError:
        world.bcast(False)
        raise
    world.bcast(True)
    workers = world.size - 1
    if workers > len(jobs):
        say(f"{workers} ranks to train on, {len(jobs)} pairs to train: {workers - len(jobs)} idle")
    waiting = list(jobs)
    running: dict[int, Job] = {}
    idle: list[int] = []
    while len(idle) < workers:
        rank, result = _receive(world)
        if result is not None:
            done(running.pop(rank), result)
        if waiting:
            running[rank] = waiting.pop(0)
            world.send(running[rank], rank)
        else:
            idle.append(rank)
    for rank in idle:
        world.send(None, rank)


def _serve(world: Any, hosts: list[str], make_work: Callable[[], Work]) -> None:
    if not world.bcast(None):
        return
    work: Work | None = None
    result: Result | None = None
    while True:
        world.send((world.rank, result), 0)
        job = _receive(world)
        if job is None:
            return
        if work is None:
            _take_own_gpus(world.rank, hosts)
            work = make_work()
        result = work(job)


def _receive(world: Any) -> Any:
    while not world.iprobe():
        time.sleep(POLL_SECONDS)
    return world.recv()


def _take_own_gpus(rank: int, hosts: list[str]) -> None:
    """Show TensorFlow only this rank's part of its host's GPUs. Rank 0 trains nothing and takes none."""
    neighbours = [other for other in range(1, len(hosts)) if hosts[other] == hosts[rank]]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(index) for index in range(_gpu_count())]
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own_share(devices, neighbours.index(rank), len(neighbours)))


def _gpu_count() -> int:
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
