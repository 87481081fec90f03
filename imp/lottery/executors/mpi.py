"""The ranks that mpirun or srun started, all with the same command: rank 0 hands tasks out, the others do them, and rank 0 too
where a GPU or cores would idle.

Ranks talk only to rank 0. Under `mpirun --with-ft ulfm` a rank that dies is an error to those who talk to it, and they go on;
otherwise mpirun ends them all. A rank first says what it finds and what must be common to all, and is sent its allocation
(None: there is nothing to do)."""

import contextlib
import multiprocessing
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping

from lottery.base import preemption
from lottery.base.capacity import Allocation
from lottery.base.errors import InputError, one_line
from lottery.executors import launcher
from lottery.executors.allocation import Resources, allocate, resources_here
from lottery.executors.communicator import Communicator
from lottery.executors.coordinator import ORPHANED, Channel, Coordinator, Lost, following, serve
from lottery.executors.workload import Workload


class Ranks:
    """All ranks of `communicator`, of which `per_gpu` share a GPU (None: each has its own)."""

    def __init__(self, communicator: Communicator, per_gpu: int | None = None):
        self.communicator, self.per_gpu = communicator, per_gpu

    def run(self, workload: Workload) -> bool:
        """As every executor. Raises Preempted once what was under way is saved; Moved where its folder was moved."""
        coordinates = self.communicator.rank == 0
        if coordinates and (line := launcher.unused_tasks(self.communicator.size)):
            workload.reporter.say(line)
        with self.communicator, preemption.deferred():
            if coordinates:
                coordinate(self.communicator, workload, self.per_gpu)
            else:
                work(self.communicator, workload)
        preemption.check()
        return coordinates


def coordinate(communicator: Communicator, workload: Workload, per_gpu: int | None) -> None:
    """The part of rank 0. Raises as `Ranks.run` does."""
    channels: dict[int, Channel] = {rank: communicator.channel(rank) for rank in range(1, communicator.size)}
    resources, common = {0: resources_here()}, {0: workload.common}
    for rank, channel in channels.items():
        try:
            resources[rank], common[rank] = following(channel)
        except Lost:
            workload.reporter.say(f"rank {rank} is lost, before there was anything to do")
    allocations: dict[int, Allocation] = {}
    try:
        tasks = workload.list_tasks()
        check_common(resources, common)
        allocations = allocate(resources, workload.threads, per_gpu)
    finally:
        for rank, channel in channels.items():
            channel.send(allocations.get(rank))
    own, channels[0] = multiprocessing.Pipe()
    coordinator = Coordinator({rank: channels[rank] for rank in allocations}, workload)

    def hand_out() -> None:
        with _ending_all(communicator):
            coordinator.run(tasks)

    thread = threading.Thread(target=hand_out, name="coordinator")  # because the main one, which gets the signals, may work
    thread.start()
    with _ending_all(communicator):
        if 0 in allocations:
            serve(own, allocations[0], workload.make_worker, workload.reporter)
        thread.join()
    coordinator.check()


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
            if allocation := following(channel):
                serve(channel, allocation, workload.make_worker, workload.reporter)
        except Lost:
            raise preemption.Preempted(ORPHANED) from None


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
