"""The same pruned trainings on each backend of Keras: are masks and losses the same? `python benchmarks/backends.py [STEPS]`.

Five networks start from the same weights, get the same batches, and are pruned to 80 % along a cubic.
"""

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import Input, Model, layers

from lottery.keras import Cubic, masks, prune

BACKENDS = ("tensorflow", "jax", "torch")
NETWORKS = ("dense", "convolution", "residual", "lstm", "transformer")
BATCH, SPARSITY, CLASSES = 32, 0.8, 10


def network(name: str) -> Model:
    """One of 14x14 images."""

    def normed(inputs: Any, *settings: int, activation: str = "relu") -> Any:
        convolved = layers.Conv2D(*settings, padding="same", use_bias=False)(inputs)
        return layers.Activation(activation)(layers.BatchNormalization(momentum=0.9)(convolved))

    x = images = Input((14, 14, 1))
    match name:
        case "dense":
            for size in (100, 50):
                x = layers.Dense(size, activation="relu")(layers.Flatten()(x))
        case "convolution":
            x = layers.Flatten()(layers.MaxPooling2D()(normed(normed(x, 8, 3), 16, 3)))
        case "residual":
            x = normed(x, 8, 3)
            for _ in range(2):
                x = layers.Activation("relu")(layers.Add()([x, normed(normed(x, 8, 3), 8, 3, activation="linear")]))
            x = layers.GlobalAveragePooling2D()(x)
        case "lstm":
            x = layers.LSTM(24)(layers.Reshape((14, 14))(x))
        case "transformer":
            x = layers.Reshape((4, 24))(layers.Conv2D(24, 7, 7)(x))
            for _ in range(2):
                x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 12)(x, x)]))
                hidden = layers.Dense(24)(layers.Dense(48, activation="gelu")(x))
                x = layers.LayerNormalization()(layers.Add()([x, hidden]))
            x = layers.GlobalAveragePooling1D()(x)
    return Model(images, layers.Dense(CLASSES)(x))


def train(name: str, steps: int, is_pruned: bool) -> dict[str, np.ndarray]:
    """The loss of each step, and masks and weights after the last."""
    keras.utils.set_random_seed(0)
    rng, model = np.random.default_rng(0), network(name)
    for variable in model.trainable_variables:
        if len(variable.shape) > 1:
            variable.assign(rng.normal(size=variable.shape) / np.sqrt(np.prod(variable.shape[:-1])))
    patterns, y = rng.normal(size=(CLASSES, 14, 14, 1)), rng.integers(0, CLASSES, BATCH * steps)
    x = (patterns[y] + 2 * rng.normal(size=(len(y), 14, 14, 1))).astype("float32")
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    if is_pruned:
        prune(model, SPARSITY, schedule=Cubic(end=steps * 3 // 4, every=10))
    losses = []
    for at in range(0, len(y), BATCH):
        losses.append(model.train_on_batch(x[at : at + BATCH], y[at : at + BATCH]))
        model.reset_metrics()
    kept = {f"mask {number}": bits for number, bits in enumerate(masks(model).values())}
    return {"loss": np.array(losses, float)} | kept | {f"weights {at}": one.numpy() for at, one in enumerate(model.weights)}


def compare(folder: Path) -> None:
    print(
        "network      backend    loss, first .. last  greatest difference: without masks  with masks  bits of masks that differ"
    )
    for name in NETWORKS:
        plain, first = (np.load(folder / f"{BACKENDS[0]}-{name}-{is_pruned}.npz") for is_pruned in (False, True))
        for backend in BACKENDS:
            dense, sparse = (np.load(folder / f"{backend}-{name}-{is_pruned}.npz") for is_pruned in (False, True))
            bits = [key for key in first if key.startswith("mask")]
            other = sum(int(np.count_nonzero(sparse[key] != first[key])) for key in bits)
            apart = [np.abs(one["loss"] - two["loss"]).max() for one, two in ((dense, plain), (sparse, first))]
            line = (
                f"{name:12} {backend:10} {sparse['loss'][0]:8.4f} .. {sparse['loss'][-1]:.4f} {apart[0]:36.1g} {apart[1]:11.1g}"
            )
            print(f"{line} {other:17} of {sum(first[key].size for key in bits)}", flush=True)


def main(steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for backend in BACKENDS:
            command = [sys.executable, __file__, str(steps), folder]
            subprocess.run(command, env=os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}, check=True)
        compare(Path(folder))


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    if len(sys.argv) < 3:
        main(steps)
    else:
        for name, is_pruned in itertools.product(NETWORKS, (False, True)):
            file = Path(sys.argv[2]) / f"{keras.backend.backend()}-{name}-{is_pruned}.npz"
            np.savez(file, **train(name, steps, is_pruned))
