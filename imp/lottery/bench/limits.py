"""`imp bench limits`: how fast this machine copies memory and multiplies matrices, which nothing else can be faster than."""

import statistics
from typing import Any

from data_prep.errors import Failed
from lottery.bench import apart, measure
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.progress import Reporter
from lottery.tables import count_of

DTYPES = ("float32", "bfloat16", "float16")
COLUMNS = (
    Column("name", ""),
    Column("value", "median", ",.1f"),
    Column("low", "slowest", ",.1f"),
    Column("high", "fastest", ",.1f"),
    Column("unit", "unit"),
)


def bench_limits(repeats: int, quick: bool, reporter: Reporter) -> Sheet:
    """Rows of copying by one thread and by one for each core (GB/s), and of matrix products of float32, bfloat16 and float16
    (GFLOP/s), by one thread, by one for each core, and on the first GPU where there is one."""
    counts = list(dict.fromkeys([1, measure.cores()]))
    rows = []
    for threads in counts:
        reporter.say(f"copying with {count_of(threads, 'thread')}")
        rates = measure.copies(threads, repeats, measure.COPY_BYTES >> 4 if quick else measure.COPY_BYTES)
        rows.append(_row(f"copy, {count_of(threads, 'thread')}", "GB/s", rates))
    for threads in counts:
        reporter.say(f"multiplying with {count_of(threads, 'thread')}")
        rows += _products(f"{count_of(threads, 'thread')}", device="CPU:0", threads=threads, repeats=repeats, quick=quick)
    if measure.machine()["gpus"]:
        reporter.say("multiplying on GPU:0")
        rows += _products("GPU:0", device="GPU:0", threads=1, repeats=repeats, quick=quick)
    notes = [
        f"{measure.medians(repeats)}; copy: bytes that are read and written again, counted once",
        "product: of two square matrices, two operations for each multiplication with its addition",
    ]
    figure = Bars("name", "value", "GB/s and GFLOP/s", "low", "high")
    return Sheet("limits", "What this machine can do", measure.machine(), COLUMNS, rows, figure, notes)


def products(device: str, threads: int, repeats: int, quick: bool) -> dict[str, list[float]]:
    """GFLOP/s of each run, by dtype; in a process of its own, because threads are settled when TensorFlow starts."""
    from lottery.bench.parts.arithmetic import matmul
    from lottery.engine.devices import set_up_tensorflow
    from lottery.recipe import Train

    set_up_tensorflow(Train(threads=threads))
    made = {dtype: matmul(device, dtype, 256 if quick else None) for dtype in DTYPES}
    runs = measure.in_turn({dtype: work for dtype, (work, _) in made.items()}, repeats, Reporter(quiet=True))
    return {dtype: [made[dtype][1] / wall / 1e9 for wall, _ in timings] for dtype, timings in runs.items()}


def _products(name: str, **how: Any) -> list[dict[str, Any]]:
    try:
        found = apart.call("lottery.bench.limits:products", **how)
    except Failed as error:
        raise Failed(f"multiplying with {name}: {error}") from None
    return [_row(f"{dtype} product, {name}", "GFLOP/s", rates) for dtype, rates in found.items()]


def _row(name: str, unit: str, rates: list[float]) -> dict[str, Any]:
    return {"name": name, "unit": unit, "value": statistics.median(rates), "low": min(rates), "high": max(rates)}
