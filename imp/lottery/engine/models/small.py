"""Networks without BatchNorm: LeNet-300-100, the Conv-2, -4 and -6 of the first lottery paper, and a tutorial's."""

from functools import partial

import keras

from lottery.engine.models.parts import logits
from lottery.experiment import recipe


def lenet_300_100(x: keras.KerasTensor, model: recipe.Model, classes: int) -> keras.KerasTensor:
    """The fully connected LeNet-300-100 (LeCun et al. 1998), on all pixels of all channels."""
    return _dense(x, model, (300, 100), classes)


def conv(x: keras.KerasTensor, model: recipe.Model, classes: int, layers: int) -> keras.KerasTensor:
    """Conv-2, Conv-4 or Conv-6, scaled-down VGGs (Frankle & Carbin 2019, figure 2)."""
    options = {"padding": "same", "activation": "relu", "kernel_initializer": model.initializer}
    for layer in range(1, layers + 1):
        x = keras.layers.Conv2D(64 * 2 ** ((layer - 1) // 2), 3, name=f"conv{layer}", **options)(x)
        if layer % 2 == 0:
            x = keras.layers.MaxPooling2D(2, name=f"pool{layer // 2}")(x)
    return _dense(x, model, (256, 256), classes)


def cifar_tutorial(x: keras.KerasTensor, model: recipe.Model, classes: int) -> keras.KerasTensor:
    """The network of PyTorch's "Training a classifier" tutorial, with both convolutions widened to 64 channels."""
    for layer in (1, 2):
        x = keras.layers.Conv2D(64, 5, activation="relu", kernel_initializer=model.initializer, name=f"conv{layer}")(x)
        x = keras.layers.MaxPooling2D(2, name=f"pool{layer}")(x)
    return _dense(x, model, (120, 84), classes)


def _dense(x: keras.KerasTensor, model: recipe.Model, widths: tuple[int, ...], classes: int) -> keras.KerasTensor:
    x = keras.layers.Flatten(name="flatten")(x)
    for layer, units in enumerate(widths, 1):
        x = keras.layers.Dense(units, "relu", kernel_initializer=model.initializer, name=f"fc{layer}")(x)
    return logits(x, model, classes)


conv2, conv4, conv6 = (partial(conv, layers=layers) for layers in (2, 4, 6))
