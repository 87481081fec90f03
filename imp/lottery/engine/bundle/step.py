"""The compiled step of a bundle: `Step` with a ticket axis, which no sum, norm or check crosses."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from lottery.engine import answers
from lottery.engine.bundle.network import Forward
from lottery.engine.feed import Feed
from lottery.engine.optimizers import ADAM_BETAS, ADAM_EPSILON, LossScale, Optimizer, assign
from lottery.engine.scopes import part
from lottery.engine.step import Named, moving_statistics, repeated
from lottery.engine.tasks import Batch, Task
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


class BundledOptimizer(Optimizer):
    """`Optimizer` on variables with a ticket axis, at `learning_rate` [T]. TensorFlow's fused kernels know one rate only, so
    that its formulas are written out."""

    def _take(self, variable: Any, gradient: tf.Tensor, mask: tf.Tensor | None, rate: tf.Tensor) -> None:
        super()._take(variable, gradient, mask, along(rate, gradient))

    def _steps(self, variable: Any) -> tf.Tensor:
        return along(super()._steps(variable), variable)

    def _move(self, variable: Any, gradient: tf.Tensor, rate: tf.Tensor) -> None:
        train, weights = self.train, variable.value
        if train.optimizer == "adam":
            mean, variance = (self.state[f"{kind}/{variable.path}"] for kind in ("mean", "variance"))
            beta1, beta2, epsilon = (tf.constant(value, variable.dtype) for value in (*ADAM_BETAS, ADAM_EPSILON))
            steps = self._steps(variable)
            assign(mean, mean + (gradient - mean) * (1 - beta1))
            assign(variance, variance + (gradient * gradient - variance) * (1 - beta2))
            corrected = rate * tf.sqrt(1 - beta2**steps) / (1 - beta1**steps)
            assign(weights, weights - corrected * mean / (tf.sqrt(variance) + epsilon))
        elif train.momentum:
            velocity = self.state[f"momentum/{variable.path}"]
            assign(velocity, velocity * train.momentum + gradient)
            assign(weights, weights - rate * (gradient + velocity * train.momentum if train.nesterov else velocity))
        else:
            assign(weights, weights - rate * gradient)


def along(numbers: tf.Tensor, values: Any) -> tf.Tensor:
    """`numbers` [T], so that each goes with one ticket of `values` [T, ...]."""
    return tf.reshape(numbers, [-1, *[1] * (values.shape.rank - 1)])


@dataclasses.dataclass(eq=False)
class BundledStep:
    """The training step of `size` networks like `network`, and their evaluation. Each has its own examples, masks (of the
    variables in `maskable`), learning rate, clipping and loss scale; none moves another's numbers."""

    recipe: Recipe
    feed: Feed
    task: Task
    network: keras.Model
    maskable: Sequence[str]
    xla: bool
    size: int

    def __post_init__(self) -> None:
        self.train = self.recipe.train
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
        return repeated(self._step, [*own, tf.TensorSpec([None, self.size], tf.float32)], [self.size, 3])

    @cached_property
    def evaluations(self) -> Callable[..., tf.Tensor]:
        """`Step.evaluations` of rows ([steps, batch, ...]) that all tickets see (float32, [steps, T, batch, width])."""
        batch = self.train.batch
        return repeated(self._evaluate, [self.feed.rows_spec(batch)], [self.size, batch, answers.width(self.task)])

    def _step(self, rows: Sequence[tf.Tensor], draws: Named, rates: tf.Tensor) -> tf.Tensor:
        loss, reached, gradients, statistics = self._gradients(self._batch(rows, draws))
        with part("update"):
            for one in self.statistics:
                if one.path in statistics:
                    assign(one.value, statistics[one.path])
            overflow = self._update(gradients, rates)
        return tf.stack([loss, reached, overflow], axis=1)

    @part("input")
    def _batch(self, rows: Sequence[tf.Tensor], draws: Named) -> Batch:
        """The examples of all tickets ([T x batch, ...]), varied."""
        rows, draws = tf.nest.map_structure(lambda one: tf.reshape(one, [-1, *one.shape[2:]]), (tuple(rows), draws))
        return self.feed.decoder.batch(*self.feed.examples(rows), draws)

    def _gradients(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], Named]:
        """The mean loss of each ticket and the sum of its deciding metric ([T]), all gradients, the new moving statistics."""
        inputs = self.task.inputs(batch)
        with tf.GradientTape() as tape, part("forward"):
            forward = Forward(self.network, self.values(), self.size, training=True)
            outputs = self._joined(forward(tf.reshape(inputs, [self.size, -1, *inputs.shape[1:]])))
            losses = self.task.training_loss(batch, tf.cast(outputs, self.network.variable_dtype))
            loss = self._apart(losses) / self.train.batch
            target = tf.reduce_sum(loss * tf.cast(self.scale.scale, loss.dtype) if self.scale else loss)
        with part("backward"):
            variables = [one.value for one in self.weights]
            gradients = tape.gradient(target, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        with part("forward"):
            reached = self._apart(self.task.deciding(batch, outputs))
            return tf.cast(loss, tf.float32), reached, list(map(tf.convert_to_tensor, gradients)), forward.statistics

    def values(self) -> Named:
        """The value of every variable, by path."""
        return {one.path: one.value.value() for one in (*self.weights, *self.statistics)}

    @part("update")
    def _update(self, gradients: list[tf.Tensor], rates: tf.Tensor) -> tf.Tensor:
        """As `Step._update`, of each ticket."""
        if self.scale or self.train.clip_norm:
            gradients = self.optimizer.selected(gradients, self.masks)
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

    def _evaluate(self, rows: Sequence[tf.Tensor]) -> tf.Tensor:
        batch = self.feed.decoder.batch(*self.feed.examples(rows))
        inputs = tf.repeat(self.task.inputs(batch)[None], self.size, axis=0)
        forward = Forward(self.network, self.values(), self.size, training=False)
        outputs = tf.cast(self._joined(forward(inputs)), tf.float32)
        seen = {name: tf.concat([values] * self.size, axis=0) for name, values in batch.items()}
        losses = self.task.loss(seen, outputs)
        return tf.reshape(answers.figures(self.task, seen, outputs, losses), [self.size, -1, answers.width(self.task)])

    def _joined(self, outputs: tf.Tensor) -> tf.Tensor:
        """Those of all tickets ([T, batch, ...]), one ticket's after another's ([T x batch, ...])."""
        return tf.reshape(outputs, [-1, *outputs.shape[2:]])

    def _apart(self, of_examples: tf.Tensor) -> tf.Tensor:
        """What is there of each example ([T x batch]), added up for each ticket ([T])."""
        return tf.reduce_sum(self._flat(of_examples), axis=1)
