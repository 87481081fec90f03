"""MobileNetV2, interchangeable with that of `keras.applications`."""

import keras

from lottery.engine.layers import DepthwiseConv2D
from lottery.engine.models.parts import convolve, logits, normalise, padded
from lottery.experiment import recipe

# expansion, channels, repeats, stride of the first repeat
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2(x: keras.KerasTensor, model: recipe.Model, classes: int) -> keras.KerasTensor:
    """MobileNetV2 (Sandler et al. 2018, table 2), with the layer names, variables and shapes of
    `keras.applications.MobileNetV2`; `stem = "small"` keeps the resolution in the first convolution, for small images."""
    x = convolve(x, model, _divisible(32, model.alpha), 3, 1 if model.stem == "small" else 2, name="Conv1")
    x = keras.layers.ReLU(6.0, name="Conv1_relu")(normalise(x, model, "bn_Conv1"))
    block = 0
    for expansion, channels, repeats, stride in _STAGES:
        for repeat in range(repeats):
            name = f"block_{block}" if block else "expanded_conv"
            x = _inverted_residual(x, model, expansion, _divisible(channels, model.alpha), 1 if repeat else stride, name)
            block += 1
    x = convolve(x, model, _divisible(1280, max(model.alpha, 1.0)), 1, name="Conv_1")
    x = keras.layers.ReLU(6.0, name="out_relu")(normalise(x, model, "Conv_1_bn"))
    x = keras.layers.GlobalAveragePooling2D(name="global_average_pooling2d")(x)
    return logits(x, model, classes)


def _inverted_residual(
    x: keras.KerasTensor, model: recipe.Model, expansion: int, channels: int, stride: int, name: str
) -> keras.KerasTensor:
    shortcut, incoming = x, x.shape[-1]
    if expansion > 1:
        x = convolve(x, model, expansion * incoming, 1, name=f"{name}_expand")
        x = keras.layers.ReLU(6.0, name=f"{name}_expand_relu")(normalise(x, model, f"{name}_expand_BN"))
    x, padding = padded(x, model, 3, stride, f"{name}_depthwise")
    options = {"padding": "same", "use_bias": False, "depthwise_initializer": model.initializer}
    x = DepthwiseConv2D(3, stride, **options | padding, name=f"{name}_depthwise")(x)
    x = keras.layers.ReLU(6.0, name=f"{name}_depthwise_relu")(normalise(x, model, f"{name}_depthwise_BN"))
    x = normalise(convolve(x, model, channels, 1, name=f"{name}_project"), model, f"{name}_project_BN")
    return keras.layers.Add(name=f"{name}_add")([shortcut, x]) if incoming == channels and stride == 1 else x


def _divisible(channels: int, alpha: float, divisor: int = 8) -> int:
    """`alpha * channels` rounded to a multiple of `divisor`, never more than 10 % below it."""
    scaled = alpha * channels
    rounded = max(divisor, int(scaled + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * scaled else rounded
