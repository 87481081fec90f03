"""Numbers of half the width: the dtype policy that networks are built under, and the scaling that keeps float16 alive."""

import contextlib
import math
from collections.abc import Iterator

import keras
import tensorflow as tf

from lottery.engine.optimizers import assign

INITIAL_SCALE = 2.0**15
HIGHEST_SCALE = 2.0**24
GROWTH_STEPS = 2000


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """Networks built within have the Keras dtype policy of `train.precision`; that of tf32 is float32."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32" if name == "tf32" else name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


class LossScale:
    """Dynamic loss scaling (Micikevicius et al. 2018, section 3.2): halved at an overflow, doubled after 2,000 steps without.

    Keras's own looks for overflows on the first replica alone; what `update` is told must hold for all of them.
    """

    def __init__(self) -> None:
        self._scale = tf.Variable(INITIAL_SCALE, trainable=False)
        self._calm = tf.Variable(0, dtype=tf.int64, trainable=False)  # int32 would not live on a GPU
        self.state = {"loss_scale": self._scale, "steps_since_overflow": self._calm}

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * self._scale

    def unscaled(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        return [gradient / self._scale for gradient in gradients]

    def update(self, finite: tf.Tensor) -> tf.Tensor:
        """Take note of whether this step's gradient was `finite` (bool). Returns 0.0 where it was, else 1.0, or infinity where
        no smaller scale can help."""
        calm = tf.where(finite, self._calm + 1, tf.zeros([], tf.int64))
        grown = calm >= GROWTH_STEPS
        factor = tf.where(finite, tf.where(grown, 2.0, 1.0), 0.5)
        overflow = tf.where(finite, 0.0, tf.where(self._scale > 1.0, 1.0, math.inf))
        assign(self._scale, tf.clip_by_value(self._scale * factor, 1.0, HIGHEST_SCALE))
        assign(self._calm, tf.where(grown, tf.zeros([], tf.int64), calm))
        return overflow


def all_finite(gradients: list[tf.Tensor]) -> tf.Tensor:
    """Whether every element of every gradient is (a scalar bool)."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
