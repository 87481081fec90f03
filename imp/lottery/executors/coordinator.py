"""Tasks handed out over channels, and done at the other end.

Whoever does tasks says the result of one (None before its first) and is sent the next (None: there are no more). `FURTHER` says
that its task has come further.
"""

import collections
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lottery.base import preemption
from lottery.base.capacity import Allocation
from lottery.base.errors import Moved
from lottery.base.progress import Reporter, count_of, duration
from lottery.executors.allocation import show_gpus
from lottery.executors.workload import MakeWorker, Result, Task, Worker, Workload

POLL_SECONDS = 0.02
HEARTBEAT_SECONDS = 1.0
BUSY_SECONDS = 5.0  # between two tries at a lost rank's task: on a shared file system its lock may outlive it
PATIENCE_SECONDS = 180.0
DEADLY = 10  # processes that die at one task: enough to find out which network of a bundle kills
ORPHANED = "rank 0 is lost"
FURTHER = "further"


class Lost(Exception):
    """The process at the other end has ended."""


class Channel(Protocol):
    """One end of a connection, as of `multiprocessing.Pipe`. Each method may raise Lost."""

    def send(self, message: Any) -> None: ...

    def poll(self) -> bool: ...

    def recv(self) -> Any: ...


class Coordinator:
    """Hands tasks out over `channels`, by rank. A rank that says nothing for `stall` seconds is named. `replace` starts another
    one in the place of a rank that died at a task, where that can be done; `tell` tells a rank that is at work to end."""

    def __init__(
        self,
        channels: Mapping[int, Channel],
        workload: Workload,
        stall: float,
        replace: Callable[[int], Channel | None] = lambda rank: None,
        tell: Callable[[int], None] = lambda rank: None,
    ):
        self.channels, self.on_done, self.say, self.stall = dict(channels), workload.on_done, workload.reporter.say, stall
        self.replace, self.tell = replace, tell
        self.waiting: list[Task] = []
        self.idle: list[int] = []
        self.running: dict[int, Task] = {}
        self.heard: dict[int, float] = {}  # when a rank last came further; for ever, once it was named
        self.patience: dict[Task, float] = {}  # the tasks of lost ranks, and until when they may be busy
        self.postponed: dict[Task, float] = {}  # those of them that somebody still holds, and when to try again
        self.deaths: collections.Counter[Task] = collections.Counter()  # of ranks, at each task
        self.told: set[int] = set()
        self.preempted = False  # whether a rank was told to end

    def run(self, tasks: Sequence[Task]) -> None:
        """Have `tasks`, and what becomes possible, done in their order. Those that no rank is left to do are `waiting`; once
        this process or a rank was told to end, nothing more is handed out."""
        self.waiting = list(tasks)
        if len(self.channels) > len(tasks):
            spare = len(self.channels) - len(tasks)
            self.say(f"{len(self.channels)} ranks, {count_of(len(tasks), 'task')} to do now: {spare} idle")
        while len(self.idle) < len(self.channels) or self._has_more():
            time.sleep(POLL_SECONDS)
            for rank in list(self.channels):
                self._hear(rank)
            self._hand_out()
            self._name_stalled()
            for rank in self.running.keys() - self.told if self._stops() else ():
                self.told.add(rank)
                self.tell(rank)
        for rank in list(self.idle):  # from which a rank that is lost goes
            self._send(rank, None)
        if not self._stops():
            for task in [*self.waiting, *self.postponed]:
                self.on_done(task, {"status": "waiting", "reason": "no rank was left to do it"})

    def _has_more(self) -> bool:
        """Whether there is something to hand out, and somebody to do it."""
        return bool(self.channels and (self.waiting or self.postponed)) and not self._stops()

    def _stops(self) -> bool:
        return self.preempted or preemption.asked()

    def _hear(self, rank: int) -> None:
        """Take in all that `rank` has said."""
        try:
            while self.channels[rank].poll():
                message = self.channels[rank].recv()
                self.heard[rank] = time.monotonic()
                if message != FURTHER:
                    self._take_result(rank, message)
        except Lost:
            self._lose(rank)

    def _take_result(self, rank: int, result: Result | None) -> None:
        self.idle.append(rank)
        if result is None:
            return
        task, now = self.running.pop(rank), time.monotonic()
        if result["status"] == "busy" and now < self.patience.get(task, 0):
            self.postponed[task] = now + BUSY_SECONDS
            return
        self.preempted |= result["status"] == "preempted"
        self.waiting[:0] = self.on_done(task, result)

    def _hand_out(self) -> None:
        for task in [task for task, when in self.postponed.items() if time.monotonic() >= when]:
            del self.postponed[task]
            self.waiting.append(task)
        while self.idle and self.waiting and not self._stops():
            rank, task = self.idle.pop(0), self.waiting.pop(0)
            self.running[rank], self.heard[rank] = task, time.monotonic()
            self._send(rank, task)

    def _send(self, rank: int, task: Task | None) -> None:
        try:
            self.channels[rank].send(task)
        except Lost:
            self._lose(rank)

    def _lose(self, rank: int) -> None:
        """Go on without `rank`, or with one in its place; its task comes first, unless it is what the ranks die of."""
        del self.channels[rank]
        if rank in self.idle:
            self.idle.remove(rank)
        task = self.running.pop(rank, None)
        if task is None:
            if not self._stops():
                self.say(f"rank {rank} is lost; it had nothing to do")
            return
        new = None if self._stops() else self.replace(rank)
        if new:
            self.channels[rank] = new
        others = "another one goes on with it" if self.channels else "no rank is left"
        self.say(f"rank {rank} is lost, at work on {task}: {others}")
        self.deaths[task] += 1
        if self.deaths[task] == DEADLY:
            self.waiting[:0] = self.on_done(task, {"status": "failed", "reason": f"{DEADLY} processes died at it"})
            return
        self.patience[task] = time.monotonic() + PATIENCE_SECONDS
        self.waiting.insert(0, task)

    def _name_stalled(self) -> None:
        """Name the ranks of which nothing has been heard for too long, once each time."""
        for rank, task in self.running.items():
            silent = time.monotonic() - self.heard[rank]
            if silent > self.stall:
                self.heard[rank] = math.inf
                self.say(f"rank {rank} has come no further for {duration(silent)} with {task}")


def serve(channel: Channel, allocation: Allocation, make_worker: MakeWorker, reporter: Reporter) -> None:
    """Do the tasks that come over `channel`, until there are no more."""
    worker: Worker | None = None
    result: Result | None = None
    while True:
        channel.send(result)
        task = following(channel)
        if task is None:
            return
        try:
            if worker is None:
                show_gpus(allocation)
                worker = make_worker(allocation, reporter.beating(_heartbeat(channel)))
            result = worker(task)
        except (preemption.Preempted, Moved) as error:
            result = {"status": "preempted", "reason": str(error)}


def following(channel: Channel) -> Any:
    """The next message, waited for asleep: MPI's own waiting would burn a core that a training needs."""
    while not channel.poll():
        time.sleep(POLL_SECONDS)
    return channel.recv()


def _heartbeat(channel: Channel) -> Callable[[], None]:
    """A function to call as a task comes further. Should rank 0 be lost, what is under way is to be saved, and to end."""
    sent = time.monotonic()

    def beat() -> None:
        nonlocal sent
        if time.monotonic() - sent < HEARTBEAT_SECONDS:
            return
        sent = time.monotonic()
        try:
            channel.poll()  # which is how a loss is noticed
            channel.send(FURTHER)
        except Lost:
            preemption.ask(ORPHANED)

    return beat
