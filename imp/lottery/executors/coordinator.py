"""Tasks handed out over channels, and done at the other end.

Whoever does tasks says the result of one (None before its first) and is sent the next (None: there are no more). Meanwhile
`SAVED` says that a process in its place would go on from here, and a `Line` is to be said once, whichever ranks have it.
"""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lottery.base import files, preemption
from lottery.base.capacity import Allocation
from lottery.base.errors import Moved
from lottery.base.progress import Reporter, count_of
from lottery.executors.allocation import show_gpus
from lottery.executors.workload import MakeWorker, Result, Task, Worker, Workload

POLL_SECONDS = 0.02
HEARTBEAT_SECONDS = 1.0  # after which a rank at work looks again whether rank 0 is there
PATIENCE_SECONDS = 180.0  # in which the lock of a lost rank may outlive it, on a shared file system
DEADLY = 10  # processes that die in a row at one task, which saves nothing: enough to find out which network of a bundle kills
ORPHANED = "rank 0 is lost"
SAVED = "saved"


@dataclasses.dataclass(frozen=True)
class Line:
    """What a rank has to tell the user, as others may."""

    text: str


class Lost(Exception):
    """The process at the other end has ended."""


class Channel(Protocol):
    """One end of a connection, as of `multiprocessing.Pipe`. Where the other end is lost, `send` does nothing, and `poll`, or
    else `recv` once `poll` says yes, raises Lost."""

    def send(self, message: Any) -> None: ...

    def poll(self) -> bool: ...

    def recv(self) -> Any: ...


@dataclasses.dataclass
class Assignment:
    """A task that a rank is at, and whether it was told to end."""

    task: Task
    told: bool = False


