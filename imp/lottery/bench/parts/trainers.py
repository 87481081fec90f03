"""Our training loop as something to be measured: on noise, for so many steps a go."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from lottery.bench import measure
from lottery.bench.parts.noise import make_noise
from lottery.engine.loop import Trainer
from lottery.engine.memory import MemoryFeed
from lottery.recipe import Data


def noise_feed(images: int, classes: int, data: Data, on_cpu: bool) -> MemoryFeed:
    """So many made-up images, resident."""
    with tempfile.TemporaryDirectory() as place:
        manifest = make_noise(Path(place), images, data.size, classes)
        return MemoryFeed(Path(place), manifest, data, tf.distribute.get_strategy(), on_host=on_cpu)


@contextlib.contextmanager
def peak_memory(device: str) -> Iterator[Callable[[], int]]:
    """As `measure.peak_memory`, of the device that trains."""
    if device.startswith("CPU"):
        with measure.peak_memory() as peak:
            yield peak
        return
    tf.config.experimental.reset_memory_stats(device)
    before = tf.config.experimental.get_memory_info(device)["current"]
    yield lambda: tf.config.experimental.get_memory_info(device)["peak"] - before


def prune_half(trainer: Trainer) -> None:
    """Put a random mask of half of each kernel in."""
    rng = np.random.default_rng(0)
    trainer.load(trainer.state(0), {path: rng.random(kept.shape) < 0.5 for path, kept in trainer.masks.items()})


def steps(trainer: Trainer, seconds: float) -> int:
    """As many steps as take so long, or all of an epoch. Taking them, the loop finds how many to compute in a call."""
    trainer.advance(0, 1, 0)  # compiles
    count, took = 1, 0.0
    while took < seconds and count < trainer.steps_per_epoch:
        count = min(2 * count, trainer.steps_per_epoch)
        began = time.perf_counter()
        trainer.advance(0, count, 0)
        took = time.perf_counter() - began
    return count


def goes(trainer: Trainer, count: int) -> measure.Work:
    """A function that takes the first `count` steps of the next epoch."""
    epochs = iter(range(1_000_000))

    def go() -> None:
        first = next(epochs) * trainer.steps_per_epoch
        trainer.advance(first, first + count, order_seed=0)

    return go
