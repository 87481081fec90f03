"""What criteria ask about a user's model: derivatives at its weights under a mask. No variable is changed."""

from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from data_prep.errors import InputError
from lottery.pruning import masks
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State

ZERO = tf.UnconnectedGradients.ZERO


class KerasProbe:
    """Derivatives at the weights of `state` under `mask`, as `lottery.pruning.criteria.Probe` describes them. The loss is what
    the model was compiled with, without regularisers, on `images` (x, y) as one batch, in float32; BatchNorm normalises by this
    batch."""

    def __init__(self, networks: "Networks", state: State, mask: Bits, images: Any, seed: int):
        self.networks, self.model, self.images, self.seed = networks, networks.model, images, seed
        self.variables = self.model.trainable_variables
        arrays = masks.apply(mask, state.weights)
        self.weights = [tf.constant(arrays[variable.path]) for variable in self.variables]

    def gradients(self, temperature: float = 1.0) -> Arrays:
        return self._named(self._gradients(temperature))

    def hessian_product(self, vector: Arrays, temperature: float = 1.0) -> Arrays:
        along = {index: vector[one.path] for index, one in enumerate(self.variables) if one.path in vector}
        with tf.GradientTape() as tape:
            tape.watch(self.weights)
            gradients = self._gradients(temperature)
            slope = tf.add_n([tf.reduce_sum(gradients[index] * array) for index, array in along.items()])
        products = tape.gradient(slope, self.weights, unconnected_gradients=ZERO)
        return {path: array for path, array in self._named(products).items() if path in vector}

    def flow(self) -> Arrays:
        network = self.networks.linear
        weights = [tf.abs(tf.cast(weight, tf.float64)) for weight in self.weights]
        others = [
            np.zeros(one.shape) if one.path.endswith("moving_mean") else np.abs(one.numpy().astype(one.dtype))
            for one in self.model.non_trainable_variables
        ]
        ones = [np.ones([size or 1 for size in tensor.shape]) for tensor in network.inputs]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs, _ = network.stateless_call(weights, others, ones[0] if len(ones) == 1 else ones, training=False)
            total = tf.add_n([tf.reduce_sum(output) for output in tf.nest.flatten(outputs)])
        gradients = tape.gradient(total, weights, unconnected_gradients=ZERO)
        return self._named([one * gradient for one, gradient in zip(weights, gradients, strict=True)])

    def _gradients(self, temperature: float) -> list[tf.Tensor]:
        if self.images is None:
            raise InputError("this criterion looks at images: give prune, or resume, images=(x, y), as the model is trained on")
        if temperature != 1 and getattr(self.model.layers[-1], "activation", None) is keras.activations.softmax:
            raise InputError(
                "this criterion divides logits: let the model end in them, without softmax, and its loss take logits"
            )
        x, y = self.images
        others = [one.value for one in self.model.non_trainable_variables]
        how = {"training": True} if self.model._call_has_training_arg else {}
        with tf.GradientTape() as tape:
            tape.watch(self.weights)
            outputs, _ = self.networks.plain.stateless_call(self.weights, others, x, **how)
            cooled = tf.nest.map_structure(lambda output: output / temperature, outputs)
            loss = self.model.compute_loss(x=x, y=y, y_pred=cooled, training=True)
        gradients = tape.gradient(loss, self.weights, unconnected_gradients=ZERO)
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _named(self, tensors: list[tf.Tensor]) -> Arrays:
        return {variable.path: np.asarray(tensor) for variable, tensor in zip(self.variables, tensors, strict=True)}


class Networks:
    """The network of `model` as criteria need it, with variables of its own where it differs."""

    def __init__(self, model: keras.Model):
        self.model = model

    @cached_property
    def plain(self) -> keras.Model:
        """In float32, whatever it is trained in."""
        return self._rebuilt("float32", linear=False) if "16" in self.model.compute_dtype else self.model

    @cached_property
    def linear(self) -> keras.Model:
        """In float64, with activations that pass on what is positive."""
        return self._rebuilt("float64", linear=True)

    def _rebuilt(self, dtype: str, linear: bool) -> keras.Model:
        def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
            config = layer.get_config() | {"dtype": dtype}
            if linear and "activation" in config:
                config["activation"] = "linear"
            if linear and isinstance(layer, keras.layers.ReLU):
                config["max_value"] = None
            return type(layer).from_config(config)

        if not getattr(self.model, "inputs", None):
            raise InputError(f"{self.model.name} is subclassed, and cannot be rebuilt for this criterion: take another one")
        inputs, outputs = (one[0] if len(one) == 1 else one for one in (self.model.inputs, self.model.outputs))
        return keras.models.clone_model(keras.Model(inputs, outputs), clone_function=clone, recursive=True)
