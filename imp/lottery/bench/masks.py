"""`imp bench masks`: what a mask costs where it is part of the compiled step, and where a Python callback puts it on after
each batch, as many programs do."""

import statistics
from functools import partial
from typing import Any

import keras
import numpy as np

from lottery import masks
from lottery.bench import measure
from lottery.bench.parts import trainers
from lottery.bench.parts.stock import stock_fit, stock_network
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.engine import devices
from lottery.engine.loop import Trainer
from lottery.progress import Reporter
from lottery.recipe import Recipe

IMAGES, SMALL = 6_400, 640
CLASSES = 10
GO_SECONDS = 1.0
COLUMNS = (
    Column("name", ""),
    Column("ms_per_step", "ms/step", ",.2f"),
    Column("low", "fastest", ",.2f"),
    Column("high", "slowest", ",.2f"),
    Column("mask_share", "mask's share", ".1%"),
)


class MaskAfterBatch(keras.callbacks.Callback):
    """Multiplies every kernel by its mask (path -> bool array) once a batch is over, by way of NumPy."""

    def __init__(self, kept: dict[str, np.ndarray]):
        super().__init__()
        self.kept = kept

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for layer in self.model.layers:
            if any(weight.path in self.kept for weight in layer.weights):
                values = zip(layer.weights, layer.get_weights(), strict=True)
                layer.set_weights(
                    [value * self.kept[weight.path] if weight.path in self.kept else value for weight, value in values]
                )


def bench_masks(recipe: Recipe, repeats: int, quick: bool, reporter: Reporter) -> Sheet:
    """Rows of our loop without a mask and with one, and of Keras's `fit` without and with the callback, on the same network."""
    train, size = recipe.train, recipe.data.size
    names = devices.set_up_tensorflow(train)
    images = max(SMALL if quick else IMAGES, 2 * train.batch)
    feed = trainers.noise_feed(images, CLASSES, recipe.data, devices.on_cpu(names))
    trainer = partial(Trainer, recipe, names, lambda strategy: feed)
    masked = trainer(lambda path, shape: masks.in_scope(path, shape, "kernels"))
    trainers.prune_half(masked)
    steps = trainers.steps(masked, 0.1 if quick else GO_SECONDS)
    fit = partial(stock_fit, train=train, images=steps * train.batch, size=size, classes=CLASSES, xla=masked.xla)
    build = partial(stock_network, recipe.model, size, CLASSES, train.precision)
    plain, hindered = build(), build()
    contenders = {
        "in the compiled step": ("our loop", trainers.goes(trainer(), steps), trainers.goes(masked, steps)),
        "by a callback after the batch": ("Keras fit", fit(plain), fit(hindered, callbacks=[MaskAfterBatch(_half(hindered))])),
    }
    work: dict[str, measure.Work] = {}
    for name, (loop, without, with_mask) in contenders.items():
        work |= {f"{loop}, no mask": without, f"{loop}, mask {name}": with_mask}
    runs = {
        name: [1000 * wall / steps for wall, _ in timings] for name, timings in measure.in_turn(work, repeats, reporter).items()
    }
    rows = []
    for without, with_mask in zip(*[iter(runs)] * 2, strict=True):
        rows += [_row(without, runs[without], None), _row(with_mask, runs[with_mask], runs[without])]
    title = f"A mask of half of each kernel: {recipe.model.name}, {size}x{size}, batch {train.batch}, {train.precision}"
    notes = ["mask's share: of the step's time, against the row above it", measure.medians(repeats)]
    figure = Bars("name", "ms_per_step", "ms a step", "low", "high")
    return Sheet("masks", title, measure.machine(), COLUMNS, rows, figure, notes)


def _half(network: keras.Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        weight.path: rng.random(weight.shape) < 0.5 for weight in network.trainable_weights if weight.path.endswith("kernel")
    }


def _row(name: str, found: list[float], without: list[float] | None) -> dict[str, Any]:
    median = statistics.median(found)
    share = None if without is None else 1 - statistics.median(without) / median
    return {"name": name, "ms_per_step": median, "low": min(found), "high": max(found), "mask_share": share}
