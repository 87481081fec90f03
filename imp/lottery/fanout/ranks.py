"""Hand jobs out to MPI ranks: rank 0 coordinates, the others work. The one module that imports mpi4py.

Alone, or without mpirun, a process does all the jobs itself. Ranks talk only to rank 0, and wait asleep: Open MPI's own
waiting would burn a core that a training needs.
"""

import contextlib
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from data_prep.errors import InputError, one_line
from lottery import jobs, preemption
from lottery.fanout import share
from lottery.fanout.launcher import launched_rank, launched_size

Job = jobs.Job | jobs.Round
Result = dict[str, Any]
Work = Callable[[Job], Result]
Done = Callable[[Job, Result], list[Job]]

POLL_SECONDS = 0.02


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
            share.take_own_gpus(world.rank, hosts)
            work = make_work()
        try:
            result = work(job)
        except preemption.Preempted as error:
            result = {"status": "preempted", "reason": str(error)}


def _receive(world: Any) -> Any:
    while not world.iprobe():
        time.sleep(POLL_SECONDS)
    return world.recv()
