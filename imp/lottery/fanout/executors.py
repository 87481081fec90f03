"""Where tasks are done: in this process, or by MPI ranks that it starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from data_prep import files
from lottery import preemption
from lottery.fanout import launcher, mpi, ranks
from lottery.fanout.allocation import allocate, ranks_fed, resources_here
from lottery.fanout.tasks import Task, Workload


class Executor(Protocol):
    """Somebody who does tasks."""

    def map(self, workload: Workload) -> bool:
        """Do the tasks of `workload`. Returns whether `on_done` was called in this process, which knows now how they ended.

        Raises what `list_tasks` raises; Preempted once all that was under way is saved; Moved where what this process holds is
        elsewhere now.
        """


@dataclass(frozen=True)
class InProcess:
    """Does tasks itself, one after the other. Where mpirun or srun started this process as one of several ranks, which all call
    `map`, rank 0 hands the tasks out: `per_gpu` ranks share a GPU (None: each has its own), and one that comes no further for
    `stall` seconds is named."""

    per_gpu: int | None = None
    stall: float = 600.0

    def map(self, workload: Workload) -> bool:
        communicator = mpi.join()
        if communicator is None:
            self._work_alone(workload)
            return True
        preempted, coordinates = False, communicator.rank == 0
        with communicator, preemption.deferred():
            if coordinates:
                _say_unused(communicator.size, workload)
                preempted = ranks.coordinate(communicator, workload, self.per_gpu, self.stall)
            else:
                ranks.work(communicator, workload)
        if coordinates:
            files.check_held()
        preemption.check()
        if preempted:
            raise preemption.Preempted("stopped, as another rank was told to")
        return coordinates

    def _work_alone(self, workload: Workload) -> None:
        _say_unused(1, workload)
        waiting = list(workload.list_tasks())
        if not waiting:
            return
        worker = workload.make_worker(allocate({0: resources_here()}, workload.threads, self.per_gpu)[0], lambda: None)
        while waiting:
            task = waiting.pop(0)
            waiting[:0] = workload.on_done(task, worker(task))


IN_PROCESS = InProcess()


def _say_unused(size: int, workload: Workload) -> None:
    if line := launcher.unused_tasks(size):
        workload.say(line)


class RanksFailed(Exception):
    """Ranks that this process started ended with exit code `code`, and have said why."""

    def __init__(self, code: int):
        super().__init__(f"the ranks ended with exit code {code}")
        self.code = code


@dataclass(frozen=True)
class Ranks:
    """Starts `count` MPI ranks on this host, each of which runs `imp` with `arguments`: a command that does the same workload
    `InProcess`. `list_missing` lists the tasks that have no result yet."""

    count: int
    arguments: Sequence[str]
    list_missing: Callable[[], Sequence[Task]]

    def map(self, workload: Workload) -> bool:
        """Raises RanksFailed when the command fails, and Preempted when it ends well but for results that are missing."""
        code = launcher.launch(*launcher.command(self.count, ["-m", "lottery", *self.arguments]))
        if code:
            raise RanksFailed(code)
        if missing := len(self.list_missing()):  # mpirun has been seen to call the loss of rank 0 a success
            raise preemption.Preempted(f"mpirun ended early, {missing} results are missing")
        return False


def on_ranks(
    count: int | None,
    arguments: Sequence[str],
    list_missing: Callable[[], Sequence[Task]],
    side_by_side: Callable[[Sequence[Task]], int],
    threads: int,
) -> Ranks | None:
    """`Ranks` of this host; with `count` None as many as it feeds, of so many `threads` each, for as many of the missing tasks
    as can be under way `side_by_side`. None where that is one, or a launcher started this process: it is to do the workload
    itself. What `list_missing` raises, such as for bad input, is raised here, without mpirun's own lines."""
    if count == 1 or launcher.launched_rank() is not None:
        return None
    missing = list_missing()
    count = count or ranks_fed(side_by_side(missing), threads)
    return Ranks(count, arguments, list_missing) if count > 1 else None
