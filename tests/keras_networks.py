"""Small Keras models to prune, for the files that test `lottery.keras`: how they are trained, and what must hold of them."""

from fractions import Fraction
from functools import partial

import keras
import numpy as np
import pytest

from lottery.keras import Cubic, masks
from lottery.keras.fitting import pruned
from lottery.pruning import ranking

BACKEND = keras.backend.backend()
WITH_VALUES = pytest.mark.skipif(BACKEND == "jax", reason="JAX has its variables' values elsewhere while it trains")
ON_TENSORFLOW = pytest.mark.skipif(BACKEND != "tensorflow", reason="this is TensorFlow's own")
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(64, 8, 8, 1)).astype(np.float32), RNG.integers(0, 10, 64)
SIZES = {"conv/kernel": 36, "dense/kernel": 360}
GRADUAL = Cubic(end=12, every=3, start=0.5)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
# On JAX, Keras 3.15 itself fails in the second fit with it.
AVERAGE = {} if BACKEND == "jax" else {"use_ema": True, "ema_overwrite_frequency": 3}
OPTIMIZERS = {
    "sgd": partial(keras.optimizers.SGD, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": partial(keras.optimizers.Adam, 0.01, amsgrad=True, **AVERAGE),
    "adamw": partial(keras.optimizers.AdamW, 0.01, weight_decay=0.1, clipnorm=0.1),
    "accumulated": partial(keras.optimizers.Adam, 0.01, gradient_accumulation_steps=3, global_clipnorm=1.0),
    "rmsprop": partial(keras.optimizers.RMSprop, 0.01, momentum=0.9, centered=True),
    "muon": partial(keras.optimizers.Muon, 0.01, use_ema=True),
    "multi": lambda: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(keras.optimizers.Muon(0.01), {"dense.*": keras.optimizers.SGD(0.1, momentum=0.9)})
    ),
    **{
        name.lower(): getattr(keras.optimizers, name)
        for name in ("Adadelta", "Adafactor", "Adagrad", "Adamax", "Ftrl", "Lamb", "Lion", "Nadam", "ScheduleFreeAdamW")
    },
}


def network(optimizer="sgd", bias=True, **settings):
    keras.utils.set_random_seed(1)
    images = keras.Input((8, 8, 1))
    features = keras.layers.Conv2D(4, 3, activation="relu", use_bias=bias, name="conv")(images)
    features = keras.layers.Flatten()(keras.layers.MaxPooling2D()(features))
    model = keras.Model(images, keras.layers.Dense(10, use_bias=bias, name="dense")(features))
    model.compile(OPTIMIZERS[optimizer](), LOSS, **settings)
    return model


def sequential(**first):
    """Two dense layers, whose variables get other paths when Keras loads them."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(6, name="first", **first), keras.layers.Dense(10, name="second")]
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), *layers])
    model.compile("adam", LOSS)
    return model


def fit(model, epochs=1, first=0, **settings):
    """Train for `epochs` of four steps, always on the same batches."""
    return model.fit(X, Y, 16, first + epochs, initial_epoch=first, shuffle=False, verbose=0, **settings)


def descent(model, x, y, apply):
    """A step of a loop of one's own, where variables have their values: `apply` gets gradients and variables."""
    variables = model.trainable_variables
    if BACKEND == "torch":
        import torch

        model.zero_grad()
        loss = LOSS(y, model(x, training=True))
        loss.backward()
        with torch.no_grad():
            apply([one.value.grad for one in variables], variables)
    else:
        import tensorflow

        with tensorflow.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True))
        apply(tape.gradient(loss, variables), variables)
    return {"loss": loss}


def stateless_descent(model):
    """A function that takes such a step on JAX, and puts all state back into its variables."""
    import jax

    def loss(trained, others):
        answers, others = model.stateless_call(trained, others, X, training=True)
        return LOSS(Y, answers), others

    @jax.jit
    def step(trained, others, state):
        (_, others), gradients = jax.value_and_grad(loss, has_aux=True)(trained, others)
        trained, state = model.optimizer.stateless_apply(state, gradients, trained)
        return trained, others, state

    def descend():
        variables = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables
        for group, values in zip(variables, step(*[[one.value for one in group] for group in variables]), strict=True):
            for variable, value in zip(group, values, strict=True):
                variable.assign(value)

    return descend


def kept(model):
    return {path: int(bits.sum()) for path, bits in masks(model).items()}


def left(sparsity):
    return 396 - ranking.pruned_count(100 * Fraction(sparsity), 396)


def kernels(model):
    return [one for one in model.weights if one.path.endswith("kernel")]


def is_exact(model):
    """Whether weights and optimizer state are exactly zero (or as in a new optimizer) where the masks prune, and finite."""
    optimizer, weights = pruned(model), {one.path: one for one in model.weights}
    slots, kept = optimizer._slots(), optimizer.masks
    return all(
        np.isfinite(array).all() and (array[~bits] == np.float32(fill)).all()
        for path, bits in kept.items()
        for variable, fill in [(weights[path], 0.0), *slots.get(path, [])]
        for array in _copies(variable)
    )


def _copies(variable):
    """What each replica holds of it."""
    values = getattr(variable.value, "values", None)
    return [keras.ops.convert_to_numpy(value) for value in (values if isinstance(values, tuple) else [variable.value])]


def holds(model, bits):
    """Whether the kernels of `model` are zero where `bits` (by path, in their order) prune, and not all others."""
    found = list(zip([one.numpy() for one in kernels(model)], bits.values(), strict=True))
    return all((array[~kept] == 0).all() and array[kept].any() for array, kept in found)


def state(model):
    return [one.numpy() for one in [*model.weights, *model.optimizer.variables]]


def same(model, other):
    return all(np.array_equal(*pair) for pair in zip(state(model), state(other), strict=True))
