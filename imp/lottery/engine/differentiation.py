"""Derivatives of any Keras network: gradients, products with the Hessian, and the flow of SynFlow."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lottery.base.errors import InputError
from lottery.engine.models.topology import ACTIVATIONS, plain_name, run

Tensors = list[tf.Tensor]
Moments = tuple[tf.Tensor, tf.Tensor]
ZERO = tf.UnconnectedGradients.ZERO
_MOMENTS = tf.nn.moments
_PROCESS = threading.RLock()  # for whoever changes what is the process's
# What treats each element on its own, by plain name: the latter with a number.
_ELEMENTWISE = ACTIVATIONS | {"softmax", "logsoftmax", "prelu", "negative", "absolute", "clip", "rescaling", "normalization"}
_SHIFTS = {"add", "subtract", "minimum", "maximum"}


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

    with as_written(), _normalised(moments):
        yield


@contextlib.contextmanager
def _normalised(moments: Callable[..., Moments]) -> Iterator[None]:
    """Keras's layers normalise by `moments` in place of `tf.nn.moments`."""
    with _PROCESS:
        tf.nn.moments = moments
        try:
            yield
        finally:
            tf.nn.moments = _MOMENTS


class Flow:
    """The network of SynFlow (Tanaka et al. 2020, "Pruning neural networks without any data by iteratively conserving synaptic
    flow"), of `network`, which must compute in float64 and is changed.

    All variables have their absolute values. What is done to each element alone (activations, a number added, Rescaling) passes
    on what it gets. BatchNorm scales by its moving variance and subtracts no mean; what has no moving variance, as LayerNorm,
    takes it as 1. A product of tensors, as in gates, is their mean; a difference is their sum. So the sum R of the outputs is
    that of the products of the weights along each path, and as much of it flows through each layer that all paths go through.
    """

    def __init__(self, network: keras.Model):
        self.network, self._is_followed = network, False
        for layer in network._flatten_layers():
            if "activation" in vars(layer):
                layer.activation = keras.activations.linear
            elif isinstance(layer, keras.layers.ReLU):
                layer.max_value = None  # what is left is the identity of what is positive

    def __call__(
        self, weights: Sequence[np.ndarray], statistics: Sequence[np.ndarray], shapes: Sequence[Sequence[int | None]]
    ) -> Tensors:
        """|w| dR/d|w| for one example of ones; `shapes` are those of the inputs. `weights` and `statistics` are in the order of
        the network's trainable and other variables. Raises InputError where R is no such sum, or more than float64 holds."""
        pairs = zip(self.network.non_trainable_variables, statistics, strict=True)
        others = [np.zeros_like(array) if one.path.endswith("moving_mean") else np.abs(array) for one, array in pairs]
        given = [tf.constant(np.abs(array), tf.float64) for array in weights], [tf.constant(array) for array in others]
        ones = [tf.ones([size or 1 for size in shape], tf.float64) for shape in shapes]
        if not self._is_followed:
            rng = np.random.default_rng(0)  # attention only passes on what it gets where that is all alike
            with _normalised(_unit_moments):
                self._outputs(*given, [one * rng.uniform(1, 2, one.shape) for one in ones], _followed)
                self._flow(*given, ones)  # which is traced here
            self._is_followed = True
        return self._flow(*given, ones)

    @tf.function(autograph=False)
    def _flow(self, weights: Tensors, others: Tensors, inputs: Tensors) -> Tensors:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            total = tf.add_n([tf.reduce_sum(output) for output in self._outputs(weights, others, inputs, _linear)])
        gradients = tape.gradient(total, weights, unconnected_gradients=ZERO)
        return [one * gradient for one, gradient in zip(weights, gradients, strict=True)]

    def _outputs(self, weights: Tensors, others: Tensors, inputs: Tensors, operation: Callable[..., Any]) -> Tensors:
        variables = [*self.network.trainable_variables, *self.network.non_trainable_variables]
        with keras.StatelessScope(list(zip(variables, [*weights, *others], strict=True))):
            return keras.tree.flatten(run(operation, self.network, inputs[0] if len(inputs) == 1 else inputs))


def _linear(operation: Any, *arguments: Any, **options: Any) -> Any:
    """The output of an operation in the network of SynFlow."""
    tensors = [one for one in keras.tree.flatten((arguments, options)) if tf.is_tensor(one)]
    name = plain_name(operation) if type(operation).__module__.startswith("keras.") else ""
    if name in _ELEMENTWISE or (name in _SHIFTS and len(tensors) == 1):
        return tensors[0]
    if name == "multiply" and len(tensors) == 1:
        return tf.abs(operation(*arguments, **options))
    if name == "multiply":
        return keras.layers.Average(dtype="float64")(tensors)
    if name == "subtract":
        return keras.layers.Add(dtype="float64")(tensors)
    return operation(*arguments, **options)


def _followed(operation: Any, *arguments: Any, **options: Any) -> Any:
    """The same. Raises InputError unless it grows in proportion to the input, from what it is without any."""

    def at(scale: int) -> list[np.ndarray]:
        scaled = keras.tree.map_structure(
            lambda one: one * scale if tf.is_tensor(one) and one.dtype.is_floating else one, (arguments, options)
        )
        return [np.asarray(one) for one in keras.tree.flatten(_linear(operation, *scaled[0], **scaled[1]))]

    for none, once, twice in zip(at(0), at(1), at(2), strict=True):
        if not np.isfinite(twice).all():
            raise InputError(f"synflow: what flows through {operation.name} is more than float64 holds: take another criterion")
        error = 1e-9 * np.max(once)
        if not np.allclose(twice - once, once - none, 1e-6, error) or min((once - none).min(), none.min()) < -error:
            raise InputError(
                f"synflow cannot follow {operation.name} ({type(operation).__name__}), whose output is not in proportion to "
                "its input: take another criterion"
            )
    return _linear(operation, *arguments, **options)


def _unit_moments(inputs: tf.Tensor, axes: Any, *_: Any, keepdims: bool = False, **__: Any) -> Moments:
    mean = tf.reduce_mean(inputs, axes, keepdims)
    return tf.zeros_like(mean), tf.ones_like(mean)
