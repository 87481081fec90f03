"""What masks cost in `model.fit`, on the backend of Keras: steps with and without them, in turn. Medians of the ratios, and
quartiles. `KERAS_BACKEND=jax python benchmarks/fit_cost.py [ROUNDS]`."""

import os
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from lottery.keras import prune

BATCH = 128
SECONDS, MOST_STEPS = 0.5, 300  # of a fit
RATE = 1e-6  # so that the one batch is not learnt by heart, which would make gradients too small for fast arithmetic


class Cost(NamedTuple):
    """Of a step, in milliseconds: by the clock, and of all cores."""

    time: float
    cpu: float


def convnet() -> keras.Model:
    """The network of TFMOT's guide to pruning with Keras."""
    layers = [keras.layers.Conv2D(12, 3, activation="relu"), keras.layers.MaxPooling2D(), keras.layers.Flatten()]
    return keras.Sequential([keras.Input((28, 28, 1)), *layers, keras.layers.Dense(10)])


def lenet() -> keras.Model:
    layers = [keras.layers.Dense(size, activation="relu") for size in (300, 100)]
    return keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), *layers, keras.layers.Dense(10)])


def mobilenet() -> keras.Model:
    return keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=10, classifier_activation=None)


def training(build: Callable[[], keras.Model], optimizer: keras.optimizers.Optimizer, sparsity: float) -> Callable[[int], Cost]:
    """A function that trains for so many steps and returns what one took."""
    model = build()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    if sparsity:
        prune(model, sparsity)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(BATCH, *model.input_shape[1:])).astype("float32")
    labels = rng.integers(0, 10, BATCH)

    def run(steps: int) -> Cost:
        given = np.tile(images, (steps, 1, 1, 1)), np.tile(labels, steps)
        began = time.perf_counter(), time.process_time()
        model.fit(*given, BATCH, shuffle=False, verbose=0)
        ended = time.perf_counter(), time.process_time()
        return Cost(*(1e3 * (end - begin) / steps for begin, end in zip(began, ended, strict=True)))

    return run


def main(rounds: int) -> None:
    print(f"{keras.backend.backend()}, {os.cpu_count()} cores, batches of {BATCH}, {rounds} pairs of fits")
    for build in (convnet, lenet, mobilenet):
        for optimizer in (keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.Muon):
            settings = {"momentum": 0.9} if optimizer is keras.optimizers.SGD else {}
            dense, sparse = (training(build, optimizer(RATE, **settings), sparsity) for sparsity in (0.0, 0.9))
            dense(2), sparse(2)  # which compiles both
            steps = min(MOST_STEPS, int(1e3 * SECONDS / dense(10).time) + 1)
            pairs = [
                (sparse(steps), dense(steps)) if index % 2 else (dense(steps), sparse(steps))[::-1] for index in range(rounds)
            ]
            plain = np.median([without.time for _, without in pairs])
            line = f"{build.__name__:9} {optimizer.__name__:4} {plain:7.2f} ms a step, {steps} a fit"
            for place, name in enumerate(Cost._fields):
                ratios = [masked[place] / without[place] for masked, without in pairs]
                low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
                line += f", {name} x {middle:.3f} ({low:.3f} .. {high:.3f})"
            print(line, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
