"""Training loops to be measured: ours, on noise, and Keras's `fit` with its stock layers."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import keras
import noise
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config

from lottery.engine import devices, models, signature
from lottery.engine.feed import MemoryFeed
from lottery.engine.loop import Trainer
from lottery.engine.models import policy
from lottery.engine.stock import rebuild
from lottery.experiment.recipe import Model, Recipe, Train
from lottery.pruning import masks

Take = Callable[[int], None]  # takes the next so many steps


def on_noise(recipe: Recipe, names: Sequence[str], images: int) -> Callable[..., Trainer]:
    """A function that makes training loops of the recipe's network, all on the same made-up examples, resident on the
    devices of these `names`: one that knows of no mask, or `masked`, with a random half of each kernel pruned."""
    with tempfile.TemporaryDirectory() as place:
        manifest = noise.make_noise(Path(place), images, recipe.records())
        feed = MemoryFeed(Path(place), manifest, recipe.data, tf.distribute.get_strategy(), on_host=devices.on_cpu(names))

    def make(masked: bool = False) -> Trainer:
        if not masked:
            return Trainer(recipe, names, lambda strategy: feed)
        trainer = Trainer(recipe, names, lambda strategy: feed, partial(masks.in_scope, scope="kernels"))
        rng = np.random.default_rng(0)
        trainer.load(trainer.state(0), {path: rng.random(kept.shape) < 0.5 for path, kept in trainer.masks.items()})
        return trainer

    return make


def stepping(trainer: Trainer) -> Take:
    """Takes the next so many steps, within one epoch where they fit into one."""
    position = 0

    def take(count: int) -> None:
        nonlocal position
        left = trainer.steps_per_epoch - position % trainer.steps_per_epoch
        position += left if left < count <= trainer.steps_per_epoch else 0
        trainer.advance(position, position + count, order_seed=0)
        position += count

    return take


def stock_network(model: Model, size: int, precision: str) -> keras.Model:
    """Keras's own network where it has the one that `model` says, or else ours of stock layers. It has the variables of
    ours. Raises ValueError where Keras does not build it at that size."""
    with policy(precision):
        if model.name == "mobilenet_v2" and model.stem == "standard" and model.padding == "same":
            return keras.applications.MobileNetV2(
                (size, size, 3), model.alpha, weights=None, classes=noise.CLASSES, classifier_activation=None
            )
        return rebuild(models.build(model, signature.images(size, noise.CLASSES)))


def stock_fit(recipe: Recipe, images: int, xla: bool, callbacks: Sequence[keras.callbacks.Callback] = ()) -> Callable[[], None]:
    """A function that fits Keras's network of `recipe` to so many images of noise once. They are tensors on the host, in
    -1 .. 1 already: of NumPy arrays `fit` would make tensors at every call, which takes a small network's time again."""
    network = stock_network(recipe.model, recipe.data.size, recipe.train.precision)
    rng = np.random.default_rng(0)
    with tf.device("CPU:0"):
        inputs = tf.constant(rng.uniform(-1, 1, (images, *network.input_shape[1:])).astype(np.float32))
        labels = tf.constant(rng.integers(0, network.output_shape[-1], images, np.int32))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(optimizer(recipe.train), loss, metrics=["accuracy"], jit_compile=xla)

    def fit() -> None:
        config.disable_op_determinism()  # which our loop asks for; few users of Keras do, and `fit` is slower with it
        try:
            network.fit(inputs, labels, recipe.train.batch, epochs=1, verbose=0, callbacks=list(callbacks))
        finally:
            tf.config.experimental.enable_op_determinism()

    return fit


def optimizer(train: Train) -> keras.optimizers.Optimizer:
    """Keras's own."""
    if train.optimizer == "adam":
        return keras.optimizers.Adam(train.learning_rate)
    return keras.optimizers.SGD(train.learning_rate, train.momentum, train.nesterov)
