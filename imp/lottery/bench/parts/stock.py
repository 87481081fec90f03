"""What a user of Keras has: our networks made of its stock layers, trained by `fit`."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config

from lottery.bench.parts.noise import shape_of
from lottery.engine import models
from lottery.engine.models.stock import rebuild
from lottery.engine.precision import policy
from lottery.recipe import Model, Train


def stock_network(model: Model, size: int, classes: int, precision: str) -> keras.Model:
    """Keras's own network where it has the one that `model` says, or else ours of stock layers.

    It has the variables of ours. Raises ValueError where Keras does not build it at that size.
    """
    with policy(precision):
        if model.name == "mobilenet_v2" and model.stem == "standard":
            return keras.applications.MobileNetV2(
                shape_of(size), model.alpha, weights=None, classes=classes, classifier_activation=None
            )
        return rebuild(models.build(model, size, classes))


def stock_fit(
    network: keras.Model,
    train: Train,
    images: int,
    size: int,
    classes: int,
    xla: bool,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> Callable[[], object]:
    """A function that fits `network` to `images` images once. They are tensors on the host, in -1 .. 1 already: of NumPy
    arrays `fit` would make tensors at every call, which takes a small network's time again."""
    rng = np.random.default_rng(0)
    with tf.device("CPU:0"):
        inputs = tf.constant(rng.uniform(-1, 1, (images, *shape_of(size))).astype(np.float32))
        labels = tf.constant(rng.integers(0, classes, images, np.int32))
    network.compile(
        keras.optimizers.SGD(train.learning_rate, train.momentum, train.nesterov),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=xla,
    )

    def fit() -> None:
        with _any_order():
            network.fit(inputs, labels, train.batch, epochs=1, verbose=0, callbacks=list(callbacks))

    return fit


@contextlib.contextmanager
def _any_order() -> Iterator[None]:
    """Without the determinism that our loop asks of TensorFlow: few users of Keras do, and `fit` is slower with it."""
    config.disable_op_determinism()
    try:
        yield
    finally:
        tf.config.experimental.enable_op_determinism()
