"""The local engine: shards made by processes on this machine."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from data_prep.errors import InputError
from data_prep.shards import Made, Task, make

SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}  # by which a person or a cluster ends the command


def run(tasks: Sequence[Task], workers: int) -> Iterator[Made]:
    """Make `tasks`, `workers` at a time; what is made is yielded as it comes, in any order.

    Processes are spawned, so that they share nothing with this one (which may have imported TensorFlow to read a set), and
    a set that only this process can read is read here, one shard ahead of them.
    """
    if min(workers, len(tasks)) <= 1:
        yield from map(make, tasks)
        return
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(workers, len(tasks)), multiprocessing.get_context("spawn"), _start)
    try:
        yield from _made(pool, tasks, min(workers, len(tasks)) + 1)
    except BrokenProcessPool:
        raise InputError(
            "a worker process was killed (out of memory?): run the command again, perhaps with fewer --workers"
        ) from None
    except BaseException as error:
        if not isinstance(error, Exception | GeneratorExit):  # but a signal: nobody waits for what the workers have begun
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _made(pool: ProcessPoolExecutor, tasks: Sequence[Task], at_once: int) -> Iterator[Made]:
    ended: SimpleQueue[Future[Made]] = SimpleQueue()
    waiting = 0
    for task in tasks:
        loaded = task.loaded()
        # Signals, so that the pool's locks are never left held; its workers inherit that until they are ready.
        with _signals_held(), _script_hidden():
            pool.submit(make, loaded).add_done_callback(ended.put)
        waiting += 1
        if waiting == at_once:
            yield ended.get().result()
            waiting -= 1
    for _ in range(waiting):
        yield ended.get().result()


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Within, nothing is interrupted, and processes are started that no signal ends; what comes meanwhile comes at the end.

    Blocking is for the processes. Here it is not enough: another thread (NumPy has some) takes the signal, and Python runs its
    handler in the main thread all the same.
    """
    came: list[int] = []
    handlers: dict[int, Any] = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handlers[number] = signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for held, handler in handlers.items():
            signal.signal(held, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for one in came:
            signal.raise_signal(one)


@contextlib.contextmanager
def _script_hidden() -> Iterator[None]:
    """Within, processes are spawned that do not run this one's script from its top, which would have the set prepared again."""
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _start() -> None:
    """In a new worker: die without a word on Ctrl-C, and die when the parent does, however that came."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
