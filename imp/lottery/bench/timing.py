"""Timing: everything in turn, again and again, so that a busy neighbour slows all of it alike."""

import contextlib
import ctypes
import gc
import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from lottery.base.progress import Reporter

Work = Callable[[], object]
Timing = tuple[float, float]  # wall and processor seconds of one call, those of ended children included

RUN_SECONDS = 0.5


def in_turn(contenders: Mapping[str, Work], repeats: int, reporter: Reporter) -> dict[str, list[Timing]]:
    """Call every contender to warm it up, then all in turn `repeats` times; a run is as many calls as last `RUN_SECONDS`. Every
    other turn goes from the last to the first, so that of two contenders neither is always the earlier one, which a machine
    that grows slower would favour. Returns the timings of each run."""
    timings: dict[str, list[Timing]] = {name: [] for name in contenders}
    with reporter.counting("measuring", len(contenders) * (repeats + 1), "runs") as progress:
        calls = {}
        for name, work in contenders.items():
            work()  # may compile
            calls[name] = math.ceil(RUN_SECONDS / seconds_of(work))
            progress(1)
        for turn in range(repeats):
            for name in list(contenders)[:: -1 if turn % 2 else 1]:
                timings[name].append(_timed(contenders[name], calls[name]))
                progress(1)
    return timings


def runs(work: Work, repeats: int) -> list[float]:
    """Wall seconds of one call, in each run of `in_turn`."""
    return [wall for wall, _ in in_turn({"": work}, repeats, Reporter(quiet=True))[""]]


def seconds_of(work: Work) -> float:
    """Wall seconds of a single call."""
    return _timed(work, 1)[0]


def lasting(take: Callable[[int], object], seconds: float, most: int = 1 << 20) -> int:
    """How many steps `take` takes in so many seconds, a power of two or `most`; the first step, which may compile, is not
    counted."""
    take(1)
    count, took = 1, 0.0
    while took < seconds and count < most:
        count = min(2 * count, most)
        took = seconds_of(partial(take, count))
    return count


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """The columns `name`, `low` and `high` of a row: median, least and largest."""
    return {name: statistics.median(values), "low": min(values), "high": max(values)}


@contextlib.contextmanager
def peak_memory(device: str = "CPU:0") -> Iterator[Callable[[], int]]:
    """Yields a function that says by how many bytes the memory taken, of this process or of a GPU that it trains on, has been
    more than it was at the beginning, at most."""
    if device.startswith("CPU"):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # gives unused memory back, so that using it again counts as growth
        Path("/proc/self/clear_refs").write_text("5")  # resets the kernel's high-water mark
        before = memory("VmRSS")
        yield lambda: memory("VmHWM") - before
    else:
        import tensorflow as tf

        tf.config.experimental.reset_memory_stats(device)
        before = tf.config.experimental.get_memory_info(device)["current"]
        yield lambda: tf.config.experimental.get_memory_info(device)["peak"] - before


def memory(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def cores() -> int:
    return len(os.sched_getaffinity(0))


def _timed(work: Work, calls: int) -> Timing:
    wall, processor = time.perf_counter(), _processor_seconds()
    for _ in range(calls):
        work()
    return (time.perf_counter() - wall) / calls, (_processor_seconds() - processor) / calls


def _processor_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
