"""Hand jobs out to MPI ranks: rank 0 coordinates, the others work. The one module that imports mpi4py.

Alone, or without mpirun, a process does all the jobs itself. Ranks talk only to rank 0, and wait asleep: Open MPI's own
waiting would burn a core that a training needs.
"""

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import InputError, one_line
from lottery import jobs, preemption

Job = jobs.Job | jobs.Round
Result = dict[str, Any]
Work = Callable[[Job], Result]
Done = Callable[[Job, Result], list[Job]]

POLL_SECONDS = 0.02
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def launched_rank() -> int | None:
    """This process's rank as its launcher set it, or None when no MPI launcher started it. Needs no MPI."""
    return next((int(os.environ[name]) for name in _RANK_VARIABLES if os.environ.get(name, "").isdigit()), None)


def launched_size() -> int | None:
    """How many ranks the launcher says it started, or None when it does not say."""
    return next((int(os.environ[name]) for name in _SIZE_VARIABLES if os.environ.get(name, "").isdigit()), None)


def refuse_ranks() -> None:
    """Raise InputError in a process that is one of several ranks: of all stages only retraining is for many."""
    if launched_rank() is not None and launched_size() != 1:
        raise InputError("only `imp retrain` runs on many ranks: leave mpirun out (`imp run --ranks N` starts its own)")


def fan_out(
    make_jobs: Callable[[], list[Job]],
    make_work: Callable[[], Work],
    done: Done,
    say: Callable[[str], None],
) -> bool:
    """Do the jobs that `make_jobs` lists, in its order; call `done` with each result as it comes. What that returns are the
    jobs that can be done now, which come before those that wait.

    `make_jobs` and `done` run on one rank, `make_work` once in each process that gets a job. Returns whether this process
    is the one that coordinated. What `make_jobs` raises is raised there, and ends the other ranks quietly. Raises Preempted
    once every rank has saved what it had under way.
    """
    world = _world() if launched_rank() is not None else None
    if world is None or world.size == 1:
        waiting = make_jobs()
        work = make_work() if waiting else None
        while waiting and work:
            job = waiting.pop(0)
            waiting[:0] = done(job, work(job))
        return True
    with preemption.deferred():
        hosts = world.allgather(platform.node())
        preempted = False
        if world.rank == 0:
            try:
                jobs = make_jobs()
            except BaseException:
                world.bcast(False)
                raise
            world.bcast(True)
            with _aborting(world):
                preempted = _coordinate(world, jobs, done, say)
        elif world.bcast(None):
            with _aborting(world):
                _serve(world, hosts, make_work)
    preemption.check()
    if preempted:
        raise preemption.Preempted("stopped, as another rank was told to")
    return bool(world.rank == 0)


@contextlib.contextmanager
def _aborting(world: Any) -> Iterator[None]:
    """End every rank when this one raises: the others would wait for it for ever."""
    try:
        yield
    except BaseException as error:
        print(f"imp: rank {world.rank}: {one_line(error) or traceback.format_exc()}", file=sys.stderr, flush=True)
        world.Abort(2 if one_line(error) else 1)


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


def launch(line: Sequence[str], environment: dict[str, str]) -> int:
    """Run mpirun and return its exit code. A signal to end goes on as SIGUSR1, which mpirun hands to the ranks and outlives."""
    with preemption.deferred():
        process = subprocess.Popen(line, env=environment)
        told = False
        try:
            while process.poll() is None:
                if preemption.asked() and not told:
                    process.send_signal(signal.SIGUSR1)
                    told = True
                time.sleep(POLL_SECONDS)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    preemption.check()
    return process.returncode


def own_share(devices: Sequence[str], position: int, workers: int) -> list[str]:
    """The devices of worker number `position` of the `workers` on a host: a part of its own, or one shared if too few."""
    if not devices:
        return []
    return list(devices[position::workers]) or [devices[position % len(devices)]]


def _world() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"this process was started by an MPI launcher, but MPI cannot be loaded ({error}): "
            "`pip install 'imp-lottery[local]'` brings one"
        ) from None
    if launched_size() not in (None, MPI.COMM_WORLD.size):
        raise InputError(
            f"the launcher started {launched_size()} ranks, but MPI sees {MPI.COMM_WORLD.size}: mpirun and mpi4py belong to "
            "different MPIs; use the mpirun of the MPI that mpi4py loads"
        )
    return MPI.COMM_WORLD


def _coordinate(world: Any, jobs: list[Job], done: Done, say: Callable[[str], None]) -> bool:
    """Returns whether a rank was told to end before its job was done."""
    workers = world.size - 1
    if workers > len(jobs):
        say(f"{workers} ranks to train on, {len(jobs)} networks to train now: {workers - len(jobs)} idle")
    waiting = list(jobs)
    running: dict[int, Job] = {}
    idle: list[int] = []
    preempted = False
    while len(idle) < workers:
        rank, result = _receive(world)
        idle.append(rank)
        if result is not None:
            waiting[:0] = done(running.pop(rank), result)
            preempted = preempted or result["status"] == "preempted"
        while idle and waiting and not (preempted or preemption.asked()):
            running[idle[0]] = waiting.pop(0)
            world.send(running[idle[0]], idle.pop(0))
    for rank in idle:
        world.send(None, rank)
    return preempted


def _serve(world: Any, hosts: list[str], make_work: Callable[[], Work]) -> None:
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
        try:
            result = work(job)
        except preemption.Preempted as error:
            result = {"status": "preempted", "reason": str(error)}


def _receive(world: Any) -> Any:
    while not world.iprobe():
        time.sleep(POLL_SECONDS)
    return world.recv()


def _take_own_gpus(rank: int, hosts: list[str]) -> None:
    """Show TensorFlow only this rank's part of its host's GPUs. Rank 0 trains nothing and takes none."""
    neighbours = [other for other in range(1, len(hosts)) if hosts[other] == hosts[rank]]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = _gpus() if visible is None else [device for device in visible.split(",") if device]
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own_share(devices, neighbours.index(rank), len(neighbours)))


def _gpus() -> list[str]:
    """The numbers of the GPUs that this process may use (a container's, not all of the host's)."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [str(index) for index, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU"))]
