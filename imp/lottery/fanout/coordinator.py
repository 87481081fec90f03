"""Handing tasks out: who does what, what happens when a rank is lost, and when all is done. Knows no MPI and no TensorFlow."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lottery import preemption
from lottery.fanout.tasks import Result, Task, Workload
from lottery.progress import count_of, duration

POLL_SECONDS = 0.02
BUSY_SECONDS = 5.0  # between two tries at a lost rank's task: on a shared file system its lock may outlive it
PATIENCE_SECONDS = 180.0


class Lost(Exception):
    """The process at the other end has ended."""


class Channel(Protocol):
    """One of the two ends of a connection, as of `multiprocessing.Pipe`. Each method may raise Lost."""

    def send(self, message: Any, /) -> None: ...

    def poll(self) -> bool:
        """Whether there is a message."""

    def recv(self) -> Any: ...


@dataclass(frozen=True)
class Ready:
    """What a rank says that can take a task; `result` is that of the task it had, None where it had none. It is sent a task, or
    None: there will be no more."""

    result: Result | None = None


@dataclass(frozen=True)
class Heartbeat:
    """What a rank says whose task has come further."""


class Coordinator:
    """Hands tasks out over `channels`, by rank. A rank that says nothing for `stall` seconds is named."""

    def __init__(self, channels: Mapping[int, Channel], workload: Workload, stall: float):
        self.channels, self.on_done, self.say, self.stall = dict(channels), workload.on_done, workload.say, stall
        self.waiting: list[Task] = []
        self.idle: list[int] = []
        self.running: dict[int, Task] = {}
        self.heard = dict.fromkeys(channels, time.monotonic())
        self.stalled: set[int] = set()
        self.lost: dict[Task, float] = {}  # the tasks of lost ranks, and when they were lost
        self.postponed: dict[Task, float] = {}  # those of them that somebody still holds, and when to try again
        self.preempted = False  # whether a rank was told to end

    def run(self, tasks: Sequence[Task]) -> None:
        """Have `tasks`, and what becomes possible, done in their order. Those that no rank is left to do are `waiting`; once
        this process or a rank was told to end, nothing more is handed out."""
        self.waiting = list(tasks)
        if len(self.channels) > len(tasks):
            spare = len(self.channels) - len(tasks)
            self.say(f"{len(self.channels)} ranks, {count_of(len(tasks), 'task')} to do now: {spare} idle")
        while not self._is_over():
            time.sleep(POLL_SECONDS)
            for rank in list(self.channels):
                self._hear(rank)
            self._hand_out()
            self._name_stalled()
        for rank in list(self.idle):  # from which a rank that is lost goes
            self._send(rank, None)
        if not self._stops():
            for task in [*self.waiting, *self.postponed]:
                self.on_done(task, {"status": "waiting", "reason": "no rank was left to do it"})

    def _is_over(self) -> bool:
        """Whether nobody is at work, or about to say that it is free, and nothing more can be handed out."""
        if len(self.idle) < len(self.channels):
            return False
        return not self.channels or self._stops() or not (self.waiting or self.postponed)

    def _stops(self) -> bool:
        return self.preempted or preemption.asked()

    def _hear(self, rank: int) -> None:
        """Take in all that `rank` has said."""
        try:
            while self.channels[rank].poll():
                message = self.channels[rank].recv()
                self.heard[rank] = time.monotonic()
                self.stalled.discard(rank)
                if isinstance(message, Ready):
                    self._take_result(rank, message.result)
        except Lost:
            self._lose(rank)

    def _take_result(self, rank: int, result: Result | None) -> None:
        self.idle.append(rank)
        if result is None:
            return
        task = self.running.pop(rank)
        now = time.monotonic()
        if result["status"] == "busy" and task in self.lost and now < self.lost[task] + PATIENCE_SECONDS:
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
        """Go on without `rank`; its task comes first."""
        del self.channels[rank]
        if rank in self.idle:
            self.idle.remove(rank)
        task = self.running.pop(rank, None)
        if task is None:
            self.say(f"rank {rank} is lost; it had nothing to do")
            return
        others = "another one goes on with it" if self.channels else "no rank is left"
        self.say(f"rank {rank} is lost, at work on {task}: {others}")
        self.lost[task] = time.monotonic()
        self.waiting.insert(0, task)

    def _name_stalled(self) -> None:
        """Name the ranks of which nothing has been heard for too long, once each time."""
        for rank, task in self.running.items():
            silent = time.monotonic() - self.heard[rank]
            if silent > self.stall and rank not in self.stalled:
                self.stalled.add(rank)
                self.say(f"rank {rank} has come no further for {duration(silent)} with {task}")
