"""Tasks, how they are done, and where."""

import dataclasses
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeVar

from lottery.base.capacity import Allocation
from lottery.base.errors import InputError
from lottery.base.progress import Reporter

T = TypeVar("T")
Task = Any  # anything hashable that can be pickled; its `str` names it
Result = dict[str, Any]
Worker = Callable[[Task], Result]
MakeWorker = Callable[[Allocation, Reporter], AbstractContextManager[Worker]]


@dataclasses.dataclass(frozen=True)
class Workload:
    """Tasks, and how they are done.

    - `list_tasks()` lists the tasks that can be done at once, in their order. It raises InputError for bad input.
    - `make_worker(allocation, reporter)` is called once in each process that gets a task: a function that can be pickled (of a
      module, or a `functools.partial` of one). It returns a context, within which it is a function from a task to its result,
      which says by `reporter` how it comes further.
    - `on_done(task, result)` is called with each result as it comes, in the process that called `list_tasks`. It returns the
      tasks that can be done now, which come before those that wait.
    - `reporter` prints lines for the user; a worker takes so many `threads`; `common` must be the same in all processes, each
      value by its name, such as that of recipes; `width()` tasks, at most, can be under way at once (None: as many as listed).

    A result's `status` is the worker's own, but for `busy` (another process is at the task), `preempted` (it was told to end),
    `failed` (too many processes died at it) and `waiting` (nobody was left to do it).
    """

    list_tasks: Callable[[], Sequence[Task]]
    make_worker: MakeWorker
    on_done: Callable[[Task, Result], Sequence[Task]]
    reporter: Reporter
    threads: int = 1
    common: Mapping[str, str] = dataclasses.field(default_factory=dict)
    width: Callable[[], int] | None = None


class Executor(Protocol):
    """Where tasks are done."""

    def run(self, workload: Workload) -> bool:
        """Do all tasks of `workload`, and those that become possible. Returns whether `on_done` was called in this process,
        which knows now how they ended. What `list_tasks` and a worker raise is raised here, once the other workers have saved
        what is under way; Preempted once all have, where this process or a worker was told to end."""


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
Headlines = Literal["follow", "leave", "only"]


@dataclasses.dataclass(frozen=True)
class Execution:
    """Where networks are trained: by so many processes of this host (`ranks`; 1: this one, which may itself be one of MPI's
    ranks; None: as many as the host has room for), of which `per_gpu` share a GPU (None: none do), or by the `executor` of
    another package. `part` is the part of the networks that this command trains, if a job array shares them. Controls of
    headlines `follow` on the tickets, or are left to another command, which trains only them. Each process trains `bundle`
    networks at a time, in one compiled step (None: as many as are fastest)."""

    ranks: int | None = 1
    per_gpu: int | None = None
    part: Part = WHOLE
    headlines: Headlines = "follow"
    bundle: int | None = None
    executor: str | None = None


IN_PROCESS = Execution()
