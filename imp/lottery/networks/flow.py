"""The flow of SynFlow through any Keras network, on any backend."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from lottery.base.errors import InputError
from lottery.networks.topology import ACTIVATIONS, plain_name, run

_PROCESS = threading.RLock()  # for whoever changes what is the process's
# What treats each element on its own, by plain name: the latter with a number.
_ELEMENTWISE = ACTIVATIONS | {"softmax", "logsoftmax", "prelu", "negative", "absolute", "clip", "rescaling", "normalization"}
_SHIFTS = {"add", "subtract", "minimum", "maximum"}


class Flow:
    """The network of SynFlow (Tanaka et al. 2020, "Pruning neural networks without any data by iteratively conserving synaptic
    flow"), of `network`, which must compute in float64 and is changed. `differentiated` makes of a function of tensors the
    function that gives its gradient with respect to the first, which is a list of them.

    All variables have their absolute values. What is done to each element alone (activations, a number added, Rescaling) passes
    on what it gets. BatchNorm scales by its moving variance and subtracts no mean; what has no moving variance, as LayerNorm,
    takes it as 1. A product of tensors, as in gates, is their mean; a difference is their sum. So the sum R of the outputs is
    that of the products of the weights along each path, and as much of it flows through each layer that all paths go through.
    """

    def __init__(self, network: keras.Model, differentiated: Callable[[Callable[..., Any]], Callable[..., Any]]):
        self.network, self._is_followed, self._gradients = network, False, differentiated(self._total)
        for layer in network._flatten_layers():
            if "activation" in vars(layer):
                layer.activation = keras.activations.linear
            elif isinstance(layer, keras.layers.ReLU):
                layer.max_value = None  # what is left is the identity of what is positive

    def __call__(
        self, weights: Sequence[np.ndarray], statistics: Sequence[np.ndarray], shapes: Sequence[Sequence[int | None]]
    ) -> list[np.ndarray]:
        """|w| dR/d|w| for one example of ones; `shapes` are those of the inputs. `weights` and `statistics` are in the order of
        the network's trainable and other variables. Raises InputError where R is no such sum, or more than float64 holds."""
        pairs = zip(self.network.non_trainable_variables, statistics, strict=True)
        others = [np.zeros_like(array) if one.path.endswith("moving_mean") else np.abs(array) for one, array in pairs]
        sizes = [np.abs(np.asarray(array, np.float64)) for array in weights]
        given, fixed = _tensors(sizes), [keras.ops.convert_to_tensor(array) for array in others]
        ones = [np.ones([size or 1 for size in shape]) for shape in shapes]
        with _unit_moments():
            if not self._is_followed:
                rng = np.random.default_rng(0)  # attention only passes on what it gets where that is all alike
                self._outputs(given, fixed, _tensors([one * rng.uniform(1, 2, one.shape) for one in ones]), _followed)
                self._is_followed = True
            gradients = self._gradients(given, fixed, _tensors(ones))
        return [size * keras.ops.convert_to_numpy(gradient) for size, gradient in zip(sizes, gradients, strict=True)]

    def _total(self, weights: Any, others: Any, inputs: Any) -> Any:
        return sum(keras.ops.sum(output) for output in self._outputs(weights, others, inputs, _linear))

    def _outputs(self, weights: Any, others: Any, inputs: Any, operation: Callable[..., Any]) -> list[Any]:
        variables = [*self.network.trainable_variables, *self.network.non_trainable_variables]
        with keras.StatelessScope(list(zip(variables, [*weights, *others], strict=True))):
            return keras.tree.flatten(run(operation, self.network, inputs[0] if len(inputs) == 1 else inputs))


def _tensors(arrays: Sequence[np.ndarray]) -> list[Any]:
    return [keras.ops.convert_to_tensor(array, "float64") for array in arrays]


def _linear(operation: Any, *arguments: Any, **options: Any) -> Any:
    """The output of an operation in the network of SynFlow."""
    tensors = [one for one in keras.tree.flatten((arguments, options)) if keras.ops.is_tensor(one)]
    name = plain_name(operation) if type(operation).__module__.startswith("keras.") else ""
    if name in _ELEMENTWISE or (name in _SHIFTS and len(tensors) == 1):
        return tensors[0]
    if name == "multiply" and len(tensors) == 1:
        return keras.ops.abs(operation(*arguments, **options))
    if name == "multiply":
        return keras.layers.Average(dtype="float64")(tensors)
    if name == "subtract":
        return keras.layers.Add(dtype="float64")(tensors)
    return operation(*arguments, **options)


def _followed(operation: Any, *arguments: Any, **options: Any) -> Any:
    """The same. Raises InputError unless it grows in proportion to the input, from what it is without any."""

    def at(scale: int) -> list[np.ndarray]:
        scaled = keras.tree.map_structure(lambda one: one * scale if _is_float(one) else one, (arguments, options))
        return [keras.ops.convert_to_numpy(one) for one in keras.tree.flatten(_linear(operation, *scaled[0], **scaled[1]))]

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


def _is_float(one: Any) -> bool:
    return keras.ops.is_tensor(one) and keras.backend.is_float_dtype(keras.backend.standardize_dtype(one.dtype))


@contextlib.contextmanager
def _unit_moments() -> Iterator[None]:
    """Within, Keras's layers normalise by a mean of 0 and a variance of 1."""

    def moments(inputs: Any, axes: Any, keepdims: bool = False, **_: Any) -> tuple[Any, Any]:
        mean = keras.ops.mean(inputs, axes, keepdims)
        return keras.ops.zeros_like(mean), keras.ops.ones_like(mean)

    functions = keras.src.backend.nn
    with _PROCESS:
        before, functions.moments = functions.moments, moments
        try:
            yield
        finally:
            functions.moments = before
