"""Tiny trainings, for the files that test the engine: trainers on the tiny set, networks of a user's own, states to compare."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import keras
import numpy as np
from helpers import lenet, tiny_set

from lottery.engine import models, signature
from lottery.engine.feed import MemoryFeed
from lottery.engine.layers import BatchNorm, DepthwiseConv2D, SynchronisedBatchNorm
from lottery.engine.loop import Trainer
from lottery.engine.models.parts import convolve, logits, normalise, padded
from lottery.experiment.recipe import Data, Model, Recipe, Train
from lottery.pruning import masks
from lottery.rundir import store

CPUS = ("CPU:0", "CPU:1", "CPU:2", "CPU:3")
STEPS = 6  # an epoch of the tiny set
VARIED = {"crop": 1, "flip": True}
KERNELS = ("fc1/kernel", "fc2/kernel", "predictions/kernel")  # of lenet


def maker(folder: Path) -> Callable[..., Trainer]:
    """A function that makes trainers; their sets come to lie below `folder`."""

    @cache
    def tiny(classes: int) -> tuple:
        place = folder / str(classes)
        place.mkdir()
        return place, tiny_set(place, classes=classes)

    def make(
        model: Model | None = None,
        devices: Sequence[str] = CPUS[:1],
        maskable: Sequence[str] = KERNELS,
        feed: Callable = MemoryFeed,
        varied: dict = VARIED,
        classes: int = 3,
        **train,
    ) -> Trainer:
        data = Data(size=8, **varied)
        recipe = Recipe(data=data, model=model or lenet(), train=Train(**{"batch": 8, "epochs": 4, "warmup": "0", **train}))
        return Trainer(
            recipe, devices, lambda strategy: feed(*tiny(classes), data, strategy), lambda path, shape: path in maskable
        )

    return make


def initial(seed: int = 0, model: Model | None = None, classes: int = 3) -> store.State:
    return models.initial_weights(model or lenet(), signature.images(8, classes), seed)


def half_masks(state: store.State, paths: Sequence[str] = KERNELS, seed: int = 0) -> masks.Bits:
    rng = np.random.default_rng(seed)
    return {path: rng.random(state.weights[path].shape) < 0.5 for path in paths}


def advance(trainer: Trainer, first: int, last: int) -> np.ndarray:
    """Take steps `first` .. `last` - 1, through as many epochs as that takes; what they found ([steps, 3])."""
    return trainer.advance(first, last, order_seed=0)


def flat(state: store.State) -> store.Arrays:
    """Every array of `state`, by group and name."""
    return {f"{group}/{name}": array for group, arrays in store.groups(state).items() for name, array in arrays.items()}


def same(one: store.State, other: store.State) -> bool:
    """Whether two states are the same bit for bit."""
    arrays, others = flat(one), flat(other)
    return arrays.keys() == others.keys() and all(array.tobytes() == others[name].tobytes() for name, array in arrays.items())


def assert_close(found: store.State, expected: store.State, tolerance: float) -> None:
    arrays, others = flat(found), flat(expected)
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array, others[name], rtol=tolerance, atol=tolerance, err_msg=name)


# Networks of a user's own: Model(name="tiny:local"), and so on.


def _residual(size: int, classes: int, normalise: Callable[..., keras.layers.Layer], dropout: float = 0.0) -> keras.Model:
    """Three convolutions, one of them beside a shortcut: a chain of three blocks."""

    def unit(x: keras.KerasTensor, number: int, stride: int = 1) -> keras.KerasTensor:
        x = keras.layers.Conv2D(4, 3, stride, padding="same", use_bias=False, name=f"conv{number}")(x)
        return keras.layers.ReLU(name=f"relu{number}")(normalise(0.9, 1e-3, "ones", name=f"bn{number}")(x))

    images = keras.Input((size, size, 3), name="images")
    x = unit(images, 1)
    x = keras.layers.Add(name="add")([x, unit(x, 2)])
    x = unit(x, 3, stride=2)
    if dropout:
        x = keras.layers.Dropout(dropout, name="dropout")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    return keras.Model(images, keras.layers.Dense(classes, name="predictions")(x))


def _stock(momentum: float, epsilon: float, gamma: str, **options: str) -> keras.layers.Layer:
    return keras.layers.BatchNormalization(momentum=momentum, epsilon=epsilon, gamma_initializer=gamma, **options)


local = partial(_residual, normalise=BatchNorm)
synchronised = partial(_residual, normalise=SynchronisedBatchNorm)
stock = partial(_residual, normalise=_stock, dropout=0.5)


def parts(size: int, classes: int, padding: str = "same") -> keras.Model:
    """What our large networks are made of, once: a strided, a depthwise, a pointwise and a grouped convolution, a shortcut."""
    model = Model(padding=padding)

    def activated(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
        return keras.layers.ReLU(6.0, name=f"{name}_relu")(normalise(x, model, f"{name}_bn"))

    images = keras.Input((size, size, 3), name="images")
    x = activated(convolve(images, model, 8, 3, 2, name="stem"), "stem")
    shortcut = normalise(convolve(x, model, 16, 1, 2, name="shortcut"), model, "shortcut_bn")
    x, options = padded(x, model, 3, 2, "depthwise")
    x = DepthwiseConv2D(3, 2, **{"padding": "same", "use_bias": False} | options, name="depthwise")(x)
    x = convolve(activated(x, "depthwise"), model, 16, 1, name="pointwise")
    x = keras.layers.Add(name="add")([shortcut, normalise(x, model, "pointwise_bn")])
    x = activated(convolve(x, model, 16, 3, 2, groups=4, name="grouped"), "grouped")
    return keras.Model(images, logits(keras.layers.GlobalAveragePooling2D(name="pool")(x), model, classes))


symmetric_parts = partial(parts, padding="symmetric")


def seeded(size: int, classes: int, head: int | None = 1) -> keras.Model:
    """Its last layer, which is small, may be drawn anew."""
    images, drawn = keras.Input((size, size, 3)), keras.initializers.GlorotUniform
    x = keras.layers.Dense(4, kernel_initializer=drawn(0), name="body")(keras.layers.Flatten()(images))
    x = keras.layers.Dense(4, kernel_initializer="ones", name="same")(x)
    return keras.Model(images, keras.layers.Dense(classes, kernel_initializer=drawn(head), name="head")(x))


seeded_but_its_head = partial(seeded, head=None)


def _headed(size: int, classes: int, head: Callable[[keras.KerasTensor], keras.KerasTensor]) -> keras.Model:
    images = keras.Input((size, size, 3))
    return keras.Model(images, head(keras.layers.Dense(classes)(keras.layers.Flatten()(images))))


softmax = partial(_headed, head=lambda x: keras.ops.softmax(x, axis=-1))
softmax_layer = partial(_headed, head=lambda x: keras.layers.Softmax(dtype="float32")(x))
softmax_by_hand = partial(_headed, head=lambda x: keras.ops.exp(x) / keras.ops.sum(keras.ops.exp(x), axis=-1, keepdims=True))
sigmoid = partial(_headed, head=lambda x: keras.layers.Dense(x.shape[-1], "sigmoid")(x))
sigmoid_within = partial(_headed, head=lambda x: keras.Sequential([keras.layers.Activation("sigmoid")])(x))
log_softmax = partial(_headed, head=lambda x: keras.ops.log_softmax(x))
zeros = partial(_headed, head=lambda x: keras.layers.Dense(x.shape[-1], kernel_initializer="zeros")(x))


def sequential(size: int, classes: int) -> keras.Model:
    layers = [keras.layers.Conv2D(4, 3), keras.layers.MaxPooling2D(), keras.layers.Flatten(), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input((size, size, 3)), *layers])


class _Subclassed(keras.Model):
    def __init__(self, classes: int):
        super().__init__()
        self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(classes)

    def call(self, images: keras.KerasTensor) -> keras.KerasTensor:
        return self.dense(self.flatten(images))


def subclassed(size: int, classes: int) -> keras.Model:
    return _Subclassed(classes)
