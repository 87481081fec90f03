"""The compiled step: what one replica does with its part of a batch, and K steps of it in one call.

The plan of the steps (which images, how augmented, at which learning rate) comes from the host as small arrays; what is done
is therefore a function of the step, not of how steps are divided into calls.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from lottery.engine import precision, rematerialise, whitening
from lottery.engine.augment import augment, cut_out, normalise
from lottery.engine.feed import Feed, Rows
from lottery.engine.optimizers import Optimizer, assign, masked
from lottery.engine.order import Draws
from lottery.engine.scopes import part
from lottery.experiment.recipe import Recipe

TOP = 5  # a right answer among the first so many
EVALUATED = 256  # images at a time, or as many as a training batch has: small batches leave a processor half idle


@dataclasses.dataclass(eq=False)
class Step:
    """The network's training step and its evaluation, compiled; nothing of them runs in Python but the tracing.

    Gradients are summed over the replicas first; then each replica masks, checks, clips and applies the same ones.
    `masks` (path -> bool variable) are what the step keeps of the gradients, `scale` is the loss scale of float16.
    """

    recipe: Recipe
    strategy: tf.distribute.Strategy
    feed: Feed
    model: keras.Model
    optimizer: Optimizer
    masks: Mapping[str, tf.Variable]
    scale: precision.LossScale | None
    xla: bool

    def __post_init__(self) -> None:
        self.train, self.data = self.recipe.train, self.recipe.data
        self._blocks = rematerialise.blocks(self.model) if self.train.remat else None
        if self.xla:  # sums over replicas stay outside, where TensorFlow has them
            self._gradients = tf.function(self._gradients, jit_compile=True)  # type: ignore[method-assign]
            self._update = tf.function(self._update, jit_compile=True)  # type: ignore[method-assign]
        batch = self.train.batch
        self.evaluated = batch * max(1, EVALUATED // batch)
        step = [self.feed.rows_spec(batch), self.feed.draws_spec(batch), tf.TensorSpec([None], tf.float32)]
        self.steps = tf.function(self._steps, input_signature=step)
        evaluation = [self.feed.rows_spec(self.evaluated), tf.TensorSpec([None, self.evaluated], tf.float32)]
        self.evaluations = tf.function(self._evaluations, input_signature=evaluation)

    def _steps(self, rows: Rows, draws: Draws, learning_rates: tf.Tensor) -> tf.Tensor:
        """One step for each of `learning_rates`. Returns the figures of each ([steps, 3]): mean loss, right answers, and 1 for
        an overflow of float16, at which the weights stood still (infinity where they would at any scale)."""

        def step(index: tf.Tensor) -> tf.Tensor:
            with part("input"):
                own = _at(index, (rows, draws, learning_rates))
            return self.strategy.run(self._step, args=own)

        return self._sums(step, tf.shape(learning_rates)[0])

    def _step(self, rows: Sequence[tf.Tensor], draws: dict[str, tf.Tensor], learning_rate: tf.Tensor) -> tf.Tensor:
        images, labels = self._images(rows, draws)
        loss, right, gradients = self._gradients(images, labels)
        with part("update"):
            self._share_statistics()
            overflow = self._update(tf.distribute.get_replica_context().all_reduce("SUM", gradients), learning_rate)
        return tf.stack([loss, right, overflow / self.strategy.num_replicas_in_sync])

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
            logits = self._forward(images)
            loss = tf.reduce_sum(self._cross_entropy(labels, logits, self.train.label_smoothing)) / self.train.batch
            target = self.scale.scaled(loss) if self.scale else loss
        with part("backward"):
            variables = [variable.value for variable in self.model.trainable_variables]
            gradients = tape.gradient(target, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        with part("forward"):
            return tf.cast(loss, tf.float32), tf.reduce_sum(_right(labels, logits)), gradients

    def _share_statistics(self) -> None:
        """Give every replica the mean of all replicas' moving statistics, which is what a saved state has."""
        variables = [variable.value for variable in moving_statistics(self.model)]
        if variables and self.strategy.num_replicas_in_sync > 1:
            values = tf.distribute.get_replica_context().all_reduce("MEAN", [tf.identity(variable) for variable in variables])
            for variable, value in zip(variables, values, strict=True):
                assign(variable, value)

    @part("update")
    def _update(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor) -> tf.Tensor:
        """Apply what the masks leave of the summed gradients. Returns 0, or what `LossScale.update` makes of an overflow."""
        if self.scale is None and not self.train.clip_norm:
            self.optimizer.apply(gradients, learning_rate, self.masks)
            return tf.constant(0.0)
        pairs = zip(self.model.trainable_variables, gradients, strict=True)
        gradients = [
            masked(gradient, self.masks[weight.path]) if weight.path in self.masks else gradient for weight, gradient in pairs
        ]
        if self.scale is None:
            self._apply(gradients, learning_rate)
            return tf.constant(0.0)
        gradients = self.scale.unscaled(gradients)
        finite = precision.all_finite(gradients)
        tf.cond(finite, lambda: self._apply(gradients, learning_rate), lambda: None)
        return self.scale.update(finite)

    def _apply(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor) -> None:
        """Apply `gradients`, shortened together to the norm that the recipe allows (Pascanu et al. 2013)."""
        if self.train.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self.train.clip_norm)
        self.optimizer.apply(gradients, learning_rate, self.masks)

    def _forward(self, images: tf.Tensor) -> tf.Tensor:
        if self._blocks is None:
            return self.model(images, training=True)
        for block in self._blocks:
            images = rematerialise.run(block, images)
        return images

    def _evaluations(self, rows: Rows, weights: tf.Tensor) -> tf.Tensor:
        """By step ([steps, 3]): loss, right answers, and right ones among the first five, each image by its weight."""

        def evaluation(index: tf.Tensor) -> tf.Tensor:
            return self.strategy.run(self._evaluate, args=_at(index, (rows, weights)))

        return self._sums(evaluation, tf.shape(weights)[0])

    def _evaluate(self, rows: Sequence[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        images, labels = self.feed.images(self._own(rows, self.evaluated))
        logits = tf.cast(self.model(normalise(images, self.data), training=False), tf.float32)
        loss = tf.cast(self._cross_entropy(labels, logits, 0.0), tf.float32)
        figures = (loss, _right(labels, logits), _right_in_top(labels, logits))
        return tf.stack([tf.reduce_sum(values * self._own(weights, self.evaluated)) for values in figures])

    def _sums(self, run: Callable[[tf.Tensor], tf.Tensor], count: tf.Tensor) -> tf.Tensor:
        """What `run` finds at 0 .. `count` - 1, summed over the replicas ([count, 3])."""
        sums = tf.TensorArray(tf.float32, size=count, element_shape=[3])
        for index in tf.range(count):
            sums = sums.write(index, self.strategy.reduce("SUM", run(index), axis=None))
        return sums.stack()

    def _own(self, batch: Any, size: int) -> Any:
        """This replica's part of the tensors of a global batch of `size` images."""
        context = tf.distribute.get_replica_context()
        share = size // context.num_replicas_in_sync
        first = context.replica_id_in_sync_group * share
        return tf.nest.map_structure(lambda tensor: tensor[first : first + share], batch)

    def _cross_entropy(self, labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
        logits = tf.cast(logits, self.model.variable_dtype)
        if not smoothing:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        rest = smoothing / self.feed.classes
        targets = tf.one_hot(labels, self.feed.classes, 1 - smoothing + rest, rest, dtype=logits.dtype)
        return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


def moving_statistics(model: keras.Model) -> list[keras.Variable]:
    """What of a network may change at each step beside its weights: BatchNorm's moving means and variances, and whatever
    floating-point variables are not trained in a network of the user's own."""
    others = (variable for variable in model.non_trainable_variables if variable.path != whitening.PATH)
    return [variable for variable in others if variable.value.dtype.is_floating]


def _at(index: tf.Tensor, steps: Any) -> Any:
    """What `steps` ([steps, ...], nested) hold for one step."""
    return tf.nest.map_structure(lambda tensor: tensor[index], steps)


def _right(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels), tf.float32)


def _right_in_top(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Of equal logits the first ones count, so that a network that tells nothing apart is not right about everything."""
    first = tf.math.top_k(logits, min(TOP, logits.shape[-1])).indices
    return tf.cast(tf.reduce_any(tf.equal(first, labels[:, None]), axis=1), tf.float32)
