"""The compiled step: what one replica does with its part of a batch, and K steps of it in one call. Which examples, how varied,
at which learning rate comes from the host as small arrays, however steps are divided into calls."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import keras
import tensorflow as tf

from lottery.engine import answers, whitening
from lottery.engine.feed import Feed
from lottery.engine.optimizers import LossScale, Optimizer, assign
from lottery.engine.scopes import part
from lottery.engine.tasks import Batch, Task
from lottery.experiment.recipe import Recipe

Named = dict[str, tf.Tensor]

EVALUATED = 256  # images at a time, or as many as a training batch has: small batches leave a processor half idle


@dataclasses.dataclass(eq=False)
class Step:
    """The network's training step and its evaluation, compiled; nothing runs in Python but the tracing. Gradients are summed
    over the replicas first; then each replica masks them (`masks`: path -> bool variable), checks, clips and applies them."""

    recipe: Recipe
    strategy: tf.distribute.Strategy
    feed: Feed
    task: Task
    model: keras.Model
    masks: Mapping[str, tf.Variable]
    xla: bool

    def __post_init__(self) -> None:
        self.train = self.recipe.train
        self.optimizer = Optimizer(self.train, self.model.trainable_variables, moving_statistics(self.model))
        self.scale = LossScale() if self.train.precision == "mixed_float16" else None
        if self.xla:  # sums over replicas stay outside, where TensorFlow has them
            self._gradients = tf.function(self._gradients, jit_compile=True, autograph=False)  # type: ignore[method-assign]
            self._update = tf.function(self._update, jit_compile=True, autograph=False)  # type: ignore[method-assign]
        batch = self.train.batch
        self.evaluated = batch if self.feed.manifest.fields else batch * max(1, EVALUATED // batch)
        step = [self.feed.rows_spec(batch), self.feed.draws_spec(batch), tf.TensorSpec([None], tf.float32)]
        self.steps = self._compiled(self._step, step, self._sum, [3])
        self.settlings = self._compiled(self._settle, step, self._sum, [3])
        self.dense_gradients = tf.function(self._dense_gradients, input_signature=step[:2], autograph=False)
        shape = [self.evaluated, answers.width(self.task)]
        self.evaluations = self._compiled(self._evaluate, [self.feed.rows_spec(self.evaluated)], self._joined, shape)

    def _compiled(
        self, find: Callable[..., Any], signature: list, combined: Callable[[Any], tf.Tensor], shape: list[int]
    ) -> Callable[..., tf.Tensor]:
        """`repeated` of what the replicas `find`, `combined` into a tensor of `shape`."""
        return repeated(lambda *given: combined(self.strategy.run(find, args=given)), signature, shape)

    def _sum(self, found: Any) -> tf.Tensor:
        return self.strategy.reduce("SUM", found, axis=None)

    def _joined(self, found: Any) -> tf.Tensor:
        return tf.concat(self.strategy.experimental_local_results(found), axis=0)

    def _step(self, rows: Sequence[tf.Tensor], draws: dict[str, tf.Tensor], learning_rate: tf.Tensor) -> tf.Tensor:
        """One step. Returns its mean loss, the sum of the deciding metric, and 1 for an overflow of float16, at which the
        weights stood still (infinity where they would at any scale)."""
        loss, reached, gradients = self._gradients(self._batch(rows, draws))
        with part("update"):
            self._share_statistics()
            overflow = self._update(tf.distribute.get_replica_context().all_reduce("SUM", gradients), learning_rate)
        return tf.stack([loss, reached, overflow / self.strategy.num_replicas_in_sync])

    def _dense_gradients(self, rows: Sequence[tf.Tensor], draws: Named) -> tuple[tf.Tensor, Named]:
        """What `_step` returns of one step ([1, 3]) in which no weight moves, and the gradients, summed over replicas and not
        masked, of every variable that has a mask."""

        def find(rows: Sequence[tf.Tensor], draws: Named) -> tuple[tf.Tensor, Named]:
            loss, reached, gradients = self._gradients(self._batch(rows, draws))
            self._share_statistics()
            scale = self.scale.scale if self.scale else 1.0
            named = zip(self.model.trainable_variables, gradients, strict=True)
            maskable = {weight.path: one / tf.cast(scale, one.dtype) for weight, one in named if weight.path in self.masks}
            return tf.stack([loss, reached, 0.0]), maskable

        given = tf.nest.map_structure(itemgetter(0), (rows, draws))
        sums = tf.nest.map_structure(partial(self.strategy.reduce, "SUM", axis=None), self.strategy.run(find, args=given))
        return sums[0][None], sums[1]

    def _settle(self, rows: Sequence[tf.Tensor], draws: Named, number: tf.Tensor) -> tf.Tensor:
        """Make BatchNorm's moving statistics the means of those of `number` batches, of which this is the last: they move by
        1 - momentum of the way to a batch's. Returns what `_step` does; no weight moves."""
        batch = self._batch(rows, draws)
        settled = batch_statistics(self.model)
        means = [tf.identity(variable.value) for variable, _ in settled]
        outputs = self._outputs(batch)
        self._share_statistics()
        for mean, (variable, momentum) in zip(means, settled, strict=True):
            share = (1 - momentum) * tf.cast(number, mean.dtype)
            assign(variable.value, mean + (variable.value - mean) / share)
        return tf.stack([tf.cast(self._mean_loss(batch, outputs), tf.float32), self._reached(batch, outputs), 0.0])

    @part("input")
    def _batch(self, rows: Sequence[tf.Tensor], draws: Named) -> Batch:
        """This replica's examples, varied."""
        examples, labels = self.feed.examples(self._own(rows, self.train.batch))
        return self.feed.decoder.batch(examples, labels, self._own(draws, self.train.batch))

    def _gradients(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """This replica's part of the mean loss, of the sum of the deciding metric, and of the gradient."""
        with tf.GradientTape() as tape, part("forward"):
            outputs = self._outputs(batch)
            loss = self._mean_loss(batch, outputs)
            target = loss * self.scale.scale if self.scale else loss
        with part("backward"):
            variables = [variable.value for variable in self.model.trainable_variables]
            gradients = tape.gradient(target, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        with part("forward"):
            return tf.cast(loss, tf.float32), self._reached(batch, outputs), gradients

    def _outputs(self, batch: Batch) -> tf.Tensor:
        return self.model(self.task.inputs(batch), training=True)

    def _mean_loss(self, batch: Batch, outputs: tf.Tensor) -> tf.Tensor:
        losses = self.task.training_loss(batch, tf.cast(outputs, self.model.variable_dtype))
        return tf.reduce_sum(losses) / self.train.batch

    def _reached(self, batch: Batch, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(self.task.deciding(batch, outputs))

    def _share_statistics(self) -> None:
        """Give every replica the mean of all replicas' moving statistics, which is what a saved state has."""
        variables = [variable.value for variable in moving_statistics(self.model)]
        if variables and self.strategy.num_replicas_in_sync > 1:
            values = tf.distribute.get_replica_context().all_reduce("MEAN", [tf.identity(variable) for variable in variables])
            for variable, value in zip(variables, values, strict=True):
                assign(variable, value)

    @part("update")
    def _update(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor) -> tf.Tensor:
        """Apply what the masks leave of the summed gradients, shortened together to the norm that the recipe allows (Pascanu et
        al. 2013). Returns 0, or what `LossScale.update` makes of an overflow."""
        if self.scale or self.train.clip_norm:
            gradients = self.optimizer.selected(gradients, self.masks)
        if self.scale:
            gradients = [gradient / self.scale.scale for gradient in gradients]

        def apply() -> None:
            shortened, most = gradients, self.train.clip_norm
            if most:
                shortened, _ = tf.clip_by_global_norm(gradients, most)
            self.optimizer.apply(shortened, learning_rate, self.masks)

        if self.scale is None:
            apply()
            return tf.constant(0.0)
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
        tf.cond(finite, apply, lambda: None)
        return self.scale.update(finite)

    def _evaluate(self, rows: Sequence[tf.Tensor]) -> tf.Tensor:
        """This replica's part of the answers."""
        batch = self.feed.decoder.batch(*self.feed.examples(self._own(rows, self.evaluated)))
        outputs = tf.cast(self.model(self.task.inputs(batch), training=False), tf.float32)
        losses = self.task.loss(batch, tf.cast(outputs, self.model.variable_dtype))
        return answers.figures(self.task, batch, outputs, losses)

    def _own(self, batch: Any, size: int) -> Any:
        """This replica's part of the tensors of a global batch of `size` examples."""
        context = tf.distribute.get_replica_context()
        share = size // context.num_replicas_in_sync
        first = context.replica_id_in_sync_group * share
        return tf.nest.map_structure(lambda tensor: tensor[first : first + share], batch)


def repeated(find: Callable[..., tf.Tensor], signature: list, shape: list[int]) -> Callable[..., tf.Tensor]:
    """A compiled function of what `find` takes of several steps ([steps, ...]): what it finds (float32, [steps, *shape])."""
    find = tf.autograph.experimental.do_not_convert(find)  # only the loop needs that, and it takes half the time of tracing

    def found(*steps: Any) -> tf.Tensor:
        count = tf.shape(tf.nest.flatten(steps)[-1])[0]
        figures = tf.TensorArray(tf.float32, size=count, element_shape=shape)
        for index in tf.range(count):
            with part("input"):
                given = tf.nest.map_structure(itemgetter(index), steps)
            figures = figures.write(index, find(*given))
        return figures.stack()

    return tf.function(found, input_signature=signature)


def moving_statistics(model: keras.Model) -> list[keras.Variable]:
    """What of a network may change at each step beside its weights: BatchNorm's moving means and variances, and whatever
    floating-point variables are not trained in a network of the user's own."""
    others = (variable for variable in model.non_trainable_variables if variable.path != whitening.PATH)
    return [variable for variable in others if variable.value.dtype.is_floating]


def batch_statistics(model: keras.Model) -> list[tuple[keras.Variable, float]]:
    """The moving means and variances of a network's BatchNorm, each with its momentum."""
    wanted = {"moving_mean", "moving_variance", "momentum"}
    layers = [layer for layer in model._flatten_layers() if all(hasattr(layer, name) for name in wanted) and layer.momentum < 1]
    return [(variable, layer.momentum) for layer in layers for variable in (layer.moving_mean, layer.moving_variance)]
