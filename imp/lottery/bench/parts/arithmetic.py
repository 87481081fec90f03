"""How much a network computes, and how much this machine could."""

from collections.abc import Callable

import keras
import tensorflow as tf


def multiply_adds(network: keras.Model) -> int:
    """Multiplications, each with its addition, of one image's way through the convolutions and dense layers of `network`.

    Every weight of a kernel is used once at each position of its layer's output.
    """
    return sum(
        weight.shape.num_elements() * _positions(layer.output.shape)
        for layer in network.layers
        for weight in layer.trainable_weights
        if weight.path.endswith("kernel")
    )


def training_flops(network: keras.Model, batch: int) -> int:
    """Floating point operations of a training step: forwards, and backwards once for the inputs and once for the weights."""
    return 3 * 2 * multiply_adds(network) * batch


def matmul(device: str, dtype: str = "float32", side: int | None = None) -> tuple[Callable[[], object], int]:
    """A function that multiplies two square matrices on `device`, large ones unless `side` says so, and how many floating point
    operations that is."""
    side = side or (2048 if device.startswith("CPU") else 8192)
    with tf.device(device):
        factor = tf.cast(tf.random.stateless_uniform([side, side], seed=(0, 0)), dtype)

    @tf.function
    def product() -> tf.Tensor:
        return tf.matmul(factor, factor)[0, 0]

    return lambda: product().numpy(), 2 * side**3


def _positions(shape: tuple[int | None, ...]) -> int:
    count = 1
    for extent in shape[1:-1]:
        count *= extent or 1
    return count
