"""Contenders that do the same to the same images, compared by how many images they do in a second."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lottery.bench import timing
from lottery.bench.harness import Bench
from lottery.bench.sheet import Bars, Column, Rows, Sheet, rate

COLUMNS = (
    Column("name", ""),
    *rate("images_per_s", "images/s"),
    Column("mb_per_s", "MB/s"),
    Column("per_core", "per core second"),
    Column("ratio", "ratio", ".2f"),
)


def rows(timings: Mapping[str, Sequence[timing.Timing]], images: int, image_bytes: int) -> Rows:
    """What each contender did of `images` images of `image_bytes` each, in the median of its runs.

    `per_core` is images per second of processor time, of all processes together; `ratio` is against the first contender.
    """
    table: Rows = []
    for name, pairs in timings.items():
        walls, processor = zip(*pairs, strict=True)
        row: dict[str, Any] = {"name": name, **timing.spread("images_per_s", [images / wall for wall in walls])}
        row["mb_per_s"] = row["images_per_s"] * image_bytes / 1e6
        row["per_core"] = images / statistics.median(processor)
        row["ratio"] = row["images_per_s"] / (table[0] if table else row)["images_per_s"]
        table.append({**row, "repeats": len(walls)})
    return table


def sheet(bench: Bench, title: str, rows: Rows, **extras: float) -> Sheet:
    """With the bandwidth of memory (GB/s) that they were measured beside."""
    copied = {"GB_that_one_thread_copies_in_a_second": statistics.median(timing.copies(1, 7))}
    figure = Bars("name", "images_per_s", "images a second", "low", "high")
    return bench.sheet(title, COLUMNS, rows, figure, bench.medians, **copied, **extras)
