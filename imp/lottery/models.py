"""Networks, built by name from a recipe. They take float images in -1 .. 1 and return logits.

Every layer is named, so that variable paths are the same in every process.
"""

from collections.abc import Callable
from functools import partial

import keras
import numpy as np

from lottery import recipe, store
from lottery.layers import BatchNorm, PointwiseConv2D


def build(model: recipe.Model, size: int, classes: int) -> keras.Model:
    """The network of `model` for images of float32 [batch, size, size, 3]; output float32 [batch, classes]."""
    builder = {"mobilenet_v2": mobilenet_v2, "lenet_300_100": lenet_300_100}[model.name]
    return builder(model, size, classes)


def initial_weights(model: recipe.Model, size: int, classes: int, seed: int) -> store.State:
    """A freshly drawn network at step 0, a function of the recipe and `seed` alone. Optimizer slots are left empty."""
    keras.utils.set_random_seed(seed)
    network = build(model, size, classes)
    return store.State(0, arrays(network.trainable_variables), arrays(network.non_trainable_variables), {})


def arrays(variables: list[keras.Variable]) -> store.Arrays:
    return {variable.path: np.asarray(variable) for variable in variables}


def mobilenet_v2(model: recipe.Model, size: int, classes: int) -> keras.Model:
    """MobileNetV2 (Sandler et al. 2018, table 2), with the layer names, variables and shapes of
    `keras.applications.MobileNetV2`; `stem = "small"` keeps the resolution in the first convolution, for small images."""
    convolve = partial(keras.layers.Conv2D, padding="same", use_bias=False, kernel_initializer=model.initializer)
    normalise = _batch_norm(model)
    width = partial(_divisible, alpha=model.alpha)

    inputs = x = keras.Input((size, size, 3), name="images")
    x = convolve(width(32), 3, 1 if model.stem == "small" else 2, name="Conv1")(x)
    x = keras.layers.ReLU(6.0, name="Conv1_relu")(normalise("bn_Conv1")(x))
    block = 0
    for expansion, channels, repeats, stride in _MOBILENET_V2_STAGES:
        for repeat in range(repeats):
            name = f"block_{block}" if block else "expanded_conv"
            x = _inverted_residual(x, name, expansion, width(channels), stride if repeat == 0 else 1, model)
            block += 1
    x = PointwiseConv2D(1280 if model.alpha <= 1 else width(1280), model.initializer, name="Conv_1")(x)
    x = keras.layers.ReLU(6.0, name="out_relu")(normalise("Conv_1_bn")(x))
    x = keras.layers.GlobalAveragePooling2D(name="global_average_pooling2d")(x)
    outputs = keras.layers.Dense(classes, kernel_initializer=model.initializer, name="predictions")(x)
    return keras.Model(inputs, outputs, name="mobilenet_v2")


# expansion, channels, repeats, stride of the first repeat
_MOBILENET_V2_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _inverted_residual(
    x: keras.KerasTensor, name: str, expansion: int, channels: int, stride: int, model: recipe.Model
) -> keras.KerasTensor:
    normalise = _batch_norm(model)
    shortcut, incoming = x, x.shape[-1]
    if expansion > 1:
        x = PointwiseConv2D(expansion * incoming, model.initializer, name=f"{name}_expand")(x)
        x = keras.layers.ReLU(6.0, name=f"{name}_expand_relu")(normalise(f"{name}_expand_BN")(x))
    x = keras.layers.DepthwiseConv2D(
        3, stride, padding="same", use_bias=False, depthwise_initializer=model.initializer, name=f"{name}_depthwise"
    )(x)
    x = keras.layers.ReLU(6.0, name=f"{name}_depthwise_relu")(normalise(f"{name}_depthwise_BN")(x))
    x = PointwiseConv2D(channels, model.initializer, name=f"{name}_project")(x)
    x = normalise(f"{name}_project_BN")(x)
    return keras.layers.Add(name=f"{name}_add")([shortcut, x]) if incoming == channels and stride == 1 else x


def _divisible(channels: int, alpha: float, divisor: int = 8) -> int:
    """`alpha * channels` rounded to a multiple of `divisor`, never more than 10 % below it."""
    scaled = alpha * channels
    rounded = max(divisor, int(scaled + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * scaled else rounded


def _batch_norm(model: recipe.Model) -> Callable[..., BatchNorm]:
    """A maker of BatchNorm layers; each gets an initialiser of its own, because one draws the same values at every call."""

    def make(name: str) -> BatchNorm:
        gamma = keras.initializers.RandomUniform(0, 1) if model.batchnorm_gamma == "uniform" else "ones"
        return BatchNorm(model.batchnorm_momentum, model.batchnorm_epsilon, gamma, name=name)

    return make


def lenet_300_100(model: recipe.Model, size: int, classes: int) -> keras.Model:
    """The fully connected LeNet-300-100 (LeCun et al. 1998), on all pixels of all channels."""
    inputs = x = keras.Input((size, size, 3), name="images")
    x = keras.layers.Flatten(name="flatten")(x)
    for units, name in ((300, "fc1"), (100, "fc2")):
        x = keras.layers.Dense(units, "relu", kernel_initializer=model.initializer, name=name)(x)
    outputs = keras.layers.Dense(classes, kernel_initializer=model.initializer, name="predictions")(x)
    return keras.Model(inputs, outputs, name="lenet_300_100")
