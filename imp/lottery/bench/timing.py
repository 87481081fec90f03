"""What a measurement takes: its spread over runs, its memory, its cores."""

import contextlib
import ctypes
import gc
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """The columns `name`, `low` and `high` of a row: median, least and largest."""
    return {name: statistics.median(values), "low": min(values), "high": max(values)}


@contextlib.contextmanager
def peak_memory(device: str = "CPU:0") -> Iterator[Callable[[], int]]:
    """Yields a function that says by how many bytes the memory of this process, or of its GPU, has grown at most."""
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
