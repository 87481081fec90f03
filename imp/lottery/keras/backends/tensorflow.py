"""Keras on TensorFlow. The docstrings hold for the other backends, too."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from lottery.engine import differentiation
from lottery.engine.stock import rebuild
from lottery.keras.backends.stateful import sync as sync
from lottery.keras.backends.stateful import watched as watched


def select(mask: keras.Variable, tensor: Any) -> tf.Tensor:
    """`tensor` where `mask` is true, zero elsewhere, even where it is NaN. (`tf.where` takes twice as long.)"""
    condition, tensor = tf.convert_to_tensor(mask.value), tf.convert_to_tensor(tensor)
    return tf.raw_ops.Select(condition=condition, x=tensor, y=tf.zeros_like(tensor))


def fill(optimizer: keras.Optimizer, given: Iterable[tuple[keras.Variable, keras.Variable, float]]) -> None:
    """In a step of `optimizer`, set each variable to its number where its mask is false: (variable, mask, number)."""

    def select(variable: tf.Variable, mask: tf.Variable, number: float) -> None:
        variable.assign(tf.where(mask, variable, tf.constant(number, variable.dtype)))

    def on_each(strategy: tf.distribute.Strategy) -> None:
        for variable, mask, number in given:
            strategy.extended.update(variable.value, select, args=(mask.value, number), group=False)

    tf.__internal__.distribute.interim.maybe_merge_call(on_each, optimizer._distribution_strategy)


def record(is_due: Any, given: Iterable[tuple[keras.Variable, Any]]) -> None:
    """In a step, set each variable to its tensor if `is_due`, a tensor of one bool, is true: (variable, tensor)."""

    def assign() -> tf.Operation:
        pairs = [(variable.value, tf.cast(tensor, variable.dtype)) for variable, tensor in given]
        return tf.group(*[variable.assign(tensor) for variable, tensor in pairs])

    tf.cond(is_due, assign, tf.no_op)


def stock(model: keras.Model) -> keras.Model:
    """`model` with layers of Keras's own in place of the engine's."""
    return rebuild(model)


def scope(model: keras.Model) -> AbstractContextManager[Any]:
    """In it, variables are made as those of `model` are."""
    return model.distribute_strategy.scope()


def is_traced() -> bool:
    """Whether what runs now is a function that is being compiled."""
    return not tf.executing_eagerly()


def derivatives(loss: Callable[[list[Any]], Any], weights: list[Any], along: list[Any]) -> list[Any]:
    """The gradient of `loss(weights)`; where there are arrays `along` these, the product of the Hessian with the arrays."""
    with differentiation.second_order() if along else nullcontext():
        return differentiation.derived(lambda: loss(weights), weights, along)


def differentiated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled, that gives the gradient of `function` with respect to its first argument, a list of tensors."""
    return differentiation.differentiated(function)


def double() -> AbstractContextManager[Any]:
    """In it, there is float64."""
    return nullcontext()
