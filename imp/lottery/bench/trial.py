"""One row of `imp bench step`, in the process that is its own."""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from lottery import masks
from lottery.bench import measure
from lottery.bench.arithmetic import matmul, training_flops
from lottery.bench.noise import make_noise
from lottery.bench.step import Case, Row
from lottery.bench.stock import stock_fit, stock_network
from lottery.engine import devices
from lottery.engine.loop import Trainer
from lottery.engine.memory import MemoryFeed
from lottery.progress import Reporter
from lottery.recipe import Data

GO_SECONDS = 1.0  # what it takes `fit` to start, some 50 ms, is to be little beside it


def measure_case(case: Case, reporter: Reporter) -> Row:
    """Train the network of `case` under a mask, without one, without one again, and by Keras's `fit`, each in its turn, and
    multiply large matrices in another."""
    recipe = case.recipe()
    names = devices.set_up_tensorflow(recipe.train)
    keras.utils.set_random_seed(0)
    feed = _feed(case, recipe.data, devices.on_cpu(names))
    trainer = partial(Trainer, recipe, names, lambda strategy: feed)
    with _peak_memory(names[0]) as peak:
        masked = trainer(lambda path, shape: masks.in_scope(path, shape, "kernels"))
        _prune_half(masked)
        steps = _steps(masked)
        peak_memory_bytes = peak()
    network = stock_network(recipe.model, case.size, case.classes, case.precision)
    images = steps * case.batch
    product, product_flops = matmul(names[0])
    runs = measure.in_turn(
        {
            "masked": _goes(masked, steps),
            "unmasked": _goes(trainer(), steps),
            "control": _goes(trainer(), steps),
            "matmul": product,
            "fit": stock_fit(network, recipe.train, images, case.size, case.classes, masked.xla),
        },
        case.repeats,
        reporter,
        there_and_back=True,
    )
    walls = {name: [wall for wall, _ in timings] for name, timings in runs.items()}
    seconds, fit_seconds, matmul_seconds = (statistics.median(walls[name]) for name in ("masked", "fit", "matmul"))
    return Row(
        **vars(case),
        images_per_s=images / seconds,
        low=images / max(walls["masked"]),
        high=images / min(walls["masked"]),
        ms_per_step=1000 * seconds / steps,
        peak_memory_bytes=peak_memory_bytes,
        keras_fit_images_per_s=images / fit_seconds,
        keras_ratio=fit_seconds / seconds,
        mask_overhead=_overhead(walls["masked"], walls["unmasked"]),
        control_overhead=_overhead(walls["control"], walls["unmasked"]),
        peak_share=training_flops(network, images) / seconds / (product_flops / matmul_seconds),
        machine=measure.machine(),
    )


def _feed(case: Case, data: Data, on_cpu: bool) -> MemoryFeed:
    with tempfile.TemporaryDirectory() as place:
        manifest = make_noise(Path(place), case.images, case.size, case.classes)
        return MemoryFeed(Path(place), manifest, data, tf.distribute.get_strategy(), on_host=on_cpu)


@contextlib.contextmanager
def _peak_memory(device: str) -> Iterator[Callable[[], int]]:
    """As `measure.peak_memory`, of the device that trains."""
    if device.startswith("CPU"):
        with measure.peak_memory() as peak:
            yield peak
        return
    tf.config.experimental.reset_memory_stats(device)
    before = tf.config.experimental.get_memory_info(device)["current"]
    yield lambda: tf.config.experimental.get_memory_info(device)["peak"] - before


def _prune_half(trainer: Trainer) -> None:
    rng = np.random.default_rng(0)
    trainer.load(trainer.state(0), {path: rng.random(kept.shape) < 0.5 for path, kept in trainer.masks.items()})


def _steps(trainer: Trainer) -> int:
    """As many steps as take `GO_SECONDS`, or all of an epoch. Taking them, the loop finds how many to compute in a call."""
    trainer.advance(0, 1, 0)  # compiles
    steps, seconds = 1, 0.0
    while seconds < GO_SECONDS and steps < trainer.steps_per_epoch:
        steps = min(2 * steps, trainer.steps_per_epoch)
        began = time.perf_counter()
        trainer.advance(0, steps, 0)
        seconds = time.perf_counter() - began
    return steps


def _goes(trainer: Trainer, steps: int) -> measure.Work:
    """A function that takes the first `steps` steps of the next epoch."""
    epochs = iter(range(1_000_000))

    def go() -> None:
        first = next(epochs) * trainer.steps_per_epoch
        trainer.advance(first, first + steps, order_seed=0)

    return go


def _overhead(walls: list[float], without: list[float]) -> float:
    """The median over the pairs, of which each was run one straight after the other."""
    return statistics.median(wall / plain for wall, plain in zip(walls, without, strict=True)) - 1
