"""The local engine: shards made by processes on this machine."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection

from data_prep.errors import InputError
from data_prep.shards import Made, Task, make


def run(tasks: Sequence[Task], workers: int) -> Iterator[Made]:
    """Make `tasks`, `workers` at a time; what is made is yielded as it comes, in any order.

    Processes are spawned, so that they share nothing with this one (which may have imported TensorFlow to read a set), and
    a set that only this process can read is read here, one shard ahead of them.
    """
    if min(workers, len(tasks)) <= 1:
        yield from map(make, tasks)
        return
    pool = ProcessPoolExecutor(min(workers, len(tasks)), multiprocessing.get_context("spawn"), _start)
    try:
        yield from _made(pool, iter(tasks), min(workers, len(tasks)) + 1)
    except BrokenProcessPool:
        raise InputError(
            "a worker process was killed (out of memory?): run the command again, perhaps with fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _made(pool: ProcessPoolExecutor, tasks: Iterator[Task], at_once: int) -> Iterator[Made]:
    waiting: set[Future[Made]] = set()
    for task in tasks:
        loaded = task.loaded()
        with _interrupts_held():  # the first task starts the workers, which inherit that until they are ready
            waiting.add(pool.submit(make, loaded))
        if len(waiting) < at_once:
            continue
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        yield from (future.result() for future in done)
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        yield from (future.result() for future in done)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start() -> None:
    """In a new worker: die without a word on Ctrl-C, and die when the parent does, however that came."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
