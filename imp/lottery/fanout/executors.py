"""Where tasks are done: in this process, by MPI ranks that it starts, or in parts by the tasks of a job array."""

import dataclasses
import re
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from lottery.base import files, preemption
from lottery.base.errors import InputError
from lottery.fanout import launcher, mpi, ranks
from lottery.fanout.allocation import allocate, resources_here
from lottery.fanout.ranks import Task, Workload

T = TypeVar("T")


class RanksFailed(Exception):
    """Ranks that this process started ended with exit code `code`, and have said why."""

    def __init__(self, code: int):
        super().__init__(f"the ranks ended with exit code {code}")
        self.code = code


def in_process(workload: Workload, per_gpu: int | None = None, stall: float = 600.0) -> bool:
    """Do the tasks one after the other. Where mpirun or srun started this process as one of several ranks, which all call this,
    rank 0 hands the tasks out: `per_gpu` ranks share a GPU (None: each has its own), and one that comes no further for `stall`
    seconds is named. Returns whether `on_done` was called in this process, which knows now how they ended.

    Raises what `list_tasks` raises; Preempted once what was under way is saved; Moved where its folder was moved.
    """
    communicator = mpi.join()
    coordinates = communicator is None or communicator.rank == 0
    if coordinates and (line := launcher.unused_tasks(communicator.size if communicator else 1)):
        workload.say(line)
    if communicator is None:
        if waiting := list(workload.list_tasks()):
            worker = workload.make_worker(allocate({0: resources_here()}, workload.threads, per_gpu)[0], lambda: None)
        while waiting:
            task = waiting.pop(0)
            waiting[:0] = workload.on_done(task, worker(task))
        return True
    preempted = False
    with communicator, preemption.deferred():
        if coordinates:
            preempted = ranks.coordinate(communicator, workload, per_gpu, stall)
        else:
            ranks.work(communicator, workload)
    if coordinates:
        files.check_held()
    preemption.check()
    if preempted:
        raise preemption.Preempted("stopped, as another rank was told to")
    return coordinates


def on_ranks(count: int, arguments: Sequence[str], list_missing: Callable[[], Sequence[Task]]) -> None:
    """Have `count` MPI ranks on this host run `imp` with `arguments`: a command that does its tasks `in_process`.
    `list_missing` lists those without a result.

    Raises RanksFailed when the command fails, and Preempted when it ends well but for results that are missing.
    """
    if code := launcher.launch(*launcher.command(count, ["-m", "lottery", *arguments])):
        raise RanksFailed(code)
    if missing := len(list_missing()):  # mpirun has been seen to call the loss of rank 0 a success
        raise preemption.Preempted(f"mpirun ended early, {missing} results are missing")


@dataclasses.dataclass(frozen=True)
class Part:
    """The `index`-th of `count` parts, from 1: as many processes do a grid without knowing of each other."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Part":
        """`3/20`. Raises InputError when it is not that."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"{text!r} is no part of a grid: write 3/20 for the third of twenty")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, tasks: Sequence[T], key: Callable[[T], Hashable]) -> list[T]:
        """The tasks of this part, in their order: those of every `count`-th key. Tasks with the same key stay together."""
        places = {one: place for place, one in enumerate(dict.fromkeys(map(key, tasks)))}
        return [task for task in tasks if places[key(task)] % self.count == self.index - 1]


WHOLE = Part(1, 1)


@dataclasses.dataclass(frozen=True)
class Execution:
    """Where networks are trained: on `ranks` MPI ranks of this host (1: in this process, which may itself be a rank; None: as
    many as the host has room for), of which `per_gpu` share a GPU (None: none do). A rank without progress for `stall` seconds
    is named. `part` is the part of the networks that this command trains, if a job array shares them. Each process trains
    `bundle` networks at a time, in one compiled step (None: as many as are fastest)."""

    ranks: int | None = 1
    per_gpu: int | None = None
    stall: float = 600.0
    part: Part = WHOLE
    bundle: int | None = None

    def typed(self) -> list[str]:
        """The options that tell each rank about its host."""
        per_gpu = [] if self.per_gpu is None else ["--per-gpu", str(self.per_gpu)]
        return ["--stall", str(self.stall), *per_gpu]


IN_PROCESS = Execution()
