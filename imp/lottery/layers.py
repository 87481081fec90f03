"""Layers of our own, where Keras's stock ones are slow or hard-code what a protocol must be able to set.

Variables keep the names and shapes of their stock counterparts, so weights are interchangeable.
"""

from typing import Any

import keras
import tensorflow as tf


class BatchNorm(keras.layers.Layer):
    """Batch normalisation by TensorFlow's fused kernel (Keras 3 composes it from seven operations).

    Statistics are those of the replica's own part of the batch; the moving ones are averaged over replicas when read.
    The moving variance takes up the unbiased batch variance. Input and output: float [batch, height, width, channels].
    """

    def __init__(self, momentum: float, epsilon: float, gamma: str | keras.initializers.Initializer, **options: Any):
        super().__init__(**options)
        self.momentum, self.epsilon, self.gamma_initializer = momentum, epsilon, gamma

    def build(self, shape: tuple[int | None, ...]) -> None:
        channels = (shape[-1],)
        self.gamma = self.add_weight(shape=channels, initializer=self.gamma_initializer, name="gamma")
        self.beta = self.add_weight(shape=channels, initializer="zeros", name="beta")
        self.moving_mean = self._moving(channels, "zeros", "moving_mean")
        self.moving_variance = self._moving(channels, "ones", "moving_variance")

    def _moving(self, shape: tuple[int | None], initializer: str, name: str) -> keras.Variable:
        """A statistic that each replica keeps for itself; `add_weight` cannot make one."""
        return keras.Variable(
            keras.initializers.get(initializer),
            shape,
            self.variable_dtype,
            trainable=False,
            synchronization="on_read",
            aggregation="mean",
            name=name,
        )

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if not training:
            scale = self.gamma * tf.math.rsqrt(self.moving_variance + self.epsilon)
            return inputs * scale + (self.beta - self.moving_mean * scale)
        outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs, self.gamma.value, self.beta.value, epsilon=self.epsilon, is_training=True
        )
        for moving, batch in ((self.moving_mean.value, mean), (self.moving_variance.value, variance)):
            moving.assign(moving * self.momentum + batch * (1 - self.momentum))
        return outputs


class PointwiseConv2D(keras.layers.Layer):
    """A 1x1 convolution without bias as one matrix product over [batch x height x width, channels].

    The kernel keeps the shape of a convolution, (1, 1, in, out).
    """

    def __init__(self, filters: int, initializer: str, **options: Any):
        super().__init__(**options)
        self.filters, self.initializer = filters, initializer

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.kernel = self.add_weight(shape=(1, 1, shape[-1], self.filters), initializer=self.initializer, name="kernel")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(inputs, [-1, inputs.shape[-1]])
        outputs = tf.matmul(flat, tf.reshape(self.kernel.value, [inputs.shape[-1], self.filters]))
        return tf.reshape(outputs, [-1, *inputs.shape[1:3], self.filters])

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*shape[:-1], self.filters)