class Coordinator:
    """Hands tasks out over `channels`, by rank. `replace` starts another rank in the place of one that died, where that can be;
    `tell` tells one that is at work to end."""

    def __init__(
        self,
        channels: Mapping[int, Channel],
        workload: Workload,
        replace: Callable[[int], Channel | None] = lambda rank: None,
        tell: Callable[[int], None] = lambda rank: None,
    ):
        self.channels, self.on_done = dict(channels), workload.on_done
        self.say, self.once = workload.reporter.say, workload.reporter.once
        self.replace, self.tell = replace, tell
        self.waiting: list[Task] = []
        self.idle: list[int] = []
        self.running: dict[int, Assignment] = {}
        self.patience: dict[Task, float] = {}  # the tasks of lost ranks, and until when they may be busy
        self.deaths: collections.Counter[Task] = collections.Counter()  # of ranks, at each task or (None) at none
        self.stopped = False  # as a rank was told to end, or the run was moved

    def run(self, tasks: Sequence[Task]) -> None:
        """Have `tasks`, and what becomes possible, done in their order. Those that no rank is left to do are `waiting`; once
        this process or a rank was told to end, or the run was moved, nothing more is handed out."""
        self.waiting = list(tasks)
        if len(self.channels) > len(tasks):
            spare = len(self.channels) - len(tasks)
            self.say(f"{len(self.channels)} ranks, {count_of(len(tasks), 'task')} to do now: {spare} idle")
        while len(self.idle) < len(self.channels) or (self.channels and self.waiting and not self._stops()):
            time.sleep(POLL_SECONDS)
            for rank in list(self.channels):
                self._hear(rank)
            self._hand_out()
            self._tell_to_end()
        for rank in self.idle:
            self.channels[rank].send(None)
        if not self._stops():
            for task in self.waiting:
                self.on_done(task, {"status": "waiting", "reason": "no rank was left to do it"})

    def check(self) -> None:
        """Raise Moved or Preempted where that is why not all was done."""
        files.check_held()
        preemption.check()
        if self.stopped:
            raise preemption.Preempted("stopped, as a process that trains was told to")

    def _stops(self) -> bool:
        return self.stopped or preemption.asked()

    def _hear(self, rank: int) -> None:
        """Take in all that `rank` has said."""
        try:
            while self.channels[rank].poll():
                self._take_in(rank, self.channels[rank].recv())
        except Lost:
            self._lose(rank)

    def _take_in(self, rank: int, message: Result | str | Line | None) -> None:
        if isinstance(message, Line):
            self.once(message.text)
            return
        if isinstance(message, str):  # SAVED
            del self.deaths[self.running[rank].task]
            return
        self.idle.append(rank)
        if message is None:
            return
        task = self.running.pop(rank).task
        if message["status"] == "busy" and time.monotonic() < self.patience.get(task, 0):
            self.waiting.append(task)
            return
        self.stopped |= message["status"] == "preempted"
        self.waiting[:0] = self.on_done(task, message)

    def _hand_out(self) -> None:
        while self.idle and self.waiting and not self._stops():
            try:
                files.check_held()
            except Moved:  # which `check` raises once all have ended
                self.stopped = True
                return
            rank, task = self.idle.pop(0), self.waiting.pop(0)
            self.running[rank] = Assignment(task)
            self.channels[rank].send(task)

    def _lose(self, rank: int) -> None:
        """Go on without `rank`, or with one in its place; its task comes first, unless it is what the ranks die of."""
        del self.channels[rank]
        with contextlib.suppress(ValueError):
            self.idle.remove(rank)
        task = self.running.pop(rank).task if rank in self.running else None
        self.deaths[task] += 1
        is_deadly = self.deaths[task] >= DEADLY
        replaceable = not self._stops() and (task is not None or not is_deadly)
        if replaceable and (new := self.replace(rank)):
            self.channels[rank] = new
        if task is None:
            self.say(f"rank {rank} is lost; it had nothing to do")
            return
        others = "another one goes on with it" if self.channels else "no rank is left"
        self.say(f"rank {rank} is lost, at work on {task}: {others}")
        if is_deadly:
            reason = f"{DEADLY} processes in a row died at it"
            self.waiting[:0] = self.on_done(task, {"status": "failed", "reason": reason})
            return
        self.patience[task] = time.monotonic() + PATIENCE_SECONDS
        self.waiting.insert(0, task)

    def _tell_to_end(self) -> None:
        """Where all is to end, tell those at work so, once."""
        for rank, at in self.running.items() if self._stops() else ():
            if not at.told:
                at.told = True
                self.tell(rank)


def serve(channel: Channel, allocation: Allocation, make_worker: MakeWorker, reporter: Reporter) -> None:
    """Do the tasks that come over `channel`, until there are no more. Raises Lost."""
    worker: Worker | None = None
    result: Result | None = None
    with contextlib.ExitStack() as life:
        while True:
            channel.send(result)
            task = following(channel)
            if task is None:
                return
            try:
                if worker is None:
                    show_gpus(allocation)
                    speaker = reporter.of_rank(_heartbeat(channel), lambda text: channel.send(Line(text)))
                    worker = life.enter_context(make_worker(allocation, speaker))
                result = worker(task)
            except (preemption.Preempted, Moved) as error:
                result = {"status": "preempted", "reason": str(error)}


def following(channel: Channel) -> Any:
    """The next message, waited for asleep: MPI's own waiting would burn a core that a training needs. Raises Lost."""
    while not channel.poll():
        time.sleep(POLL_SECONDS)
    return channel.recv()


def _heartbeat(channel: Channel) -> Callable[[bool], None]:
    """A function to call as a task comes further, or saves that, which rank 0 is told. Should rank 0 be lost, what is under way
    is to be saved, and to end."""
    looked = time.monotonic()

    def beat(saved: bool) -> None:
        nonlocal looked
        if saved:
            channel.send(SAVED)
        elif time.monotonic() - looked < HEARTBEAT_SECONDS:
            return
        looked = time.monotonic()
        try:
            if channel.poll():  # nothing is sent to a rank at work: it is the end of rank 0
                channel.recv()
        except Lost:
            preemption.ask(ORPHANED)

    return beat
