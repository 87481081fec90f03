"""Residual networks. A layer on a shortcut has `shortcut` in its name, so that a path pattern can leave it dense."""

from collections.abc import Callable, Iterator
from functools import partial

import keras

from lottery.engine import whitening
from lottery.engine.models.parts import convolve, logits, normalise, padded
from lottery.experiment import recipe

Convolution = tuple[int, int, int, int]  # filters, size, stride, groups
Block = Callable[[int, int], list[Convolution]]  # the convolutions of a block, by its stage and stride


def cifar_resnet(x: keras.KerasTensor, model: recipe.Model, classes: int, depth: int) -> keras.KerasTensor:
    """The ResNet for CIFAR of `depth` = 6k + 2 layers (He et al. 2016, section 4.2), with a 1x1 convolution on the shortcut
    where the shape changes, as in the code of the lottery papers; 16 channels in the first stage, or `width`."""
    width = model.width or 16

    def block(stage: int, stride: int) -> list[Convolution]:
        return [(width * 2**stage // 2, 3, stride, 1), (width * 2**stage // 2, 3, 1, 1)]

    return _resnet(x, model, classes, (width, 3, 1, 1), [(depth - 2) // 6] * 3, block)


def resnet50(x: keras.KerasTensor, model: recipe.Model, classes: int) -> keras.KerasTensor:
    """ResNet-50 (He et al. 2016, table 1) with the stride in the 3x3 convolution, as in torchvision; `stem = "small"` begins
    with a 3x3 convolution that keeps the resolution and no pool, for small images."""
    stem = (64, 3, 1, 1) if model.stem == "small" else (64, 7, 2, 1)
    return _resnet(x, model, classes, stem, [3, 4, 6, 3], partial(_bottleneck, 32, 4, 1))


def resnext29_32x4d(x: keras.KerasTensor, model: recipe.Model, classes: int) -> keras.KerasTensor:
    """The ResNeXt-29 for CIFAR (Xie et al. 2017, section 5.3) of cardinality 32 and width 4: three stages of three blocks."""
    return _resnet(x, model, classes, (64, 3, 1, 1), [3, 3, 3], partial(_bottleneck, 64, 2, 32))


def wide_resnet(x: keras.KerasTensor, model: recipe.Model, classes: int, depth: int, width: int) -> keras.KerasTensor:
    """The wide ResNet for CIFAR of `depth` = 6k + 4 layers and `width` times the channels (Zagoruyko & Komodakis 2016, arXiv
    1605.07146, table 1), as in the code of RigL (Evci et al. 2020, arXiv 1911.11134). Its dropout is left out: what is random
    in a step is a function of seed, epoch and index here, and Keras's Dropout is not."""
    x = convolve(x, model, 16, 3, name="conv1")
    for stage, stride, name in _blocks([(depth - 4) // 6] * 3):
        x = _preactivated(x, model, 8 * width * 2**stage, stride, name)
    return logits(keras.layers.GlobalAveragePooling2D(name="pool")(_active(x, model, "out_bn")), model, classes)


def _bottleneck(width: int, widening: int, groups: int, stage: int, stride: int) -> list[Convolution]:
    return [(width * 2**stage, 1, 1, 1), (width * 2**stage, 3, stride, groups), (widening * width * 2**stage, 1, 1, 1)]


def _resnet(
    x: keras.KerasTensor, model: recipe.Model, classes: int, stem: Convolution, repeats: list[int], block: Block
) -> keras.KerasTensor:
    """The stem, with a pool where it has a stride, so many blocks a stage, and the classifier."""
    x = _unit(x, model, stem, "conv1")
    if stem[2] > 1:
        x, padding = padded(x, model, 3, 2, "pool1")  # with zeros, and nothing after a ReLU is less
        x = keras.layers.MaxPooling2D(3, 2, **{"padding": "same"} | padding, name="pool1")(x)
    for stage, stride, name in _blocks(repeats):
        x = _residual(x, model, block(stage, stride), stride, name)
    return logits(keras.layers.GlobalAveragePooling2D(name="pool")(x), model, classes)


def _blocks(repeats: list[int]) -> Iterator[tuple[int, int, str]]:
    """The stage, stride and name of each block, so many a stage. Each stage but the first halves the resolution."""
    for stage, count in enumerate(repeats, 1):
        for number in range(1, count + 1):
            yield stage, 2 if stage > 1 and number == 1 else 1, f"stage{stage}_block{number}"


def _residual(x: keras.KerasTensor, model: recipe.Model, block: list[Convolution], stride: int, name: str) -> keras.KerasTensor:
    """The convolutions of a block beside a shortcut, which is a projection where they change the shape."""
    shortcut, (*first, last), count = x, block, len(block)
    if stride > 1 or x.shape[-1] != last[0]:
        shortcut = convolve(x, model, last[0], 1, stride, name=f"{name}_shortcut")
        shortcut = normalise(shortcut, model, f"{name}_shortcut_bn")
    for number, convolution in enumerate(first, 1):
        x = _unit(x, model, convolution, f"{name}_conv{number}")
    x = normalise(convolve(x, model, *last, name=f"{name}_conv{count}"), model, f"{name}_bn{count}")
    return keras.layers.ReLU(name=f"{name}_relu{count}")(keras.layers.Add(name=f"{name}_add")([shortcut, x]))


def _preactivated(x: keras.KerasTensor, model: recipe.Model, filters: int, stride: int, name: str) -> keras.KerasTensor:
    """Two 3x3 convolutions, each behind BatchNorm and a ReLU, beside a shortcut. The shortcut is `x`, or where the channels
    change, a projection of what the first convolution reads."""
    active = _active(x, model, f"{name}_bn1")
    shortcut = x if x.shape[-1] == filters else convolve(active, model, filters, 1, stride, name=f"{name}_shortcut")
    inner = convolve(active, model, filters, 3, stride, name=f"{name}_conv1")
    inner = convolve(_active(inner, model, f"{name}_bn2"), model, filters, 3, name=f"{name}_conv2")
    return keras.layers.Add(name=f"{name}_add")([shortcut, inner])


def _unit(x: keras.KerasTensor, model: recipe.Model, convolution: Convolution, name: str) -> keras.KerasTensor:
    """A convolution of this name (`conv1`), then BatchNorm (`bn1`) and a ReLU (`relu1`)."""
    return _active(convolve(x, model, *convolution, name=name), model, name.replace("conv", "bn"))


def _active(x: keras.KerasTensor, model: recipe.Model, name: str) -> keras.KerasTensor:
    """BatchNorm of this name (`bn1`), then a ReLU (`relu1`)."""
    return keras.layers.ReLU(name=name.replace("bn", "relu"))(normalise(x, model, name))


def resnet9(x: keras.KerasTensor, model: recipe.Model, classes: int) -> keras.KerasTensor:
    """The fast ResNet for CIFAR of David Page, "How to train your ResNet" (myrtle.ai 2018); with `whitening`, it begins as part
    8 of that does: fixed filters, and a 1x1 convolution that mixes them. 64 channels at first, or `width`."""
    width = model.width or 64

    def unit(x: keras.KerasTensor, filters: int, name: str, size: int = 3) -> keras.KerasTensor:
        x = normalise(convolve(x, model, filters, size, name=f"{name}_conv"), model, f"{name}_bn")
        return keras.layers.Activation(model.activation, name=f"{name}_{model.activation}")(x)

    x = unit(whitening.layer(x.shape[-1])(x), width, "prep", size=1) if model.whitening else unit(x, width, "prep")
    for filters, residual, name in ((2 * width, True, "layer1"), (4 * width, False, "layer2"), (8 * width, True, "layer3")):
        x = keras.layers.MaxPooling2D(2, name=f"{name}_pool")(unit(x, filters, name))
        if residual:
            inner = unit(unit(x, filters, f"{name}_res1"), filters, f"{name}_res2")
            x = keras.layers.Add(name=f"{name}_add")([x, inner])
    x = logits(keras.layers.GlobalMaxPooling2D(name="pool")(x), model, classes, use_bias=False)
    return keras.layers.Rescaling(0.125, dtype=x.dtype, name="scale")(x)


resnet20 = partial(cifar_resnet, depth=20)
resnet56 = partial(cifar_resnet, depth=56)
wrn_22_2 = partial(wide_resnet, depth=22, width=2)
