"""Copying memory and multiplying matrices: `python benchmarks/limits.py`."""

from concurrent.futures import ThreadPoolExecutor

import turns
from harness import Bench, measurement, rate

from lottery import cli
from lottery.base.progress import Reporter, count_of
from lottery.bench import timing
from lottery.bench.harness import machine
from lottery.bench.sheet import Column, bars

DTYPES = ("float32", "bfloat16", "float16")
COLUMNS = (Column("name", ""), *rate("value", "median", ",.1f"), Column("unit", "unit"))
COPY_BYTES = 1 << 28


@measurement(repeats=7)
def limits(bench: Bench) -> None:
    """How fast this machine copies and multiplies, which everything else is measured against."""
    places = [(count_of(threads, "thread"), "CPU:0", threads) for threads in dict.fromkeys([1, timing.cores()])]
    for name, _, threads in places:
        with bench.row(f"copy, {name}"):
            rates = copies(threads, bench.repeats, COPY_BYTES >> 4 if bench.quick else COPY_BYTES)
            bench.rows.append({"name": f"copy, {name}", **timing.spread("value", rates), "unit": "GB/s"})
    for name, device, threads in [*places, *([("GPU:0", "GPU:0", 1)] if machine()["gpus"] else [])]:
        with bench.row(f"products, {name}"):
            side = 256 if bench.quick else None
            by_dtype = bench.call(products, alone=True, device=device, threads=threads, side=side, repeats=bench.repeats)
            for dtype, rates in by_dtype.items():
                bench.rows.append({"name": f"{dtype} product, {name}", **timing.spread("value", rates), "unit": "GFLOP/s"})
    bench.sheet(
        "What this machine can do",
        COLUMNS,
        bars(bench.rows, "name", "value", "GB/s and GFLOP/s", spread=True),
        f"{bench.medians}; copy: bytes that are read and written again, counted once",
        "product: of two square matrices, two operations for each multiplication with its addition",
    )


def copies(threads: int, repeats: int, size: int) -> list[float]:
    """GB that this machine copies from one place in memory to another in a second, by so many threads: of each run."""
    import numpy as np

    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    parts = [slice(index * size // threads, (index + 1) * size // threads) for index in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = turns.runs(lambda: list(pool.map(lambda part: np.copyto(target[part], source[part]), parts)), repeats)
    return [size / wall / 1e9 for wall in seconds]


def products(device: str, threads: int, side: int | None, repeats: int) -> dict[str, list[float]]:
    """GFLOP/s of each run, by dtype."""
    from lottery.engine.devices import set_up_tensorflow
    from lottery.experiment.recipe import Train

    set_up_tensorflow(Train(threads=threads))
    contenders = {dtype: matmul(device, dtype, side) for dtype in DTYPES}
    walls = turns.in_turn({dtype: work for dtype, (work, _) in contenders.items()}, repeats, Reporter(quiet=True))
    return {dtype: [contenders[dtype][1] / wall / 1e9 for wall in seconds] for dtype, seconds in walls.items()}


def matmul(device: str, dtype: str = "float32", side: int | None = None) -> tuple[turns.Work, int]:
    """A function that multiplies two square matrices on `device`, large ones unless `side` says so, and how many floating point
    operations that is."""
    import tensorflow as tf

    side = side or (2048 if device.startswith("CPU") else 8192)
    with tf.device(device):
        factor = tf.cast(tf.random.stateless_uniform([side, side], seed=(0, 0)), dtype)
    product = tf.function(lambda: tf.matmul(factor, factor)[0, 0])
    return lambda: product().numpy(), 2 * side**3


if __name__ == "__main__":
    cli.main(limits)
