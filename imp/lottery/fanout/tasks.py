"""Tasks to do, and the part of them that one process of a job array does. Knows nothing of what they are."""

import dataclasses
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from data_prep.errors import InputError
from lottery.fanout.allocation import Allocation

T = TypeVar("T")

Task = Any  # anything hashable; its `str` names it
Result = dict[str, Any]
Worker = Callable[[Task], Result]


@dataclasses.dataclass(frozen=True)
class Workload:
    """What an executor does.

    - `list_tasks()` lists the tasks that can be done at once, in their order.
    - `make_worker(allocation, heartbeat)` is called once in each process that gets a task. It returns a function from a task to
      its result, which calls `heartbeat()` whenever it comes further.
    - `on_done(task, result)` is called with each result as it comes. It returns the tasks that can be done now, which come
      before those that wait.
    - `say` prints a line for the user; a worker takes so many `threads`; `common` must be the same in all processes, each value
      by its name, such as that of recipes.

    A result's `status` is the worker's own, but for `busy` (another process is at the task), `preempted` (it was told to end)
    and `waiting` (nobody was left to do it).
    """

    list_tasks: Callable[[], Sequence[Task]]
    make_worker: Callable[[Allocation, Callable[[], None]], Worker]
    on_done: Callable[[Task, Result], Sequence[Task]]
    say: Callable[[str], None]
    threads: int = 1
    common: Mapping[str, str] = dataclasses.field(default_factory=dict)


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
        places: dict[Hashable, int] = {}
        for task in tasks:
            places.setdefault(key(task), len(places))
        return [task for task in tasks if places[key(task)] % self.count == self.index - 1]


WHOLE = Part(1, 1)
