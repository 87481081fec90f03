"""A shard: its images decoded, the file written, then the note that says that it is done. And many of them, made by processes
on this machine."""

import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType

import numpy as np

from data_prep import files, records
from data_prep.errors import InputError
from data_prep.pictures import Undecodable, pixels
from data_prep.sources import Part

SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}  # by which a person or a cluster ends the command


@dataclasses.dataclass(frozen=True)
class Task:
    """A shard to make in `folder`: its images (`part`, whose `labels` are int32, [n]), brought to `shape`."""

    folder: Path
    name: str
    split: str
    shape: records.Shape
    part: Part
    labels: np.ndarray

    @property
    def note(self) -> Path:
        """The file that says that the shard is done."""
        return self.folder / f".{self.name}.done"


@dataclasses.dataclass(frozen=True)
class Made:
    """A shard that was made, and the images that it lacks because they could not be decoded."""

    shard: records.Shard
    bad: list[records.Bad]

    @property
    def images(self) -> int:
        """How many were tried."""
        return self.shard.count + len(self.bad)


def make(task: Task) -> Made:
    """Write the shard of `task`, and then its note. Images that cannot be decoded are left out."""
    bad: list[records.Bad] = []

    def examples() -> Iterator[records.Example]:
        content = task.part()
        for name, picture, label in zip(content.names, content.pictures, task.labels, strict=True):
            try:
                yield pixels(picture, task.shape[0], task.shape[2]), int(label)
            except Undecodable as error:
                bad.append(records.Bad(task.split, name, str(error)))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")  # an image with odd metadata is no news
        shard = records.write_shard(task.folder / task.name, task.split, examples())
    made = Made(shard, bad)
    files.write_json(task.note, dataclasses.asdict(made))
    return made


def made_before(task: Task) -> Made | None:
    """What the note in the folder says of the shard of `task`; None unless the shard is there, whole. One that lacks images is
    made again: they may have been mended."""
    try:
        content = files.read_json(task.note)
        shard = records.Shard(**content["shard"])
        return Made(shard, []) if shard.is_whole(task.folder) and not content["bad"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget(folder: Path) -> None:
    """Remove every note: the manifest has taken their place, or they are of other images."""
    for note in folder.glob(".*.done"):
        note.unlink()


def run(tasks: Sequence[Task], workers: int) -> Iterator[Made]:
    """Make `tasks`, `workers` at a time; what is made is yielded as it comes, in any order. Processes are spawned, so that they
    share nothing with this one (which may have imported TensorFlow to read a set). Images are read here where only this
    process can, one shard ahead of them."""
    workers = min(workers, len(tasks))
    if workers <= 1:
        yield from map(make, tasks)
        return
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start)
    ended: SimpleQueue[Future[Made]] = SimpleQueue()
    try:
        # A thread hands out: no signal interrupts it while it holds the pool's locks, nor ends the processes that it starts
        # before they are ready, since they block what it blocks.
        with ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=(signal.SIG_BLOCK, SIGNALS)) as thread:
            for number, task in enumerate(tasks):
                thread.submit(_submit, pool, dataclasses.replace(task, part=task.part()), ended).result()
                if number >= workers:
                    yield ended.get().result()
        for _ in range(workers):
            yield ended.get().result()
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


def _submit(pool: ProcessPoolExecutor, task: Task, ended: "SimpleQueue[Future[Made]]") -> None:
    """Processes that this starts do not run this one's script from its top, which would have the set prepared again."""
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        pool.submit(make, task).add_done_callback(ended.put)
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
