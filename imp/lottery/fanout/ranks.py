"""MPI ranks at one workload: rank 0 hands its tasks out, the others work, and rank 0 too where a GPU or cores would idle.

Ranks talk only to rank 0. Under `mpirun --with-ft ulfm` a rank that dies is an error to those who talk to it, and they go on;
otherwise mpirun ends them all. A rank first says what it finds and what must be common to all, and is sent its
allocation (None: there is nothing to do). From then on it says the result of its task (None before its first) and is sent the
next task (None: there are no more); `FURTHER` says that its task has come further.
"""

import contextlib
import math
import multiprocessing
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from lottery.base import preemption
from lottery.base.errors import InputError, Moved, one_line
from lottery.base.progress import count_of, duration
from lottery.fanout.allocation import Allocation, Resources, allocate, crowded, resources_here, show_gpus
from lottery.fanout.mpi import Communicator, Lost, RankChannel

POLL_SECONDS = 0.02
HEARTBEAT_SECONDS = 1.0
BUSY_SECONDS = 5.0  # between two tries at a lost rank's task: on a shared file system its lock may outlive it
PATIENCE_SECONDS = 180.0
ORPHANED = "rank 0 is lost"
FURTHER = "further"

Task = Any  # anything hashable; its `str` names it
Result = dict[str, Any]
Worker = Callable[[Task], Result]
Channel = RankChannel | Connection


@dataclass(frozen=True)
class Workload:
    """Tasks, and how they are done.

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
    common: Mapping[str, str] = field(default_factory=dict)


class Coordinator:
    """Hands tasks out over `channels`, by rank. A rank that says nothing for `stall` seconds is named."""

    def __init__(self, channels: Mapping[int, Channel], workload: Workload, stall: float):
        self.channels, self.on_done, self.say, self.stall = dict(channels), workload.on_done, workload.say, stall
        self.waiting: list[Task] = []
        self.idle: list[int] = []
        self.running: dict[int, Task] = {}
        self.heard: dict[int, float] = {}  # when a rank last came further; for ever, once it was named
        self.patience: dict[Task, float] = {}  # the tasks of lost ranks, and until when they may be busy
        self.postponed: dict[Task, float] = {}  # those of them that somebody still holds, and when to try again
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
        self.patience[task] = time.monotonic() + PATIENCE_SECONDS
        self.waiting.insert(0, task)

    def _name_stalled(self) -> None:
        """Name the ranks of which nothing has been heard for too long, once each time."""
        for rank, task in self.running.items():
            silent = time.monotonic() - self.heard[rank]
            if silent > self.stall:
                self.heard[rank] = math.inf
                self.say(f"rank {rank} has come no further for {duration(silent)} with {task}")


def coordinate(communicator: Communicator, workload: Workload, per_gpu: int | None, stall: float) -> bool:
    """The part of rank 0. Returns whether a rank was told to end before its task was done."""
    channels: dict[int, Channel] = {rank: communicator.channel(rank) for rank in range(1, communicator.size)}
    resources, common = {0: resources_here()}, {0: workload.common}
    for rank, channel in channels.items():
        try:
            resources[rank], common[rank] = _next(channel)
        except Lost:
            workload.say(f"rank {rank} is lost, before there was anything to do")
    allocations: dict[int, Allocation] = {}
    try:
        tasks = workload.list_tasks()
        check_common(resources, common)
        allocations = allocate(resources, workload.threads, per_gpu)
    finally:
        for rank, channel in channels.items():
            with contextlib.suppress(Lost):  # the coordinator finds out by itself
                channel.send(allocations.get(rank))
    own, channels[0] = multiprocessing.Pipe()
    coordinator = Coordinator({rank: channels[rank] for rank in allocations}, workload, stall)

    def hand_out() -> None:
        with _ending_all(communicator):
            for line in crowded(resources, allocations, workload.threads):
                workload.say(line)
            coordinator.run(tasks)

    thread = threading.Thread(target=hand_out, name="coordinator")  # because the main one, which gets the signals, may work
    thread.start()
    with _ending_all(communicator):
        if 0 in allocations:
            _serve(own, allocations[0], workload)
        thread.join()
    return coordinator.preempted


def check_common(resources: Mapping[int, Resources], common: Mapping[int, Mapping[str, str]]) -> None:
    """Raise InputError for a rank that does not have in common with rank 0 what it must."""
    for rank, own in common.items():
        for what, value in common[0].items():
            if own.get(what) != value:
                host = resources[rank].host
                raise InputError(f"ranks 0 and {rank} ({host}) have different {what}: start all with the same")


def work(communicator: Communicator, workload: Workload) -> None:
    """The part of a rank other than 0. Raises Preempted where rank 0 is lost."""
    channel = communicator.channel(0)
    with _ending_all(communicator):
        try:
            channel.send((resources_here(), workload.common))
            if allocation := _next(channel):
                _serve(channel, allocation, workload)
        except Lost:
            raise preemption.Preempted(ORPHANED) from None


def _serve(channel: Channel, allocation: Allocation, workload: Workload) -> None:
    """Do the tasks that come over `channel`, until there are no more."""
    worker: Worker | None = None
    result: Result | None = None
    while True:
        channel.send(result)
        task = _next(channel)
        if task is None:
            return
        if worker is None:
            show_gpus(allocation)
            worker = workload.make_worker(allocation, _heartbeat(channel))
        try:
            result = worker(task)
        except (preemption.Preempted, Moved) as error:
            result = {"status": "preempted", "reason": str(error)}


def _next(channel: Channel) -> Any:
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


@contextlib.contextmanager
def _ending_all(communicator: Communicator) -> Iterator[None]:
    """End every rank when this one raises: the others would wait for it for ever."""
    try:
        yield
    except preemption.Preempted:
        raise
    except BaseException as error:
        line = one_line(error)
        print(f"imp: rank {communicator.rank}: {line or traceback.format_exc()}", file=sys.stderr, flush=True)
        communicator.abort(2 if line else 1)
