"""Derivatives of any Keras network: gradients, and products with the Hessian."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Tensors = list[tf.Tensor]
Moments = tuple[tf.Tensor, tf.Tensor]
ZERO = tf.UnconnectedGradients.ZERO
_MOMENTS = tf.nn.moments
_PROCESS = threading.RLock()  # for whoever changes what is the process's


def derived(loss: Callable[[], tf.Tensor], weights: Tensors, along: Tensors) -> Tensors:
    """dL/dw of the `loss` L with respect to the `weights` w; where there are arrays `along` these, the product of the Hessian
    with the arrays, which must be traced within `second_order`. It is the gradient of g v (Pearlmutter 1994)."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        with tf.GradientTape() as inner:
            inner.watch(weights)
            value = loss()
        gradients = inner.gradient(value, weights, unconnected_gradients=ZERO)
        gradients = [tf.convert_to_tensor(one) for one in gradients]  # of what is looked up there are slices
        if not along:
            return gradients
        parts = [tf.reduce_sum(one * part) for one, part in zip(along, gradients, strict=True)]
        slope = tf.add_n([tf.cast(part, tf.float64) for part in parts])  # of layers of several types
    return [tf.convert_to_tensor(one) for one in tape.gradient(slope, weights, unconnected_gradients=ZERO)]


def named(variables: Sequence[keras.Variable], tensors: Tensors) -> dict[str, np.ndarray]:
    """Arrays by the paths of their `variables`."""
    return {variable.path: np.asarray(tensor) for variable, tensor in zip(variables, tensors, strict=True)}


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Functions that are called within run as they are written. TensorFlow 2.21's graph optimizer makes second derivatives of
    deep networks with BatchNorm wrong: by as much as they are, in MobileNetV2. One thread at a time."""
    with _PROCESS:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        try:
            yield
        finally:
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@contextlib.contextmanager
def second_order() -> Iterator[None]:
    """Second derivatives of what is traced or run within are right. TensorFlow's moments, by which Keras's layers normalise,
    are written for first ones: they take the mean in the variance as a constant."""

    def moments(*arguments: Any, **options: Any) -> Moments:
        mean, variance = _MOMENTS(*arguments, **options)
        return mean, variance - tf.square(mean - tf.stop_gradient(mean))  # zero, but its second derivative

    with as_written(), _PROCESS:
        tf.nn.moments = moments
        try:
            yield
        finally:
            tf.nn.moments = _MOMENTS


def differentiated(function: Callable[..., tf.Tensor]) -> Callable[..., Tensors]:
    """The compiled function that gives the gradient of `function` with respect to its first argument, a list of tensors."""

    @tf.function(autograph=False)
    def gradients(weights: Tensors, *given: Any) -> Tensors:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            total = function(weights, *given)
        return tape.gradient(total, weights, unconnected_gradients=ZERO)

    return gradients
