"""Processes of this host, without MPI; or this process alone."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from lottery.base import preemption
from lottery.base.capacity import Allocation
from lottery.base.progress import Reporter
from lottery.executors import launcher
from lottery.executors.allocation import allocate, ranks_to_start, resources_here
from lottery.executors.coordinator import Coordinator, Lost, serve
from lottery.executors.job import Raised, opened
from lottery.executors.workload import Task, Workload
from lottery.trackers import mirror

_WORK = "import sys; from lottery.executors import here; here.work(int(sys.argv[1]))"


class Processes:
    """So many processes of this host (None: as many as it has room for), which this one starts, and starts again when they die;
    1: none but this one. `per_gpu` share a GPU (None: each has its own)."""

    def __init__(self, count: int | None = 1, per_gpu: int | None = None):
        self.count, self.per_gpu = count, per_gpu

    def run(self, workload: Workload) -> bool:
        """As every executor."""
        tasks = list(workload.list_tasks())
        count = ranks_to_start(self.count, workload.width or (lambda: len(tasks)), workload.threads) if tasks else 1
        if line := launcher.unused_tasks(count):
            workload.reporter.say(line)
        if count > 1:
            self._hand_out(workload, tasks, count)
        elif tasks:
            self._do(workload, tasks)
        return True

    def _do(self, workload: Workload, tasks: list[Task]) -> None:
        """Do `tasks` in this process, one after the other."""
        allocation = allocate({0: resources_here()}, workload.threads, self.per_gpu)[0]
        with workload.make_worker(allocation, workload.reporter) as worker:
            while tasks:
                task = tasks.pop(0)
                tasks[:0] = workload.on_done(task, worker(task))

    def _hand_out(self, workload: Workload, tasks: Sequence[Task], count: int) -> None:
        allocations = allocate(dict.fromkeys(range(1, count + 1), resources_here()), workload.threads, self.per_gpu)
        with preemption.deferred(), Crew(workload, allocations) as crew:
            channels = {rank: crew.start(rank) for rank in allocations}
            coordinator = Coordinator(channels, workload, crew.start, crew.tell)
            coordinator.run(tasks)
        coordinator.check()


class PipeChannel:
    """One end of the pipe between this process and a worker. `recv` raises what the worker raised."""

    def __init__(self, connection: Connection):
        self.connection = connection

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def poll(self) -> bool:
        return self.connection.poll()

    def recv(self) -> Any:
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            raise Lost from None
        return opened(message)


class Crew:
    """The worker processes, by rank: a context, at whose end all have ended."""

    def __init__(self, workload: Workload, allocations: dict[int, Allocation]):
        self.workload, self.allocations = workload, allocations
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.channels: dict[int, PipeChannel] = {}

    def start(self, rank: int) -> PipeChannel:
        """Start the worker `rank`, whose last process, if there was one, has died. Only this process tells it to end."""
        if rank in self.processes:
            self.processes[rank].wait()
        own, other = Pipe()
        modules = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        self.processes[rank] = subprocess.Popen(
            [sys.executable, "-P", "-c", _WORK, str(other.fileno())],
            env={**os.environ, "PYTHONPATH": modules},
            stdin=subprocess.DEVNULL,
            pass_fds=[other.fileno()],
            process_group=0,
        )
        other.close()
        channel, reporter = PipeChannel(own), Reporter(f"rank {rank}: ", self.workload.reporter.quiet)
        self.channels[rank] = channel
        channel.send((sys.argv, self.workload.make_worker, self.allocations[rank], reporter))
        return channel

    def tell(self, rank: int) -> None:
        """Tell the worker `rank` to save what it has and end."""
        self.processes[rank].send_signal(signal.SIGUSR1)

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error:
            for rank, process in self.processes.items():
                process.terminate()
                self.channels[rank].connection.close()
        for process in self.processes.values():
            process.wait()


def work(descriptor: int) -> None:
    """What a worker process does: the tasks that come over the pipe `descriptor`."""
    os.set_inheritable(descriptor, False)
    channel = PipeChannel(Connection(descriptor))
    try:
        with preemption.heeded(), preemption.deferred():  # to be raised in the midst of an import is no way to end
            sys.argv, make_worker, allocation, reporter = channel.recv()  # the command, which locks are signed with
            serve(channel, allocation, make_worker, reporter)
    except (Lost, preemption.Preempted):
        sys.exit(preemption.EXIT_CODE)
    except BaseException as error:
        channel.send(Raised.of(error))
        sys.exit(1)
    finally:
        mirror.wait()
