"""Our training loop as something to be measured: on noise, for so many steps a call."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from lottery.bench import timing
from lottery.bench.noise import CLASSES, make_noise
from lottery.engine import devices
from lottery.engine.loop import Trainer
from lottery.engine.memory import MemoryFeed
from lottery.experiment.recipe import Recipe
from lottery.pruning import masks


class OnNoise:
    """Trainings of a recipe's network, all on the same made-up images, which are resident on the devices of these `names`."""

    def __init__(self, recipe: Recipe, names: Sequence[str], images: int, classes: int = CLASSES):
        self.recipe, self.names = recipe, names
        with tempfile.TemporaryDirectory() as place:
            manifest = make_noise(Path(place), images, recipe.data.size, classes)
            strategy = tf.distribute.get_strategy()
            self.feed = MemoryFeed(Path(place), manifest, recipe.data, strategy, on_host=devices.on_cpu(names))

    def trainer(self) -> Trainer:
        """A training loop that knows of no mask."""
        return Trainer(self.recipe, self.names, lambda strategy: self.feed)

    def masked(self) -> Trainer:
        """A training loop under a random mask of half of each kernel."""
        kernels = partial(masks.in_scope, scope="kernels")
        trainer = Trainer(self.recipe, self.names, lambda strategy: self.feed, kernels)
        rng = np.random.default_rng(0)
        trainer.load(trainer.state(0), {path: rng.random(kept.shape) < 0.5 for path, kept in trainer.masks.items()})
        return trainer


def stepping(trainer: Trainer) -> Callable[[int], None]:
    """A function that takes the next so many steps, within one epoch where they fit into one."""
    position = 0

    def take(count: int) -> None:
        nonlocal position
        left = trainer.steps_per_epoch - position % trainer.steps_per_epoch
        position += left if left < count <= trainer.steps_per_epoch else 0
        trainer.advance(position, position + count, order_seed=0)
        position += count

    return take


@contextlib.contextmanager
def peak_memory(device: str) -> Iterator[Callable[[], int]]:
    """As `timing.peak_memory`, of the device that trains."""
    if device.startswith("CPU"):
        with timing.peak_memory() as peak:
            yield peak
        return
    tf.config.experimental.reset_memory_stats(device)
    before = tf.config.experimental.get_memory_info(device)["current"]
    yield lambda: tf.config.experimental.get_memory_info(device)["peak"] - before
