"""A shard: its examples made, the file written, then the note that says so. And many of them, made by processes here."""

import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from data_prep import records
from lottery.base import files
from lottery.base.errors import InputError

SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP}  # by which a person or a cluster ends the command


@dataclasses.dataclass(frozen=True)
class Job(ABC):
    """A shard to make in `folder`, of `count` examples at most, from what `part()` returns. A worker process is given that in
    place of `part`, because only the first process can read it: it returns itself when it is called."""

    folder: Path
    name: str
    split: str
    count: int
    part: Callable[[], Any]

    @abstractmethod
    def examples(self) -> Iterator[records.Example | records.Bad]:
        """Each example, or why there is none."""

    @property
    def note(self) -> Path:
        """The file that says that the shard is done."""
        return self.folder / f".{self.name}.done"


@dataclasses.dataclass(frozen=True)
class Planned:
    """A set that is to be made: its manifest, as yet without shards, the jobs of these, and the files beside them."""

    manifest: records.Manifest
    jobs: list[Job]
    beside: dict[str, bytes] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Made:
    """A shard that was made, and the examples that it lacks because they could not be made."""

    shard: records.Shard
    bad: list[records.Bad]

    @property
    def count(self) -> int:
        """How many examples were tried."""
        return self.shard.count + len(self.bad)


def make(job: Job) -> Made:
    """Write the shard of `job`, and then its note. Examples that cannot be made are left out."""
    bad: list[records.Bad] = []

    def good() -> Iterator[records.Example]:
        for example in job.examples():
            if isinstance(example, records.Bad):
                bad.append(example)
            else:
                yield example

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")  # an image with odd metadata is no news
        shard = records.write_shard(job.folder / job.name, job.split, good())
    made = Made(shard, bad)
    files.write_json(job.note, dataclasses.asdict(made))
    return made


def made_before(job: Job) -> Made | None:
    """What the note in the folder says of the shard of `job`; None unless the shard is there, as it was written. One that lacks
    examples is made again: they may have been mended."""
    try:
        content = files.read_json(job.note)
        shard = records.Shard(**content["shard"])
        return Made(shard, []) if not content["bad"] and shard.is_unchanged(job.folder) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget(folder: Path) -> None:
    """Remove every note: the manifest has taken their place, or they are of another source."""
    for note in folder.glob(".*.done"):
        note.unlink()


def run(jobs: Sequence[Job], workers: int) -> Iterator[Made]:
    """Make `jobs`, `workers` at a time; what is made is yielded as it comes, in any order. Processes are spawned, so that they
    share nothing with this one (such as TensorFlow). What only this process can read it reads one shard ahead."""
    workers = min(workers, len(jobs))
    if workers <= 1:
        yield from map(make, jobs)
        return
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start)
    ended: SimpleQueue[Future[Made]] = SimpleQueue()
    try:
        # A thread hands out: no signal interrupts it while it holds the pool's locks, nor ends the processes that it starts
        # before they are ready, since they block what it blocks.
        with ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=(signal.SIG_BLOCK, SIGNALS)) as thread:
            for number, job in enumerate(jobs):
                thread.submit(_submit, pool, dataclasses.replace(job, part=job.part()), ended).result()
                if number >= workers:
                    yield ended.get().result()
        for _ in range(workers):
            yield ended.get().result()
    except BrokenProcessPool:
        raise InputError("a worker was killed (out of memory?): run the command again, perhaps with fewer --workers") from None
    except BaseException as error:
        if not isinstance(error, Exception | GeneratorExit):  # but a signal: nobody waits for what the workers have begun
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, job: Job, ended: "SimpleQueue[Future[Made]]") -> None:
    """Processes that this starts do not run this one's script from its top, which would have the set prepared again."""
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        pool.submit(make, job).add_done_callback(ended.put)
    finally:
        sys.modules["__main__"] = script


def _start() -> None:
    """In a new worker: die without a word on Ctrl-C, and die when the parent does, however that came."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which the parent gets, too
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
