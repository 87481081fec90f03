"""Layers of our own, where Keras's stock ones are slow or hard-code what a protocol must be able to set. Variables keep the
names and shapes of their stock counterparts, so weights are interchangeable. All compute in the dtype policy in force;
BatchNorm's variables and statistics stay in the dtype of variables."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from lottery.engine.scopes import part

FEW_PIXELS = 4  # of an image, up to which oneDNN's gradient of a depthwise kernel is slow

Shape = tuple[Any, ...]  # of int, and None for the batch
Normalised = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


class BatchNorm(keras.layers.Layer):
    """Batch normalisation (Ioffe & Szegedy 2015) by TensorFlow's fused kernel (Keras 3 composes it from seven operations).
    Statistics are those of the replica's own part of the batch; the training step averages the moving ones over replicas. The
    moving variance takes up the unbiased batch variance. Input and output: float [batch, height, width, channels]."""

    def __init__(self, momentum: float, epsilon: float, gamma: str | keras.initializers.Initializer, **options: Any):
        super().__init__(**options)
        self.momentum, self.epsilon, self.gamma_initializer = momentum, epsilon, gamma

    def build(self, shape: Shape) -> None:
        channels = (shape[-1],)
        self.gamma = self.add_weight(shape=channels, initializer=self.gamma_initializer, autocast=False, name="gamma")
        self.beta = self.add_weight(shape=channels, initializer="zeros", autocast=False, name="beta")
        # Each replica may assign these, which `add_weight` cannot make.
        own: Any = {"trainable": False, "autocast": False, "synchronization": "on_read", "aggregation": "only_first_replica"}
        zeros, ones = keras.initializers.Zeros(), keras.initializers.Ones()
        self.moving_mean = keras.Variable(zeros, channels, self.variable_dtype, name="moving_mean", **own)
        self.moving_variance = keras.Variable(ones, channels, self.variable_dtype, name="moving_variance", **own)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if not training:
            scale = self.gamma * tf.math.rsqrt(self.moving_variance + self.epsilon)
            offset = self.beta - self.moving_mean * scale
            return tf.cast(tf.cast(inputs, scale.dtype) * scale + offset, inputs.dtype)
        outputs, mean, variance = self.normalise(inputs, self.gamma.value, self.beta.value)
        for moving, batch in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(moving.value * self.momentum + batch * (1 - self.momentum))
        return outputs

    def normalise(self, inputs: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Normalised:
        """The outputs, and the mean and the unbiased variance of each channel."""
        if inputs.dtype == tf.float64:  # for which there is no fused kernel
            return self._compose(inputs, gamma, beta, lambda sums: sums, 1)
        return tf.compat.v1.nn.fused_batch_norm(inputs, gamma, beta, epsilon=self.epsilon, is_training=True)

    def _compose(
        self, inputs: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, total: Callable[[tf.Tensor], tf.Tensor], replicas: int
    ) -> Normalised:
        """`normalise` over the batches of all `replicas`, of which `total` adds up a tensor. The variance is taken about the
        mean of all: a mean of squares less a squared mean loses digits."""
        values = tf.cast(inputs, self.variable_dtype)
        count = tf.cast(tf.size(values) // values.shape[-1] * replicas, values.dtype)
        mean = total(tf.reduce_sum(values, [0, 1, 2])) / count
        centred = values - mean
        variance = total(tf.reduce_sum(centred * centred, [0, 1, 2])) / count
        outputs = centred * (gamma * tf.math.rsqrt(variance + self.epsilon)) + beta
        return tf.cast(outputs, inputs.dtype), mean, variance * (count / tf.maximum(count - 1, 1))


class SynchronisedBatchNorm(BatchNorm):
    """BatchNorm by the statistics of the whole batch, whatever the number of replicas it is divided among: slower, and the
    same result on any number. Call it for training within a replica only."""

    def normalise(self, inputs: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Normalised:
        context = tf.distribute.get_replica_context()
        return self._compose(inputs, gamma, beta, partial(context.all_reduce, "SUM"), context.num_replicas_in_sync)


class PointwiseConv2D(keras.layers.Layer):
    """A 1x1 convolution without bias as one matrix product over [batch x height x width, channels]. The kernel keeps the shape
    of a convolution, (1, 1, in, out)."""

    def __init__(self, filters: int, initializer: str, **options: Any):
        super().__init__(**options)
        self.filters, self.initializer = filters, initializer

    def build(self, shape: Shape) -> None:
        self.kernel = self.add_weight(shape=(1, 1, shape[-1], self.filters), initializer=self.initializer, name="kernel")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(inputs, [-1, inputs.shape[-1]])
        outputs = tf.matmul(flat, tf.reshape(self.kernel.value, [inputs.shape[-1], self.filters]))
        return tf.reshape(outputs, [-1, *inputs.shape[1:3], self.filters])

    def compute_output_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], self.filters)


class DepthwiseConv2D(keras.layers.DepthwiseConv2D):
    """Keras's, of one filter a channel and without bias, with a faster gradient of its kernel for few pixels on CPUs."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return depthwise(inputs, self.kernel.value, self.strides[0], self.padding)


