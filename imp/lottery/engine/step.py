"""The compiled step: what one replica does with its part of a batch, and K steps of it in one call.

Which images, how augmented, at which learning rate comes from the host as small arrays, however steps are divided into calls.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import itemgetter
from typing import Any

import keras
import tensorflow as tf

from lottery.engine import rematerialise, whitening
from lottery.engine.augment import augment, cut_out, normalise
from lottery.engine.feed import Feed
from lottery.engine.optimizers import LossScale, Optimizer, assign, masked
from lottery.engine.scopes import part
from lottery.experiment.recipe import Recipe

Named = dict[str, tf.Tensor]

TOP = 5  # a right answer among the first so many
EVALUATED = 256  # images at a time, or as many as a training batch has: small batches leave a processor half idle


@dataclasses.dataclass(eq=False)
class Step:
    """The network's training step and its evaluation, compiled; nothing of them runs in Python but the tracing. Gradients are
    summed over the replicas first; then each replica keeps of them what `masks` (path -> bool variable) say, checks, clips and
    applies the same ones."""

    recipe: Recipe
    strategy: tf.distribute.Strategy
    feed: Feed
    model: keras.Model
    masks: Mapping[str, tf.Variable]
    xla: bool

    def __post_init__(self) -> None:
        self.train, self.data = self.recipe.train, self.recipe.data
        self.optimizer = Optimizer(self.train, self.model.trainable_variables, moving_statistics(self.model))
        self.scale = LossScale() if self.train.precision == "mixed_float16" else None
        self._layers: Sequence[Callable[[tf.Tensor], tf.Tensor]] = [partial(self.model, training=True)]
        if self.train.remat:
            self._layers = [partial(rematerialise.run, block) for block in rematerialise.blocks(self.model)]
        if self.xla:  # sums over replicas stay outside, where TensorFlow has them
            self._gradients = tf.function(self._gradients, jit_compile=True, autograph=False)  # type: ignore[method-assign]
            self._update = tf.function(self._update, jit_compile=True, autograph=False)  # type: ignore[method-assign]
        batch = self.train.batch
        self.evaluated = batch * max(1, EVALUATED // batch)
        step = [self.feed.rows_spec(batch), self.feed.draws_spec(batch), tf.TensorSpec([None], tf.float32)]
        self.steps = self._compiled(self._step, step)
        self.settlings = self._compiled(self._settle, step)
        self.dense_gradients = tf.function(self._dense_gradients, input_signature=step[:2], autograph=False)
        evaluation = [self.feed.rows_spec(self.evaluated), tf.TensorSpec([None, self.evaluated], tf.float32)]
        self.evaluations = self._compiled(self._evaluate, evaluation)

    def _compiled(self, find: Callable[..., tf.Tensor], signature: list) -> Callable[..., tf.Tensor]:
        """A function of what `find` takes of several steps ([steps, ...]): what it finds, summed over replicas ([steps, 3])."""
        find = tf.autograph.experimental.do_not_convert(find)  # only the loop needs that, and it takes half the time of tracing

        def found(*steps: Any) -> tf.Tensor:
            count = tf.shape(steps[-1])[0]
            sums = tf.TensorArray(tf.float32, size=count, element_shape=[3])
            for index in tf.range(count):
                with part("input"):
                    given = tf.nest.map_structure(itemgetter(index), steps)
                sums = sums.write(index, self.strategy.reduce("SUM", self.strategy.run(find, args=given), axis=None))
            return sums.stack()

        return tf.function(found, input_signature=signature)

    def _step(self, rows: Sequence[tf.Tensor], draws: dict[str, tf.Tensor], learning_rate: tf.Tensor) -> tf.Tensor:
        """One step. Returns its mean loss, right answers, and 1 for an overflow of float16, at which the weights stood still
        (infinity where they would at any scale)."""
        images, labels = self._images(rows, draws)
        loss, answered, gradients = self._gradients(images, labels)
        with part("update"):
            self._share_statistics()
            overflow = self._update(tf.distribute.get_replica_context().all_reduce("SUM", gradients), learning_rate)
        return tf.stack([loss, answered, overflow / self.strategy.num_replicas_in_sync])

    def _dense_gradients(self, rows: Sequence[tf.Tensor], draws: Named) -> tuple[tf.Tensor, Named]:
        """What `_step` returns of one step ([1, 3]) in which no weight moves, and the gradients, summed over replicas and not
        masked, of every variable that has a mask."""

        def find(rows: Sequence[tf.Tensor], draws: Named) -> tuple[tf.Tensor, Named]:
            loss, answered, gradients = self._gradients(*self._images(rows, draws))
            self._share_statistics()
            scale = self.scale.scale if self.scale else 1.0
            named = zip(self.model.trainable_variables, gradients, strict=True)
            maskable = {weight.path: one / tf.cast(scale, one.dtype) for weight, one in named if weight.path in self.masks}
            return tf.stack([loss, answered, 0.0]), maskable

        given = tf.nest.map_structure(itemgetter(0), (rows, draws))
        sums = tf.nest.map_structure(partial(self.strategy.reduce, "SUM", axis=None), self.strategy.run(find, args=given))
        return sums[0][None], sums[1]

    def _settle(self, rows: Sequence[tf.Tensor], draws: Named, number: tf.Tensor) -> tf.Tensor:
        """Make BatchNorm's moving statistics the means of those of `number` batches, of which this is the last: they move by
        1 - momentum of the way to a batch's. Returns what `_step` does; no weight moves."""
        images, labels = self._images(rows, draws)
        settled = batch_statistics(self.model)
        means = [tf.identity(variable.value) for variable, _ in settled]
        logits = reduce(lambda inputs, layer: layer(inputs), self._layers, images)
        self._share_statistics()
        for mean, (variable, momentum) in zip(means, settled, strict=True):
            share = (1 - momentum) * tf.cast(number, mean.dtype)
            assign(variable.value, mean + (variable.value - mean) / share)
        loss = tf.reduce_sum(self._loss(labels, logits, self.train.label_smoothing)) / self.train.batch
        return tf.stack([tf.cast(loss, tf.float32), tf.reduce_sum(right(labels, logits)), 0.0])

    @part("input")
    def _images(self, rows: Sequence[tf.Tensor], draws: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """This replica's images (float32), augmented, and their labels."""
        images, labels = self.feed.images(self._own(rows, self.train.batch))
        draws = self._own(draws, self.train.batch)
        images = normalise(augment(images, draws, self.data), self.data)
        if self.data.cutout:
            images = cut_out(images, draws["hole"], self.data.cutout)
        return images, labels

    def _gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """This replica's part of the mean loss, its right answers, and its part of the gradient."""
        with tf.GradientTape() as tape, part("forward"):
            logits = reduce(lambda inputs, layer: layer(inputs), self._layers, images)
            loss = tf.reduce_sum(self._loss(labels, logits, self.train.label_smoothing)) / self.train.batch
            target = loss * self.scale.scale if self.scale else loss
        with part("backward"):
            variables = [variable.value for variable in self.model.trainable_variables]
            gradients = tape.gradient(target, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        with part("forward"):
            return tf.cast(loss, tf.float32), tf.reduce_sum(right(labels, logits)), gradients

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
            pairs = zip((self.masks.get(weight.path) for weight in self.model.trainable_variables), gradients, strict=True)
            gradients = [gradient if mask is None else masked(gradient, mask) for mask, gradient in pairs]
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

    def _evaluate(self, rows: Sequence[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        """Loss, right answers, and right ones among the first five, each image by its weight."""
        images, labels = self.feed.images(self._own(rows, self.evaluated))
        logits = tf.cast(self.model(normalise(images, self.data), training=False), tf.float32)
        loss = tf.cast(self._loss(labels, logits, 0.0), tf.float32)
        figures = (loss, right(labels, logits), right_in_top(labels, logits))
        return tf.stack([tf.reduce_sum(values * self._own(weights, self.evaluated)) for values in figures])

    def _own(self, batch: Any, size: int) -> Any:
        """This replica's part of the tensors of a global batch of `size` images."""
        context = tf.distribute.get_replica_context()
        share = size // context.num_replicas_in_sync
        first = context.replica_id_in_sync_group * share
        return tf.nest.map_structure(lambda tensor: tensor[first : first + share], batch)

    def _loss(self, labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
        return cross_entropy(labels, tf.cast(logits, self.model.variable_dtype), smoothing)


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
    """That of each image ([n]) with the share `smoothing` of its label spread over all classes."""
    if not smoothing:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    classes = logits.shape[-1]
    rest = smoothing / classes
    targets = tf.one_hot(labels, classes, 1 - smoothing + rest, rest, dtype=logits.dtype)
    return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


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


def right(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """1.0 for each image that is answered with its label (float32, [n])."""
    return tf.cast(tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels), tf.float32)


def right_in_top(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """1.0 where the label is among the first five. Of equal logits the first ones count, so that a network that tells nothing
    apart is not right about everything."""
    first = tf.math.top_k(logits, min(TOP, logits.shape[-1])).indices
    return tf.cast(tf.reduce_any(tf.equal(first, labels[:, None]), axis=1), tf.float32)
