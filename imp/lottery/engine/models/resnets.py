"""Residual networks. A layer on a shortcut has `shortcut` in its name, so that a path pattern can leave it dense.

Padding is TensorFlow's "same", which at stride 2 is not symmetric as PyTorch's is.
"""

from functools import partial

import keras

from data_prep.records import Shape
from lottery.engine import whitening
from lottery.engine.models.parts import convolve, logits, normalise, relu
from lottery.experiment import recipe


def cifar_resnet(model: recipe.Model, shape: Shape, classes: int, depth: int) -> keras.Model:
    """The ResNet for CIFAR of `depth` = 6k + 2 layers (He et al. 2016, section 4.2), with a 1x1 convolution on the shortcut
    where the shape changes, as in the code of the lottery papers; 16 channels in the first stage, or `width`."""
    repeats, rest = divmod(depth - 2, 6)
    assert not rest, f"{depth} is not 6k + 2"
    width = model.width or 16
    inputs = x = keras.Input(shape, name="images")
    x = relu(normalise(convolve(x, model, width, 3, name="conv1"), model, "bn1"), "relu1")
    for stage, filters in enumerate((width, 2 * width, 4 * width), 1):
        for block in range(1, repeats + 1):
            x = _basic(x, model, filters, 2 if stage > 1 and block == 1 else 1, f"stage{stage}_block{block}")
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, logits(x, model, classes), name=f"resnet{depth}")


def _basic(x: keras.KerasTensor, model: recipe.Model, filters: int, stride: int, name: str) -> keras.KerasTensor:
    shortcut = _shortcut(x, model, filters, stride, name)
    x = relu(normalise(convolve(x, model, filters, 3, stride, name=f"{name}_conv1"), model, f"{name}_bn1"), f"{name}_relu1")
    x = normalise(convolve(x, model, filters, 3, name=f"{name}_conv2"), model, f"{name}_bn2")
    return relu(keras.layers.Add(name=f"{name}_add")([shortcut, x]), f"{name}_relu2")


def _shortcut(x: keras.KerasTensor, model: recipe.Model, filters: int, stride: int, name: str) -> keras.KerasTensor:
    """`x` itself, or its projection where a block changes the shape."""
    if stride == 1 and x.shape[-1] == filters:
        return x
    return normalise(convolve(x, model, filters, 1, stride, name=f"{name}_shortcut"), model, f"{name}_shortcut_bn")


def resnet50(model: recipe.Model, shape: Shape, classes: int) -> keras.Model:
    """ResNet-50 (He et al. 2016, table 1) with the stride in the 3x3 convolution, as in torchvision; `stem = "small"` begins
    with a 3x3 convolution that keeps the resolution and no pool, for small images."""
    inputs = x = keras.Input(shape, name="images")
    size, stride = (3, 1) if model.stem == "small" else (7, 2)
    x = relu(normalise(convolve(x, model, 64, size, stride, name="conv1"), model, "bn1"), "relu1")
    if model.stem != "small":
        x = keras.layers.MaxPooling2D(3, 2, padding="same", name="pool1")(x)
    for stage, repeats in enumerate((3, 4, 6, 3), 1):
        width = 32 * 2**stage
        for block in range(1, repeats + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _bottleneck(x, model, width, 4 * width, stride, 1, f"stage{stage}_block{block}")
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, logits(x, model, classes), name="resnet50")


def resnext29_32x4d(model: recipe.Model, shape: Shape, classes: int) -> keras.Model:
    """The ResNeXt-29 for CIFAR (Xie et al. 2017, section 5.3) of cardinality 32 and width 4: three stages of three blocks."""
    inputs = x = keras.Input(shape, name="images")
    x = relu(normalise(convolve(x, model, 64, 3, name="conv1"), model, "bn1"), "relu1")
    for stage in (1, 2, 3):
        width = 64 * 2**stage
        for block in (1, 2, 3):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _bottleneck(x, model, width, 2 * width, stride, 32, f"stage{stage}_block{block}")
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, logits(x, model, classes), name="resnext29_32x4d")


def _bottleneck(
    x: keras.KerasTensor, model: recipe.Model, width: int, filters: int, stride: int, groups: int, name: str
) -> keras.KerasTensor:
    shortcut = _shortcut(x, model, filters, stride, name)
    x = relu(normalise(convolve(x, model, width, 1, name=f"{name}_conv1"), model, f"{name}_bn1"), f"{name}_relu1")
    x = convolve(x, model, width, 3, stride, groups, name=f"{name}_conv2")
    x = relu(normalise(x, model, f"{name}_bn2"), f"{name}_relu2")
    x = normalise(convolve(x, model, filters, 1, name=f"{name}_conv3"), model, f"{name}_bn3")
    return relu(keras.layers.Add(name=f"{name}_add")([shortcut, x]), f"{name}_relu3")


def resnet9(model: recipe.Model, shape: Shape, classes: int) -> keras.Model:
    """The small fast ResNet for CIFAR of David Page, "How to train your ResNet" (myrtle.ai 2018); with `whitening`, its first
    convolution is the one of part 8 of that: fixed filters, and a 1x1 convolution that mixes them. 64 channels at first, or
    `width`."""
    width = model.width or 64

    def unit(x: keras.KerasTensor, filters: int, name: str, size: int = 3) -> keras.KerasTensor:
        x = normalise(convolve(x, model, filters, size, name=f"{name}_conv"), model, f"{name}_bn")
        return keras.layers.Activation(model.activation, name=f"{name}_{model.activation}")(x)

    inputs = x = keras.Input(shape, name="images")
    x = unit(whitening.layer(shape[-1])(x), width, "prep", size=1) if model.whitening else unit(x, width, "prep")
    for filters, residual, name in ((2 * width, True, "layer1"), (4 * width, False, "layer2"), (8 * width, True, "layer3")):
        x = keras.layers.MaxPooling2D(2, name=f"{name}_pool")(unit(x, filters, name))
        if residual:
            inner = unit(unit(x, filters, f"{name}_res1"), filters, f"{name}_res2")
            x = keras.layers.Add(name=f"{name}_add")([x, inner])
    x = logits(keras.layers.GlobalMaxPooling2D(name="pool")(x), model, classes, use_bias=False)
    outputs = keras.layers.Rescaling(0.125, dtype=x.dtype, name="scale")(x)
    return keras.Model(inputs, outputs, name="resnet9")


resnet20 = partial(cifar_resnet, depth=20)
resnet56 = partial(cifar_resnet, depth=56)
