"""MPI ranks at one workload: rank 0 coordinates, the others work, and rank 0 too where a GPU or cores would be left over.

Ranks talk only to rank 0. Under `mpirun --with-ft ulfm` a rank that dies is an error to those who talk to it, and they go on;
otherwise mpirun ends them all.
"""

import contextlib
import multiprocessing
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from data_prep.errors import InputError, Moved, one_line
from lottery import preemption
from lottery.fanout.allocation import Allocation, Resources, allocate, crowded, resources_here, show_gpus
from lottery.fanout.coordinator import Channel, Coordinator, Heartbeat, Lost, Ready
from lottery.fanout.mpi import Communicator
from lottery.fanout.tasks import Result, Worker, Workload

POLL_SECONDS = 0.02
HEARTBEAT_SECONDS = 1.0
ORPHANED = "rank 0 is lost"


@dataclass(frozen=True)
class Hello:
    """What a rank says when it begins: what it finds, and what must be `common` to all ranks. It is sent its allocation, or
    None: there is nothing to do."""

    resources: Resources
    common: Mapping[str, str]


def coordinate(communicator: Communicator, workload: Workload, per_gpu: int | None, stall: float) -> bool:
    """The part of rank 0. Returns whether a rank was told to end before its task was done."""
    channels: dict[int, Channel] = {rank: communicator.channel(rank) for rank in range(1, communicator.size)}
    hellos = {0: Hello(resources_here(), workload.common)} | _hellos(channels, workload.say)
    allocations: dict[int, Allocation] = {}
    try:
        tasks = workload.list_tasks()
        _check_common(hellos)
        resources = {rank: hello.resources for rank, hello in hellos.items()}
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


def _hellos(channels: Mapping[int, Channel], say: Callable[[str], None]) -> dict[int, Hello]:
    """Those of the other ranks, without those that have been lost already."""
    hellos = {}
    for rank, channel in channels.items():
        try:
            hellos[rank] = _next(channel)
        except Lost:
            say(f"rank {rank} is lost, before there was anything to do")
    return hellos


def _check_common(hellos: Mapping[int, Hello]) -> None:
    for rank, hello in hellos.items():
        for what, value in hellos[0].common.items():
            if hello.common.get(what) != value:
                raise InputError(f"ranks 0 and {rank} ({hello.resources.host}) have different {what}: start all with the same")


def work(communicator: Communicator, workload: Workload) -> None:
    """The part of a rank other than 0. Raises Preempted where rank 0 is lost."""
    channel = communicator.channel(0)
    with _ending_all(communicator):
        try:
            channel.send(Hello(resources_here(), workload.common))
            if allocation := _next(channel):
                _serve(channel, allocation, workload)
        except Lost:
            raise preemption.Preempted(ORPHANED) from None


def _serve(channel: Channel, allocation: Allocation, workload: Workload) -> None:
    """Do the tasks that come over `channel`, until there are no more."""
    worker: Worker | None = None
    result: Result | None = None
    while True:
        channel.send(Ready(result))
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
            channel.send(Heartbeat())
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
