"""Optimizers: TensorFlow's fused kernels, one call a variable, on state that is named by its weight; and float16's loss scale.
Keras's optimizers make several passes over each variable for the same update, which takes a fifth of a small network's step.
Everything here runs in a replica's context, on gradients that are the same on every replica, and changes its own copies."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import keras
import tensorflow as tf

from lottery.engine.scopes import part
from lottery.experiment.recipe import Train

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-7
INITIAL_SCALE = 2.0**15
HIGHEST_SCALE = 2.0**24
GROWTH_STEPS = 2000
LARGE = 1 << 16  # elements from which the one pass over memory that XLA makes of an update is worth its start


class Optimizer:
    """SGD (Sutskever et al. 2013, with the rate outside the momentum as the lottery papers' code has it) or Adam (Kingma & Ba
    2015), with weight decay in the gradient (L2) or beside it (Loshchilov & Hutter 2019), and perhaps averaged weights, with
    averaged `statistics` of BatchNorm, because the raw weights' do not fit them.

    `state` maps names such as `momentum/fc1/kernel` to variables; counts there have the shape `numbers`. What is exactly 0.0
    stays so while its gradient is."""

    def __init__(
        self,
        train: Train,
        variables: Sequence[keras.Variable],
        statistics: Sequence[keras.Variable] = (),
        numbers: tuple[int, ...] = (),
    ):
        self.train, self.variables = train, list(variables)
        self.statistics = list(statistics) if train.ema else []
        kinds = ["mean", "variance"] if train.optimizer == "adam" else ["momentum"] * bool(train.momentum)
        self.state: dict[str, tf.Variable] = {
            f"{kind}/{variable.path}": tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
            for kind in [*kinds, *["ema"] * bool(train.ema)]
            for variable in [*self.variables, *(self.statistics if kind == "ema" else [])]
        }
        if train.optimizer == "adam" or train.ema:
            self.state["steps"] = tf.Variable(tf.zeros(numbers, tf.int64), trainable=False)

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor, masks: Mapping[str, tf.Variable]) -> None:
        """Take one step along what `masks` (by path) leave of `gradients`, one a variable, at `learning_rate` (a scalar)."""
        if "steps" in self.state:
            assign(self.state["steps"], self.state["steps"] + 1)
        for variable, gradient in zip(self.variables, gradients, strict=True):
            mask = masks[variable.path].value() if variable.path in masks else None
            take = partial(self._take, variable)
            if gradient.shape.num_elements() >= LARGE:
                take = tf.function(take, jit_compile=True, autograph=False)
            take(gradient, mask, tf.cast(learning_rate, variable.dtype))
        for statistic in self.statistics:
            self._average(statistic)

    def selected(self, gradients: Sequence[tf.Tensor], masks: Mapping[str, tf.Variable]) -> list[tf.Tensor]:
        """What `masks` leave of `gradients`."""
        pairs = zip((masks.get(variable.path) for variable in self.variables), gradients, strict=True)
        return [gradient if mask is None else masked(gradient, mask) for mask, gradient in pairs]

    def _steps(self, variable: keras.Variable) -> tf.Tensor:
        """How many steps were taken, in the dtype of `variable`."""
        return tf.cast(self.state["steps"], variable.dtype)

    @part("update")
    def _take(self, variable: keras.Variable, gradient: tf.Tensor, mask: tf.Tensor | None, rate: tf.Tensor) -> None:
        """The L2 term is part of the gradient; decoupled decay shrinks the variable first."""
        gradient, train = gradient if mask is None else masked(gradient, mask), self.train
        decay = train.weight_decay
        if decay and (train.decays == "all" or variable.name.endswith("kernel")):
            if train.decay == "l2":
                gradient = gradient + variable.value * decay
            else:
                tf.raw_ops.AssignSubVariableOp(resource=variable.value.handle, value=variable.value * (rate * decay))
        self._move(variable, gradient, rate)
        if train.ema:
            self._average(variable)

    def _move(self, variable: keras.Variable, gradient: tf.Tensor, rate: tf.Tensor) -> None:
        handle, train = variable.value.handle, self.train
        if train.optimizer == "adam":
            steps = self._steps(variable)
            beta1, beta2, epsilon = (tf.constant(value, variable.dtype) for value in (*ADAM_BETAS, ADAM_EPSILON))
            mean, variance = (self.state[f"{kind}/{variable.path}"].handle for kind in ("mean", "variance"))
            settings = {"beta1_power": beta1**steps, "beta2_power": beta2**steps, "beta1": beta1, "beta2": beta2}
            tf.raw_ops.ResourceApplyAdam(var=handle, m=mean, v=variance, lr=rate, grad=gradient, epsilon=epsilon, **settings)
        elif train.momentum:
            velocity = self.state[f"momentum/{variable.path}"].handle
            settings = {"momentum": tf.constant(train.momentum, variable.dtype), "use_nesterov": train.nesterov}
            tf.raw_ops.ResourceApplyMomentum(var=handle, accum=velocity, lr=rate, grad=gradient, **settings)
        else:
            tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=rate, delta=gradient)

    def _average(self, variable: keras.Variable) -> None:
        """Move the average of `variable` towards it; faster at first, so that a short training is not one of its beginning."""
        average, steps = self.state[f"ema/{variable.path}"], self._steps(variable)
        kept = tf.minimum(tf.constant(self.train.ema, variable.dtype), (1 + steps) / (10 + steps))
        assign(average, average + (variable.value - average) * (1 - kept))


class LossScale:
    """Dynamic loss scaling (Micikevicius et al. 2018, section 3.2): halved at an overflow, doubled after 2,000 steps without.
    Keras's own looks for overflows on the first replica alone; what `update` is told must hold for all of them."""

    def __init__(self, numbers: tuple[int, ...] = ()) -> None:
        self.scale = tf.Variable(tf.fill(numbers, INITIAL_SCALE), trainable=False)
        self._calm = tf.Variable(tf.zeros(numbers, tf.int64), trainable=False)  # int32 would not live on a GPU
        self.state = {"loss_scale": self.scale, "steps_since_overflow": self._calm}

    def update(self, finite: tf.Tensor) -> tf.Tensor:
        """Take note of whether this step's gradient was `finite` (bool, of the shape `numbers`). Returns 0.0 where it was, else
        1.0, or infinity where no smaller scale can help."""
        calm = tf.where(finite, self._calm + 1, tf.zeros([], tf.int64))
        grown = calm >= GROWTH_STEPS
        factor = tf.where(finite, tf.where(grown, 2.0, 1.0), 0.5)
        overflow = tf.where(finite, 0.0, tf.where(self.scale > 1.0, 1.0, math.inf))
        assign(self.scale, tf.clip_by_value(self.scale * factor, 1.0, HIGHEST_SCALE))
        assign(self._calm, tf.where(grown, tf.zeros([], tf.int64), calm))
        return overflow


@part("mask")
def masked(gradient: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """A select, not a product, so that not even a NaN reaches a pruned weight."""
    return tf.where(mask, gradient, tf.zeros([], gradient.dtype))


def weight_of(name: str) -> str:
    """The path of the weight that an entry of an optimizer's state (`momentum/fc1/kernel`) is of; empty where it is of none."""
    return name.partition("/")[2]


def assign(variable: tf.Variable, value: tf.Tensor) -> None:
    """Set this replica's copy of `variable`; TensorFlow refuses the ordinary assignment of one replica."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.cast(value, variable.dtype))
