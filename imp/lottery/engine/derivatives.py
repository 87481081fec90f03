"""Derivatives of a network at any weights: what criteria score weights by. No variable is changed; nothing is trained."""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import keras
import numpy as np
import tensorflow as tf

from data_prep.errors import InputError
from data_prep.records import Manifest
from lottery.engine import devices, models, tasks
from lottery.engine.decoding import Decoder
from lottery.experiment.recipe import Recipe
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State

Tensors = list[tf.Tensor]
ZERO = tf.UnconnectedGradients.ZERO
_OPTION = threading.Lock()


class Derivatives:
    """The networks that a recipe builds for the set of `manifest`, ready to be differentiated on the devices `names`. Arrays
    are by the path of each trainable variable, in its shape.

    Examples go through in batches of `train.batch`, each divided among the devices as evenly as it can be; with `training`,
    BatchNorm normalises by what one device holds of one batch (or by the batch, if the recipe synchronises it), else by the
    moving statistics of the state. Sums are taken over batches and devices in a fixed order: the same call gives the same bits.
    """

    def __init__(self, recipe: Recipe, manifest: Manifest, names: Sequence[str]):
        self.recipe, self.task, self.decoder = recipe, tasks.make(recipe, manifest), Decoder(manifest, recipe.data)
        self.strategy = devices.strategy(names)
        self._flowing: State | None = None  # whose absolute values the linear network has
        self._compiled: dict[tuple[tuple[str, ...] | None, bool], Callable[..., Tensors]] = {}

    def gradients(
        self, state: State, examples: np.ndarray, labels: np.ndarray, temperature: float = 1.0, training: bool = True
    ) -> Arrays:
        """dL/dw of the task's mean loss L at outputs / `temperature` on `examples` (uint8, [n, *shape]), whose `labels` are
        int32 [n]; without weight decay and label smoothing."""
        return self._summed(state, None, examples, labels, temperature, training)

    def hessian_product(
        self,
        state: State,
        vector: Arrays,
        examples: np.ndarray,
        labels: np.ndarray,
        temperature: float = 1.0,
        training: bool = True,
    ) -> Arrays:
        """H v for the Hessian H of that L with respect to the variables that the `vector` v has; the others are constant. No
        Hessian is made: H v is the gradient of g v (Pearlmutter 1994)."""
        return self._summed(state, vector, examples, labels, temperature, training) if vector else {}

    def flow(self, state: State, mask: Bits) -> Arrays:
        """|w| dR/d|w| (float64) under `mask`, for the sum R of the outputs for one image of ones, where weights have their
        absolute values and activations pass on what they get. BatchNorm scales by its moving variance and subtracts no mean, so
        that every term of R is the product of the weights along a path. Raises InputError where examples are no images."""
        if self.decoder.fields:
            raise InputError("synflow sends an image of ones through the network, which reads none: take another criterion")
        if self._flowing is not state:
            weights, statistics = self._ordered(self._linear, state)
            for variable, value in zip(
                self._linear.trainable_variables + self._linear.non_trainable_variables, weights + statistics, strict=True
            ):
                variable.assign(tf.zeros_like(value) if variable.path.endswith("moving_mean") else tf.abs(value))
            self._flowing = state
        variables = self._linear.trainable_variables
        kept = [mask[one.path].ravel() if one.path in mask else np.ones(one.shape, bool).ravel() for one in variables]
        return _named(variables, self._flow(np.concatenate(kept)))

    @cached_property
    def _network(self) -> keras.Model:
        return self._built("float64" if self.recipe.train.precision == "float64" else "float32")

    @cached_property
    def _linear(self) -> keras.Model:
        """The network in float64 (the products of deep networks leave the range of float32), its activations the identity."""
        network = self._built("float64")
        for layer in network._flatten_layers():
            if isinstance(layer, keras.layers.ReLU):
                layer.max_value = None  # what is left is the identity of what is positive
            elif hasattr(layer, "activation"):
                layer.activation = keras.activations.linear
        return network

    def _built(self, precision: str) -> keras.Model:
        with models.policy(precision):
            return models.build(self.recipe.model, self.task.signature)

    def _summed(
        self, state: State, vector: Arrays | None, examples: np.ndarray, labels: np.ndarray, temperature: float, training: bool
    ) -> Arrays:
        weights, statistics = self._ordered(self._network, state)
        along = [tf.constant(vector[one.path], one.dtype) for one in self._asked(vector)] if vector else []
        how = tuple(vector) if vector else None, training
        if how not in self._compiled:
            self._compiled[how] = self._compile(vector, training)
        derive, total = self._compiled[how], None
        parts = -(-len(examples) // self.recipe.train.batch)
        for part in zip(np.array_split(examples, parts), np.array_split(labels, parts), strict=True):
            with as_written():
                found = derive(weights, statistics, along, *map(tf.constant, part), tf.constant(1 / temperature))
            total = found if total is None else [one + other for one, other in zip(total, found, strict=True)]
        assert total is not None, "there are examples"
        return {path: array / len(examples) for path, array in _named(self._asked(vector), total).items()}

    def _asked(self, vector: Arrays | None) -> list[keras.Variable]:
        """The variables to differentiate with respect to."""
        return [one for one in self._network.trainable_variables if not vector or one.path in vector]

    def _compile(self, vector: Arrays | None, training: bool) -> Callable[..., Tensors]:
        """A function of weights, statistics, the vector's arrays, a batch and the outputs' scale: the sum of each example's
        gradient or, with a `vector`, of its Hessian's product with one of these paths."""
        asked = {one.path for one in self._asked(vector)}
        variables = self._network.trainable_variables

        def derive(
            weights: Tensors, statistics: Tensors, along: Tensors, examples: tf.Tensor, labels: tf.Tensor, scale: tf.Tensor
        ) -> Tensors:
            chosen = [weight for weight, variable in zip(weights, variables, strict=True) if variable.path in asked]

            def own() -> Tensors:
                context = tf.distribute.get_replica_context()
                number = int(tf.get_static_value(context.replica_id_in_sync_group))
                first, last = (place * examples.shape[0] // context.num_replicas_in_sync for place in (number, number + 1))
                batch = self.decoder.batch(examples[first:last], labels[first:last])
                with tf.GradientTape() as tape:
                    tape.watch(chosen)
                    with tf.GradientTape() as inner:
                        inner.watch(chosen)
                        loss = self._loss(weights, statistics, batch, scale, training)
                    gradients = inner.gradient(loss, chosen, unconnected_gradients=ZERO)
                    gradients = [tf.convert_to_tensor(one) for one in gradients]  # of what is looked up there are slices
                    if not along:
                        return gradients
                    slope = tf.add_n([tf.reduce_sum(one * part) for one, part in zip(along, gradients, strict=True)])
                return [tf.convert_to_tensor(one) for one in tape.gradient(slope, chosen, unconnected_gradients=ZERO)]

            return [self.strategy.reduce("SUM", one, axis=None) for one in self.strategy.run(own)]

        return tf.function(derive, autograph=False)  # for each size of a batch: known sizes make half as large a graph

    def _loss(self, weights: Tensors, statistics: Tensors, batch: tasks.Batch, scale: tf.Tensor, training: bool) -> tf.Tensor:
        outputs, _ = self._network.stateless_call(weights, statistics, self.task.inputs(batch), training=training)
        return tf.reduce_sum(self.task.loss(batch, outputs * tf.cast(scale, outputs.dtype)))

    @tf.function(autograph=False)
    def _flow(self, kept: tf.Tensor) -> Tensors:
        """`kept` (bool, [n]) has a place for every trainable weight."""
        variables, others = self._linear.trainable_variables, self._linear.non_trainable_variables
        parts = tf.split(kept, [math.prod(one.shape) for one in variables])
        weights = [tf.where(tf.reshape(part, one.shape), one.value, 0) for one, part in zip(variables, parts, strict=True)]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            ones = tf.ones((1, *self.task.signature.shape), tf.float64)
            outputs, _ = self._linear.stateless_call(weights, [one.value for one in others], ones, training=False)
            total = tf.reduce_sum(outputs)
        gradients = tape.gradient(total, weights, unconnected_gradients=ZERO)
        return [one * gradient for one, gradient in zip(weights, gradients, strict=True)]

    def _ordered(self, network: keras.Model, state: State) -> tuple[Tensors, Tensors]:
        """The arrays of `state` in the order of the variables of `network`, in their dtypes."""
        weights = [tf.constant(state.weights[variable.path], variable.dtype) for variable in network.trainable_variables]
        others = ((variable.dtype, state.statistics[variable.path]) for variable in network.non_trainable_variables)
        return weights, [tf.constant(array, dtype) for dtype, array in others]


def _named(variables: Sequence[keras.Variable], tensors: Tensors) -> Arrays:
    return {variable.path: np.asarray(tensor) for variable, tensor in zip(variables, tensors, strict=True)}


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Functions that are called within run as they are written. TensorFlow 2.21's graph optimizer makes second derivatives of
    deep networks with BatchNorm wrong: by as much as they are, in MobileNetV2. One thread at a time, as the option is the
    process's."""
    with _OPTION:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        try:
            yield
        finally:
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
