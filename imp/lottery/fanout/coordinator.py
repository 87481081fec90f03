"""Handing jobs out: who does what, what happens when a rank is lost, and when all is done. Knows neither MPI nor TensorFlow."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lottery import preemption
from lottery.jobs import AnyJob
from lottery.progress import duration

Result = dict[str, Any]
Done = Callable[[AnyJob, Result], Sequence[AnyJob]]

POLL_SECONDS = 0.02
BUSY_SECONDS = 5.0  # between two tries at a lost rank's job: on a shared file system its lock may outlive it
PATIENCE_SECONDS = 180.0


class Lost(Exception):
    """The process at the other end is no more."""


@dataclass(frozen=True)
class Free:
    """A rank wants a job; `result` is that of the one it had, None where it had none."""

    result: Result | None = None


@dataclass(frozen=True)
class Alive:
    """A rank is at work on its job, and has just come further."""


class Link(Protocol):
    """The coordinator's end of what connects it with one rank. Either raises Lost."""

    def receive(self) -> Free | Alive | None:
        """The next thing the rank has said, None when there is none."""

    def send(self, job: AnyJob | None) -> None:
        """A job to do, or None: there will be no more."""


class Coordinator:
    """Hands jobs out over `links`, by rank. `done` is called with each result and returns the jobs that can be done now,
    which come before those that wait. `stall` is for how many seconds a rank may say nothing before it is named."""

    def __init__(self, links: Mapping[int, Link], done: Done, say: Callable[[str], None], stall: float):
        self.links, self.done, self.say, self.stall = dict(links), done, say, stall
        self.idle: list[int] = []
        self.running: dict[int, AnyJob] = {}
        self.heard = dict.fromkeys(links, time.monotonic())
        self.stalled: set[int] = set()
        self.lost: dict[AnyJob, float] = {}  # the jobs of lost ranks, and when they were lost
        self.later: dict[AnyJob, float] = {}  # those of them that somebody still holds, and when to try again
        self.preempted = False

    def run(self, jobs: Sequence[AnyJob]) -> list[AnyJob]:
        """Have `jobs`, and what becomes possible, done in their order. Returns those that were not handed out: because this
        process or a rank was told to end (`preempted` then), or because no rank is left."""
        self.waiting = list(jobs)
        if len(self.links) > len(jobs):
            spare = len(self.links) - len(jobs)
            self.say(f"{len(self.links)} ranks to train on, {len(jobs)} networks to train now: {spare} idle")
        while not self._is_over():
            time.sleep(POLL_SECONDS)
            for rank in list(self.links):
                self._hear(rank)
            self._hand_out()
            self._watch()
        for rank in list(self.idle):  # from which a rank that is lost goes
            self._send(rank, None)
        return [*self.waiting, *self.later]

    def _is_over(self) -> bool:
        """Whether nobody is at work, or about to say that it is free, and nothing more can be handed out."""
        if len(self.idle) < len(self.links):
            return False
        return not self.links or self.stops() or not (self.waiting or self.later)

    def stops(self) -> bool:
        """Whether nothing is to be handed out any more, because somebody was told to end."""
        return self.preempted or preemption.asked()

    def _hear(self, rank: int) -> None:
        """Take in all that `rank` has said."""
        try:
            while message := self.links[rank].receive():
                self.heard[rank] = time.monotonic()
                self.stalled.discard(rank)
                if isinstance(message, Free):
                    self._free(rank, message.result)
        except Lost:
            self._lose(rank)

    def _free(self, rank: int, result: Result | None) -> None:
        self.idle.append(rank)
        if result is None:
            return
        job = self.running.pop(rank)
        if result["status"] == "busy" and time.monotonic() < self.lost.get(job, -PATIENCE_SECONDS) + PATIENCE_SECONDS:
            self.later[job] = time.monotonic() + BUSY_SECONDS
            return
        self.preempted |= result["status"] == "preempted"
        self.waiting[:0] = self.done(job, result)

    def _hand_out(self) -> None:
        due = [job for job, when in self.later.items() if time.monotonic() >= when]
        for job in due:
            del self.later[job]
            self.waiting.append(job)
        while self.idle and self.waiting and not self.stops():
            rank, job = self.idle.pop(0), self.waiting.pop(0)
            self.running[rank], self.heard[rank] = job, time.monotonic()
            self._send(rank, job)

    def _send(self, rank: int, job: AnyJob | None) -> None:
        try:
            self.links[rank].send(job)
        except Lost:
            self._lose(rank)

    def _lose(self, rank: int) -> None:
        """Go on without `rank`; its job comes first."""
        del self.links[rank]
        if rank in self.idle:
            self.idle.remove(rank)
        job = self.running.pop(rank, None)
        if job is None:
            self.say(f"rank {rank} is lost; it had nothing to do")
            return
        self.say(f"rank {rank} is lost, at work on {job}: {'another one goes on with it' if self.links else 'no rank is left'}")
        self.lost[job] = time.monotonic()
        self.waiting.insert(0, job)

    def _watch(self) -> None:
        """Name the ranks of which nothing has been heard for too long, once each time."""
        for rank, job in self.running.items():
            silent = time.monotonic() - self.heard[rank]
            if silent > self.stall and rank not in self.stalled:
                self.stalled.add(rank)
                self.say(f"rank {rank} has come no further for {duration(silent)} with {job}")
