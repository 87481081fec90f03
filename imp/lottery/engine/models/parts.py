"""What the networks share: BatchNorm by the recipe, convolutions that end in it, and the layer that gives the logits."""

from typing import Any

import keras

from lottery.engine.layers import BatchNorm, GroupedConv2D, PointwiseConv2D, SynchronisedBatchNorm
from lottery.experiment import recipe


def normalise(x: keras.KerasTensor, model: recipe.Model, name: str) -> keras.KerasTensor:
    """BatchNorm as `model` has it. Its gammas get an initialiser of their own, because one draws the same values each time."""
    layer = SynchronisedBatchNorm if model.batchnorm == "synchronised" else BatchNorm
    gamma = keras.initializers.RandomUniform(0, 1) if model.batchnorm_gamma == "uniform" else "ones"
    return layer(model.batchnorm_momentum, model.batchnorm_epsilon, gamma, name=name)(x)


def convolve(
    x: keras.KerasTensor, model: recipe.Model, filters: int, size: int, stride: int = 1, groups: int = 1, *, name: str
) -> keras.KerasTensor:
    """A convolution without bias that keeps the resolution, or divides it by `stride`."""
    if size == stride == groups == 1:
        return PointwiseConv2D(filters, model.initializer, name=name)(x)
    x, padding = padded(x, model, size, stride, name)
    if groups > 1:
        return GroupedConv2D(filters, size, stride, groups, model.initializer, **padding, name=name)(x)
    options = {"padding": "same", "use_bias": False, "kernel_initializer": model.initializer, "name": name}
    return keras.layers.Conv2D(filters, size, stride, **options | padding)(x)


def padded(
    x: keras.KerasTensor, model: recipe.Model, size: int, stride: int, name: str
) -> tuple[keras.KerasTensor, dict[str, str]]:
    """What a layer with a window of odd `size` and a `stride` reads, and how it has to pad that where not to "same".
    "symmetric" is zeros, half of `size` on each side, as PyTorch pads. At stride 1 "same" is that too."""
    if model.padding == "same" or size == 1 or stride == 1:
        return x, {}
    return keras.layers.ZeroPadding2D(size // 2, name=f"{name}_pad")(x), {"padding": "valid"}


def logits(x: keras.KerasTensor, model: recipe.Model, classes: int, **options: Any) -> keras.KerasTensor:
    """The output layer. It computes in the dtype of its variables: mixed precision would leave logits of 8 to 11 bits."""
    return keras.layers.Dense(
        classes,
        kernel_initializer=model.initializer,
        dtype=keras.config.dtype_policy().variable_dtype,
        name="predictions",
        **options,
    )(x)
