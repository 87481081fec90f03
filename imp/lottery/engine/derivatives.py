"""Derivatives of a network at any weights: what criteria score weights by. No variable is changed; nothing is trained."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property

import keras
import numpy as np
import tensorflow as tf

from data_prep.records import Manifest
from lottery.base.errors import InputError
from lottery.engine import devices, models
from lottery.engine.decoding import Decoder
from lottery.engine.differentiation import Tensors, as_written, derived, differentiated, named, second_order
from lottery.engine.tasks import Batch, choice
from lottery.experiment.recipe import Recipe
from lottery.networks.flow import Flow
from lottery.pruning import masks
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State


class Derivatives:
    """The networks that a recipe builds for the set of `manifest`, ready to be differentiated on the devices `names`. Arrays
    are by the path of each trainable variable, in its shape.

    Examples go through in batches of `train.batch`, each divided among the devices as evenly as it can be; with `training`,
    BatchNorm normalises by what one device holds of one batch (or by the batch, if the recipe synchronises it), else by the
    moving statistics of the state. Sums are taken over batches and devices in a fixed order: the same call gives the same bits.
    """

    def __init__(self, recipe: Recipe, manifest: Manifest, names: Sequence[str]):
        self.recipe, self.task, self.decoder = recipe, choice.make(recipe, manifest), Decoder(manifest, recipe.data)
        self.strategy = devices.strategy(names)
        self._compiled: dict[tuple[tuple[str, ...] | None, bool], Callable[..., Tensors]] = {}

    def gradients(
        self,
        state: State,
        examples: np.ndarray,
        labels: np.ndarray,
        temperature: float = 1.0,
        training: bool = True,
        vector: Arrays | None = None,
    ) -> Arrays:
        """dL/dw of the task's mean loss L at outputs / `temperature` on `examples` (uint8, [n, *shape]), whose `labels` are
        int32 [n]; without weight decay and label smoothing. Given a `vector` v, in place of these H v for the Hessian H of L
        with respect to the variables that v has; the others are constant. H v is the gradient of g v (Pearlmutter 1994)."""
        if vector is not None and not vector:
            return {}
        weights, statistics = self._ordered(self._network, state)
        along = [tf.constant(vector[one.path], one.dtype) for one in self._asked(vector)] if vector else []
        how = tuple(vector) if vector else None, training
        if how not in self._compiled:
            self._compiled[how] = self._compile(vector, training)
        derive, total = self._compiled[how], None
        parts = -(-len(examples) // self.recipe.train.batch)
        for part in zip(np.array_split(examples, parts), np.array_split(labels, parts), strict=True):
            with second_order() if vector else as_written():
                found = derive(weights, statistics, along, *map(tf.constant, part), tf.constant(1 / temperature))
            total = found if total is None else [one + other for one, other in zip(total, found, strict=True)]
        assert total is not None, "there are examples"
        return {path: array / len(examples) for path, array in named(self._asked(vector), total).items()}

    def flow(self, state: State, mask: Bits) -> Arrays:
        """|w| dR/d|w| (float64) under `mask`, for the sum R of the outputs of SynFlow's network for one image of ones. Raises
        InputError where examples are no images, and as `Flow` does."""
        if self.decoder.fields:
            raise InputError("synflow sends an image of ones through the network, which reads none: take another criterion")
        kept = dataclasses.replace(state, weights=masks.apply(mask, state.weights))
        flow = self._flow(*self._ordered(self._flow.network, kept), [(None, *self.task.signature.shape)])
        return named(self._flow.network.trainable_variables, flow)

    @cached_property
    def _network(self) -> keras.Model:
        return self._built("float64" if self.recipe.train.precision == "float64" else "float32")

    @cached_property
    def _flow(self) -> Flow:
        return Flow(self._built("float64"), differentiated)

    def _built(self, precision: str) -> keras.Model:
        with models.policy(precision):
            return models.build(self.recipe.model, self.task.signature)

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
                return derived(lambda: self._loss(weights, statistics, batch, scale, training), chosen, along)

            return [self.strategy.reduce("SUM", one, axis=None) for one in self.strategy.run(own)]

        return tf.function(derive, autograph=False)  # for each size of a batch: known sizes make half as large a graph

    def _loss(self, weights: Tensors, statistics: Tensors, batch: Batch, scale: tf.Tensor, training: bool) -> tf.Tensor:
        outputs, _ = self._network.stateless_call(weights, statistics, self.task.inputs(batch), training=training)
        return tf.reduce_sum(self.task.loss(batch, outputs * tf.cast(scale, outputs.dtype)))

    def _ordered(self, network: keras.Model, state: State) -> tuple[Tensors, Tensors]:
        """The arrays of `state` in the order of the variables of `network`, in their dtypes."""
        weights = [tf.constant(state.weights[variable.path], variable.dtype) for variable in network.trainable_variables]
        others = ((variable.dtype, state.statistics[variable.path]) for variable in network.non_trainable_variables)
        return weights, [tf.constant(array, dtype) for dtype, array in others]
