"""What criteria ask about a user's model: derivatives at its weights under a mask. No variable is changed."""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import keras
import numpy as np

from lottery.base.errors import InputError
from lottery.keras.backends import backend
from lottery.networks.flow import Flow
from lottery.pruning import masks
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State


class KerasProbe:
    """Derivatives at the weights of `state` under `mask`, as `lottery.pruning.criteria.Probe` describes them. The loss is what
    the model was compiled with, without regularisers, on `images` (x, y) as one batch, in float32; BatchNorm by this batch."""

    def __init__(self, networks: "Networks", state: State, mask: Bits, images: Any, seed: int):
        self.networks, self.model, self.images, self.seed = networks, networks.model, images, seed
        self.variables = self.model.trainable_variables
        arrays = masks.apply(mask, state.weights)
        self.weights = [keras.ops.convert_to_tensor(arrays[variable.path]) for variable in self.variables]

    def gradients(self, temperature: float = 1.0) -> Arrays:
        return self._derived(self.variables, self.weights, [], temperature)

    def hessian_product(self, vector: Arrays, temperature: float = 1.0) -> Arrays:
        chosen = [(one, weight) for one, weight in zip(self.variables, self.weights, strict=True) if one.path in vector]
        variables, weights = map(list, zip(*chosen, strict=True))
        return self._derived(variables, weights, [vector[one.path] for one in variables], temperature)

    def flow(self) -> Arrays:
        others = [one.numpy() for one in self.model.non_trainable_variables]
        with backend.double():
            flow = self.networks.flow
            weights = [keras.ops.convert_to_numpy(one) for one in self.weights]
            scores = flow(weights, others, [one.shape for one in flow.network.inputs])
        return {variable.path: array for variable, array in zip(self.variables, scores, strict=True)}

    def _derived(
        self, variables: list[keras.Variable], weights: list[Any], along: list[np.ndarray], temperature: float
    ) -> Arrays:
        if self.images is None:
            raise InputError("this criterion looks at images: give prune, or resume, images=(x, y), as the model is trained on")
        if temperature != 1 and getattr(self.model.layers[-1], "activation", None) is keras.activations.softmax:
            raise InputError("this criterion divides logits: let the model end in them, not softmax, and its loss take logits")
        return _named(variables, backend.derivatives(partial(self._loss, variables, temperature), weights, along))

    def _loss(self, variables: list[keras.Variable], temperature: float, weights: list[Any]) -> Any:
        """With these `weights` in place of `variables`."""
        x, y = self.images
        others = [one.value for one in self.model.non_trainable_variables]
        how = {"training": True} if self.model._call_has_training_arg else {}
        given = dict(zip([one.path for one in variables], weights, strict=True))
        every = [given.get(one.path, weight) for one, weight in zip(self.variables, self.weights, strict=True)]
        outputs, _ = self.networks.plain.stateless_call(every, others, x, **how)
        cooled = keras.tree.map_structure(lambda output: output / temperature, outputs)
        with keras.StatelessScope():  # a loss may keep count
            return self.model.compute_loss(x=x, y=y, y_pred=cooled, training=True)


class Networks:
    """The network of `model` as criteria need it, with variables of its own where it differs."""

    def __init__(self, model: keras.Model):
        self.model = model

    @cached_property
    def plain(self) -> keras.Model:
        """In float32, whatever it is trained in."""
        return self._rebuilt("float32") if "16" in self.model.compute_dtype else self.model

    @cached_property
    def flow(self) -> Flow:
        return Flow(self._rebuilt("float64"), backend.differentiated)

    def _rebuilt(self, dtype: str) -> keras.Model:
        def clone(operation: keras.Operation) -> keras.Operation:
            return type(operation).from_config(_in(dtype, operation.get_config()))

        if not getattr(self.model, "inputs", None):
            raise InputError(f"{self.model.name} is subclassed, and cannot be rebuilt for this criterion: take another one")
        inputs, outputs = (one[0] if len(one) == 1 else one for one in (self.model.inputs, self.model.outputs))
        return keras.models.clone_model(keras.Model(inputs, outputs), clone_function=clone, recursive=True)


def _named(variables: Sequence[keras.Variable], tensors: Sequence[Any]) -> Arrays:
    return {variable.path: keras.ops.convert_to_numpy(one) for variable, one in zip(variables, tensors, strict=True)}


def _in(dtype: str, config: Any) -> Any:
    """The `config` of a layer that computes in `dtype`, and so do the layers within it."""
    if isinstance(config, dict):
        return {key: dtype if key == "dtype" and isinstance(one, dict) else _in(dtype, one) for key, one in config.items()}
    return [_in(dtype, one) for one in config] if isinstance(config, list) else config