def depthwise(inputs: tf.Tensor, kernel: tf.Tensor, stride: int, padding: str) -> tf.Tensor:
    """The depthwise convolution of images [batch, height, width, channels] with a kernel [size, size, channels, 1]; `padding`
    is "same" or "valid"."""

    def convolved(inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.depthwise_conv2d(inputs, kernel, [1, stride, stride, 1], padding.upper())

    @tf.custom_gradient
    def with_own_gradient(inputs: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]:
        def backward(upstream: tf.Tensor) -> list[tf.Tensor]:
            settings = {"strides": [1, stride, stride, 1], "padding": padding.upper()}
            of_inputs = tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
                input_sizes=tf.shape(inputs), filter=kernel, out_backprop=upstream, **settings
            )
            return [of_inputs, _kernel_gradient(inputs, upstream, kernel.shape[0], stride, padding)]

        return convolved(inputs, kernel), backward

    small = inputs.shape[1] * inputs.shape[2] <= FEW_PIXELS
    return (with_own_gradient if small and not tf.config.list_logical_devices("GPU") else convolved)(inputs, kernel)


@tf.function(jit_compile=True, autograph=False)
@part("backward")
def _kernel_gradient(inputs: tf.Tensor, upstream: tf.Tensor, size: int, stride: int, padding: str) -> tf.Tensor:
    """The gradient of a depthwise kernel: for each of its places, the sum over all pairs of pixels that meet there."""

    def meeting(place: int, pixels: int, outputs: int) -> tuple[slice, slice]:
        offset = place - (max((outputs - 1) * stride + size - pixels, 0) // 2 if padding == "same" else 0)
        inside = [output for output in range(outputs) if 0 <= output * stride + offset < pixels]
        if not inside:
            return slice(0), slice(0)
        first, last = inside[0], inside[-1]
        return slice(first * stride + offset, last * stride + offset + 1, stride), slice(first, last + 1)

    rows, columns = ([meeting(place, inputs.shape[axis], upstream.shape[axis]) for place in range(size)] for axis in (1, 2))
    exact = tf.float32 if inputs.dtype.size < 4 else inputs.dtype
    sums = [
        tf.reduce_sum(tf.cast(inputs[:, row, column], exact) * tf.cast(upstream[:, outputs, beside], exact), [0, 1, 2])
        for row, outputs in rows
        for column, beside in columns
    ]
    return tf.cast(tf.reshape(tf.stack(sums), [size, size, inputs.shape[3], 1]), inputs.dtype)


class GroupedConv2D(keras.layers.Layer):
    """A convolution without bias whose channels are divided into `groups` that do not meet. Keras's own Conv2D takes 270 times
    as long with groups on a CPU. The kernel has the shape of Keras's, (size, size, in / groups, out)."""

    def __init__(self, filters: int, size: int, stride: int, groups: int, initializer: str, **options: Any):
        self.padding = options.pop("padding", "same")  # no argument: its default would be in the fingerprint of all networks
        super().__init__(**options)
        self.filters, self.size, self.stride, self.groups, self.initializer = filters, size, stride, groups, initializer

    def build(self, shape: Shape) -> None:
        kernel = (self.size, self.size, shape[-1] // self.groups, self.filters)
        self.kernel = self.add_weight(shape=kernel, initializer=self.initializer, name="kernel")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return grouped(inputs, self.kernel.value, self.stride, self.groups, self.padding)


def grouped(inputs: tf.Tensor, kernel: tf.Tensor, stride: int, groups: int, padding: str) -> tf.Tensor:
    """The convolution of `GroupedConv2D`."""
    if inputs.dtype in (tf.float32, tf.bfloat16) or tf.config.list_logical_devices("GPU"):
        return tf.nn.conv2d(inputs, kernel, stride, padding.upper())
    # The CPU kernels of other dtypes have no gradients with groups.
    parts = zip(tf.split(inputs, groups, axis=-1), tf.split(kernel, groups, axis=-1), strict=True)
    return tf.concat([tf.nn.conv2d(part, own, stride, padding.upper()) for part, own in parts], axis=-1)
