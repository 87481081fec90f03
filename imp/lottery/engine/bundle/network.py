"""T networks of one architecture as one network with a ticket axis: every operation of the Keras graph, for all at once.

Variables have the ticket axis in front ([T, *shape]), and so have features ([T, batch, features]). The channels of images lie
side by side ([batch, height, width, T x channels], those of a ticket together): BatchNorm, depthwise convolutions, activations
and pooling are the operations of one network that is T times as wide."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf
from keras import Model, Operation, Variable, activations, layers
from keras.src.models import Functional

from lottery.engine import whitening
from lottery.engine.layers import (
    BatchNorm,
    DepthwiseConv2D,
    GroupedConv2D,
    PointwiseConv2D,
    SynchronisedBatchNorm,
    depthwise,
    grouped,
)

Values = Mapping[str, tf.Tensor]  # of variables by path, [T, *shape]

# Activations that see one number at a time.
_ELEMENTWISE = (activations.linear, activations.relu, activations.elu, activations.gelu, activations.silu)
_PLAIN = {"data_format": "channels_last", "dilation_rate": (1, 1), "groups": 1, "keepdims": False, "trainable": True}


def obstacle(network: Model) -> str | None:
    """Why `network` cannot be one of several in a bundle, or None."""
    if not isinstance(network, Functional):
        return "it is not a graph of layers"
    found = [node for depth in sorted(network._nodes_by_depth, reverse=True) for node in network._nodes_by_depth[depth]]
    nodes = [node for node in found if not isinstance(node.operation, layers.InputLayer)]
    uses = Counter(node.operation.name for node in nodes)
    strange = [node.operation.name for node in nodes if uses[node.operation.name] > 1 or not _is_usual(node)]
    return f"its layer {strange[0]} has no ticket axis" if strange else None


def _is_usual(node: Any) -> bool:
    """Whether a layer is of a known kind, not one derived from it, and used as our own networks use it."""
    layer, rank = node.operation, len(node.input_tensors[0].shape)
    if type(layer) not in _OPERATIONS or rank not in _OPERATIONS[type(layer)].ranks:
        return False
    settings = {name: getattr(layer, name, value) for name, value in _PLAIN.items()}
    if isinstance(layer, GroupedConv2D):
        settings["groups"] = 1
    if layer.name == whitening.NAME:
        settings["trainable"] = True  # it has no statistics, and its kernel is an ordinary value
    return settings == _PLAIN and getattr(layer, "activation", activations.linear) in _ELEMENTWISE


class Forward:
    """One pass of T networks like `network` through their graph, with `values` in place of its variables. In training the new
    moving statistics are in `statistics` afterwards (path -> [T, channels])."""

    def __init__(self, network: Model, values: Values, tickets: int, training: bool):
        self.network, self.values, self.tickets, self.training = network, values, tickets, training
        self.statistics: dict[str, tf.Tensor] = {}

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Logits [T, batch, classes] for float images [T, batch, height, width, channels]."""
        inputs = tf.cast(images, self.network.compute_dtype)
        return self.network._run_through_graph(self.wide(inputs), operation_fn=self._of)

    def _of(self, layer: Operation) -> Callable[..., tf.Tensor]:
        return lambda *inputs, **_: _OPERATIONS[type(layer)].bundled(self, layer, *inputs)

    def value(self, variable: Variable, dtype: str | None = None) -> tf.Tensor:
        return tf.cast(self.values[variable.path], dtype or variable.dtype)

    def wide(self, images: tf.Tensor) -> tf.Tensor:
        """[T, batch, height, width, channels] with channels side by side."""
        _, _, height, width, channels = images.shape
        return tf.reshape(tf.transpose(images, [1, 2, 3, 0, 4]), [-1, height, width, self.tickets * channels])

    def apart(self, features: tf.Tensor) -> tf.Tensor:
        """[n, T x channels] as [T, n, channels]."""
        return tf.transpose(tf.reshape(features, [-1, self.tickets, features.shape[-1] // self.tickets]), [1, 0, 2])


def _dense(bundle: Forward, layer: Any, inputs: tf.Tensor) -> tf.Tensor:
    dtype = layer.compute_dtype
    outputs = tf.matmul(tf.cast(inputs, dtype), bundle.value(layer.kernel, dtype))
    if layer.use_bias:
        outputs += bundle.value(layer.bias, dtype)[:, None]
    return layer.activation(outputs)


def _pointwise(bundle: Forward, layer: Any, inputs: tf.Tensor) -> tf.Tensor:
    kernel = bundle.value(layer.kernel, layer.compute_dtype)[:, 0, 0]
    outputs = tf.matmul(bundle.apart(tf.reshape(inputs, [-1, inputs.shape[-1]])), kernel)
    return tf.reshape(tf.transpose(outputs, [1, 0, 2]), [-1, *inputs.shape[1:3], bundle.tickets * layer.filters])


def _convolution(bundle: Forward, layer: Any, inputs: tf.Tensor) -> tf.Tensor:
    """On a GPU one convolution of T groups; on a CPU that takes longer than T of one."""
    kernel = bundle.value(layer.kernel, layer.compute_dtype)  # [T, height, width, in / groups, out]
    if isinstance(layer, GroupedConv2D):
        convolve = partial(grouped, stride=layer.stride, groups=layer.groups, padding=layer.padding)
    else:
        convolve = partial(tf.nn.conv2d, strides=layer.strides, padding=layer.padding.upper())
    if tf.config.list_logical_devices("GPU"):
        outputs = convolve(inputs, tf.reshape(tf.transpose(kernel, [1, 2, 3, 0, 4]), [*kernel.shape[1:4], -1]))
    else:
        parts = zip(tf.split(inputs, bundle.tickets, axis=-1), tf.unstack(kernel), strict=True)
        outputs = tf.concat([convolve(part, own) for part, own in parts], axis=-1)
    if getattr(layer, "use_bias", False):
        outputs += tf.reshape(bundle.value(layer.bias, layer.compute_dtype), [-1])
    return getattr(layer, "activation", tf.identity)(outputs)


def _depthwise(bundle: Forward, layer: Any, inputs: tf.Tensor) -> tf.Tensor:
    kernel = bundle.value(layer.kernel, layer.compute_dtype)
    kernel = tf.reshape(tf.transpose(kernel, [1, 2, 0, 3, 4]), [*kernel.shape[1:3], -1, 1])
    return depthwise(inputs, kernel, layer.strides[0], layer.padding)


def _batchnorm(bundle: Forward, layer: BatchNorm, inputs: tf.Tensor) -> tf.Tensor:
    gamma, beta, mean, variance = (
        tf.reshape(bundle.value(one), [-1]) for one in (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance)
    )
    if not bundle.training:
        scale = gamma * tf.math.rsqrt(variance + layer.epsilon)
        return tf.cast(tf.cast(inputs, scale.dtype) * scale + (beta - mean * scale), inputs.dtype)
    outputs, batch_mean, batch_variance = layer.normalise(inputs, gamma, beta)
    for one, moving, batch in ((layer.moving_mean, mean, batch_mean), (layer.moving_variance, variance, batch_variance)):
        bundle.statistics[one.path] = tf.reshape(moving * layer.momentum + batch * (1 - layer.momentum), [bundle.tickets, -1])
    return outputs


def _channelwise(bundle: Forward, layer: Any, *inputs: Any) -> tf.Tensor:
    return layer(*inputs)


def _pool(bundle: Forward, layer: Any, inputs: tf.Tensor) -> tf.Tensor:
    return bundle.apart(layer(inputs))


def _flatten(bundle: Forward, layer: Any, inputs: tf.Tensor) -> tf.Tensor:
    height, width, channels = inputs.shape[1:]
    one = channels // bundle.tickets
    images = tf.transpose(tf.reshape(inputs, [-1, height, width, bundle.tickets, one]), [3, 0, 1, 2, 4])
    return tf.reshape(images, [bundle.tickets, -1, height * width * one])


class _Kind(NamedTuple):
    """What a layer does to a bundle, and how many axes its inputs may have in one network."""

    bundled: Callable[..., tf.Tensor]
    ranks: tuple[int, ...] = (4,)


_OPERATIONS: dict[type, _Kind] = {
    layers.Conv2D: _Kind(_convolution),
    GroupedConv2D: _Kind(_convolution),
    PointwiseConv2D: _Kind(_pointwise),
    DepthwiseConv2D: _Kind(_depthwise),
    layers.Dense: _Kind(_dense, (2,)),
    layers.Flatten: _Kind(_flatten),
    **dict.fromkeys((BatchNorm, SynchronisedBatchNorm), _Kind(_batchnorm)),
    **dict.fromkeys((layers.GlobalAveragePooling2D, layers.GlobalMaxPooling2D), _Kind(_pool)),
    **dict.fromkeys((layers.MaxPooling2D, layers.ZeroPadding2D), _Kind(_channelwise)),
    **dict.fromkeys((layers.ReLU, layers.Activation, layers.Add, layers.Rescaling), _Kind(_channelwise, (2, 4))),
}
