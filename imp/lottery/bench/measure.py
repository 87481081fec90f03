"""How things are measured: everything in turn, again and again, so that what a neighbour takes it takes from all of them."""

import contextlib
import ctypes
import dataclasses
import gc
import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from lottery import environment
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.progress import Reporter

Work = Callable[[], object]

RUN_SECONDS = 0.5
COPY_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True)
class Row:
    """What one contender did with `images` of `bytes` each, in the median of `repeats` runs.

    `low` and `high` are the slowest and the fastest run's images per second; `per_core` is images per second of processor
    time, of all processes together; `ratio` is against the contender that the others are measured by.
    """

    name: str
    images_per_s: float
    low: float
    high: float
    mb_per_s: float
    per_core: float
    ratio: float
    repeats: int


RATES = (
    Column("name", ""),
    Column("images_per_s", "images/s"),
    Column("low", "slowest"),
    Column("high", "fastest"),
    Column("mb_per_s", "MB/s"),
    Column("per_core", "per core second"),
    Column("ratio", "ratio", ".2f"),
)


def rates(name: str, title: str, rows: Sequence[Row], extras: Mapping[str, float]) -> Sheet:
    """The sheet of a comparison, with the bandwidth of memory (GB/s) that it was measured beside."""
    return Sheet(
        name,
        title,
        machine(),
        RATES,
        [dataclasses.asdict(row) for row in rows],
        Bars("name", "images_per_s", "images a second", "low", "high"),
        [medians(rows[0].repeats)],
        {"GB_that_one_thread_copies_in_a_second": statistics.median(copies(1, 7)), **extras},
    )


def medians(repeats: int) -> str:
    return f"medians of {repeats} runs of each, in turn"


def compare(
    contenders: Mapping[str, Work], images: int, image_bytes: int, baseline: str, repeats: int, reporter: Reporter
) -> list[Row]:
    """What each did of `images` images, in turn with the others; the `baseline` is what they are measured by."""
    runs = in_turn(contenders, repeats, reporter)
    base = statistics.median(wall for wall, _ in runs[baseline])
    return [_row(name, timings, images, image_bytes, base) for name, timings in runs.items()]


def in_turn(
    contenders: Mapping[str, Work], repeats: int, reporter: Reporter, there_and_back: bool = False
) -> dict[str, list[tuple[float, float]]]:
    """Run every contender once to warm up, then all in turn `repeats` times; a run is as many goes as last `RUN_SECONDS`.

    Returns wall and processor seconds a go, of each run. `there_and_back`: every other turn goes from the last to the first,
    so that of two contenders neither is always the earlier one, which a machine that grows slower would favour.
    """
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    with reporter.counting("measuring", len(contenders) * (repeats + 1), "runs") as progress:
        goes = {}
        for name, work in contenders.items():
            goes[name] = _goes(work)
            progress(1)
        for turn in range(repeats):
            for name in list(contenders)[:: -1 if there_and_back and turn % 2 else 1]:
                runs[name].append(_timed(contenders[name], goes[name]))
                progress(1)
    return runs


def copies(threads: int, repeats: int, size: int = COPY_BYTES) -> list[float]:
    """GB that this machine copies from one place in memory to another in a second, by so many threads: of each run."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    parts = [slice(index * size // threads, (index + 1) * size // threads) for index in range(threads)]
    with ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))

        runs = in_turn({"copy": copy}, repeats, Reporter(quiet=True))["copy"]
    return [size / wall / 1e9 for wall, _ in runs]


def machine() -> dict[str, Any]:
    """What a reader must know of this machine."""
    described = environment.describe()
    return {key: described[key] for key in ("python", "packages", "system", "processor", "cores", "gpus", "revision")}


@contextlib.contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Yields a function that says by how many bytes this process has been larger than it was at the beginning, at most."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what lies about unused goes back, so that to use it again is to grow
    Path("/proc/self/clear_refs").write_text("5")  # resets the kernel's high-water mark
    before = _status("VmRSS")
    yield lambda: _status("VmHWM") - before


def _row(name: str, timings: list[tuple[float, float]], images: int, image_bytes: int, base: float) -> Row:
    walls, processor = zip(*timings, strict=True)
    median = statistics.median(walls)
    return Row(
        name,
        images_per_s=images / median,
        low=images / max(walls),
        high=images / min(walls),
        mb_per_s=images * image_bytes / median / 1e6,
        per_core=images / statistics.median(processor),
        ratio=base / median,
        repeats=len(timings),
    )


def _goes(work: Work) -> int:
    """How often to do `work` in one run; the first time, which may compile, does not count."""
    _timed(work, 1)
    return math.ceil(RUN_SECONDS / _timed(work, 1)[0])


def _timed(work: Work, goes: int) -> tuple[float, float]:
    """Wall and processor seconds of one go, those of ended children included."""
    wall, processor = time.perf_counter(), _processor_seconds()
    for _ in range(goes):
        work()
    return (time.perf_counter() - wall) / goes, (_processor_seconds() - processor) / goes


def _processor_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _status(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def cores() -> int:
    return len(os.sched_getaffinity(0))
