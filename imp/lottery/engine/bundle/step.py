"""The compiled step of a bundle: `Step` with a ticket axis, which no sum, norm or check crosses."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

import keras
import tensorflow as tf

from lottery.engine.augment import augment, cut_out, normalise
from lottery.engine.bundle.network import Forward
from lottery.engine.bundle.optimizer import BundledOptimizer, along
from lottery.engine.feed import Feed
from lottery.engine.optimizers import LossScale, assign, masked
from lottery.engine.scopes import part
from lottery.engine.step import Named, cross_entropy, moving_statistics, right, right_in_top
from lottery.experiment.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Stacked:
    """A variable of every ticket: `value` has the shape [T, *shape]."""

    path: str
    value: tf.Variable

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def shape(self) -> tf.TensorShape:
        return self.value.shape

    @property
    def dtype(self) -> tf.DType:
        return self.value.dtype


@dataclasses.dataclass(eq=False)
class BundledStep:
    """The training step of `size` networks like `network`, and their evaluation. Each has its own images, masks (of the
    variables in `maskable`), learning rate, clipping and loss scale; none moves another's numbers."""

    recipe: Recipe
    feed: Feed
    network: keras.Model
    maskable: Sequence[str]
    xla: bool
    size: int

    def __post_init__(self) -> None:
        self.train, self.data = self.recipe.train, self.recipe.data
        numbers = (self.size,)
        stacked = {one.path: Stacked(one.path, self._variable(one)) for one in self.network.variables}
        self.weights = [stacked[one.path] for one in self.network.trainable_variables]
        self.statistics = [stacked[one.path] for one in self.network.non_trainable_variables]
        self.masks = {path: tf.Variable(tf.ones(stacked[path].shape, tf.bool), trainable=False) for path in self.maskable}
        moving = [stacked[one.path] for one in moving_statistics(self.network)]
        self.optimizer = BundledOptimizer(self.train, self.weights, moving, numbers)
        self.scale = LossScale(numbers) if self.train.precision == "mixed_float16" else None
        self.state = self.optimizer.state | (self.scale.state if self.scale else {})
        if self.xla:
            self._gradients = tf.function(self._gradients, jit_compile=True, autograph=False)  # type: ignore[method-assign]
            self._update = tf.function(self._update, jit_compile=True, autograph=False)  # type: ignore[method-assign]

    def _variable(self, one: keras.Variable) -> tf.Variable:
        return tf.Variable(tf.zeros([self.size, *one.shape], one.dtype), trainable=one.trainable)

    @cached_property
    def steps(self) -> Callable[..., tf.Tensor]:
        """A compiled function of rows and draws ([steps, T, batch, ...]) and learning rates (float32, [steps, T]): the figures
        of the steps taken, as `Step.steps` has them (float32, [steps, T, 3])."""
        batch = self.train.batch
        given = [self.feed.rows_spec(batch), self.feed.draws_spec(batch)]
        own = tf.nest.map_structure(lambda one: tf.TensorSpec([None, self.size, *one.shape[1:]], one.dtype), given)
        return self._compiled(self._step, [*own, tf.TensorSpec([None, self.size], tf.float32)])

    @cached_property
    def evaluations(self) -> Callable[..., tf.Tensor]:
        """A compiled function of rows ([steps, batch, ...]) that all tickets see, and weights of the images: what
        `Step.evaluations` finds (float32, [steps, T, 3])."""
        batch = self.train.batch
        return self._compiled(self._evaluate, [self.feed.rows_spec(batch), tf.TensorSpec([None, batch], tf.float32)])

    def _compiled(self, find: Callable[..., tf.Tensor], signature: list) -> Callable[..., tf.Tensor]:
        find = tf.autograph.experimental.do_not_convert(find)

        def found(*steps: Any) -> tf.Tensor:
            count = tf.shape(steps[-1])[0]
            figures = tf.TensorArray(tf.float32, size=count, element_shape=[self.size, 3])
            for index in tf.range(count):
                with part("input"):
                    given = tf.nest.map_structure(itemgetter(index), steps)
                figures = figures.write(index, find(*given))
            return figures.stack()

        return tf.function(found, input_signature=signature)

    def _step(self, rows: Sequence[tf.Tensor], draws: Named, rates: tf.Tensor) -> tf.Tensor:
        images, labels = self._images(rows, draws)
        loss, right_ones, gradients, statistics = self._gradients(images, labels)
        with part("update"):
            for one in self.statistics:
                if one.path in statistics:
                    assign(one.value, statistics[one.path])
            overflow = self._update(gradients, rates)
        return tf.stack([loss, right_ones, overflow], axis=1)

    @part("input")
    def _images(self, rows: Sequence[tf.Tensor], draws: Named) -> tuple[tf.Tensor, tf.Tensor]:
        """Images (float32, [T, batch, height, width, channels]) and labels ([T, batch])."""
        rows, draws = tf.nest.map_structure(lambda one: tf.reshape(one, [-1, *one.shape[2:]]), (tuple(rows), draws))
        images, labels = self.feed.images(rows)
        images = normalise(augment(images, draws, self.data), self.data)
        if self.data.cutout:
            images = cut_out(images, draws["hole"], self.data.cutout)
        apart = [self.size, self.train.batch]
        return tf.reshape(images, [*apart, *images.shape[1:]]), tf.reshape(labels, apart)

    def _gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], Named]:
        """The mean loss and right answers of each ticket ([T]), all gradients, and the new moving statistics."""
        with tf.GradientTape() as tape, part("forward"):
            forward = Forward(self.network, self.values(), self.size, training=True)
            logits = forward(images)
            loss = self._cross_entropy(labels, logits, self.train.label_smoothing) / self.train.batch
            target = tf.reduce_sum(loss * tf.cast(self.scale.scale, loss.dtype) if self.scale else loss)
        with part("backward"):
            variables = [one.value for one in self.weights]
            gradients = tape.gradient(target, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        with part("forward"):
            answers = tf.reshape(logits, [-1, logits.shape[-1]])
            found = self._apart(right(tf.reshape(labels, [-1]), answers))
            return tf.cast(loss, tf.float32), found, list(map(tf.convert_to_tensor, gradients)), forward.statistics

    def values(self) -> Named:
        """The value of every variable, by path."""
        return {one.path: one.value.value() for one in (*self.weights, *self.statistics)}

    @part("update")
    def _update(self, gradients: list[tf.Tensor], rates: tf.Tensor) -> tf.Tensor:
        """As `Step._update`, of each ticket."""
        if self.scale or self.train.clip_norm:
            paths = (one.path for one in self.weights)
            pairs = zip((self.masks.get(path) for path in paths), gradients, strict=True)
            gradients = [gradient if mask is None else masked(gradient, mask) for mask, gradient in pairs]
        if self.scale:
            gradients = [gradient / along(self.scale.scale, gradient) for gradient in gradients]
        shortened = self._shortened(gradients) if self.train.clip_norm else gradients
        if self.scale is None:
            self.optimizer.apply(shortened, rates, self.masks)
            return tf.zeros([self.size])
        checks = [tf.reduce_all(tf.math.is_finite(self._flat(gradient)), axis=1) for gradient in gradients]
        finite = tf.reduce_all(checks, axis=0)
        moved = [*(one.value for one in self.weights), *self.optimizer.state.values()]
        before = [tf.identity(variable.value()) for variable in moved]
        self.optimizer.apply(shortened, rates, self.masks)
        for variable, value in zip(moved, before, strict=True):
            assign(variable, tf.where(along(finite, value), variable.value(), value))
        return self.scale.update(finite)

    def _shortened(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Each ticket's gradients, shortened together to the norm that the recipe allows."""
        squares = [tf.reduce_sum(self._flat(gradient) ** 2, axis=1) for gradient in gradients]
        factor = self.train.clip_norm / tf.maximum(tf.sqrt(tf.add_n(squares)), self.train.clip_norm)
        return [gradient * along(factor, gradient) for gradient in gradients]

    def _flat(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reshape(values, [self.size, -1])

    def _evaluate(self, rows: Sequence[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        images, labels = self.feed.images(rows)
        seen = tf.repeat(normalise(images, self.data)[None], self.size, axis=0)
        logits = Forward(self.network, self.values(), self.size, training=False)(seen)
        answers = tf.cast(tf.reshape(logits, [-1, logits.shape[-1]]), tf.float32)
        asked = tf.tile(labels, [self.size])
        loss = tf.cast(cross_entropy(asked, answers, 0.0), tf.float32)
        figures = (loss, right(asked, answers), right_in_top(asked, answers))
        return tf.stack([self._apart(one * tf.tile(weights, [self.size])) for one in figures], axis=1)

    def _cross_entropy(self, labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
        """The sum over each ticket's images ([T])."""
        logits = tf.cast(tf.reshape(logits, [-1, logits.shape[-1]]), self.network.variable_dtype)
        return self._apart(cross_entropy(tf.reshape(labels, [-1]), logits, smoothing))

    def _apart(self, of_images: tf.Tensor) -> tf.Tensor:
        """What is there of each image ([T x batch]), added up for each ticket ([T])."""
        return tf.reduce_sum(self._flat(of_images), axis=1)
