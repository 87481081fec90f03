"""Optimizers: TensorFlow's fused kernels, one call a variable, on state that is named by its weight.

Keras's optimizers make several passes over each variable for the same update, which takes a fifth of a small network's step.
Everything here runs in a replica's context, on gradients that are the same on every replica, and changes its own copies.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import keras
import tensorflow as tf

from lottery.engine.scopes import part
from lottery.experiment.recipe import Train

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-7
LARGE = 1 << 16  # elements from which the one pass over memory that XLA makes of an update is worth its start


class Optimizer:
    """SGD (Sutskever et al. 2013, with the rate outside the momentum as the lottery papers' code has it) or Adam (Kingma &
    Ba 2015), with weight decay in the gradient (L2) or beside it (Loshchilov & Hutter 2019), and perhaps averaged weights.

    With averaged weights go averaged `statistics`, those of BatchNorm: the raw weights' do not fit what lags behind them.

    `state` maps names such as `momentum/fc1/kernel` to variables. What of a weight and its state is exactly 0.0 stays so while
    its gradient is: nothing but zeros is added to what decay, momentum and average leave of them.
    """

    def __init__(self, train: Train, variables: Sequence[keras.Variable], statistics: Sequence[keras.Variable] = ()):
        self.train, self.variables = train, list(variables)
        self.statistics = list(statistics) if train.ema else []
        momentum = ["momentum"] if train.momentum else []
        kinds = ["mean", "variance"] if train.optimizer == "adam" else momentum
        self.state: dict[str, tf.Variable] = {
            entry(kind, variable.path): tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
            for kind in [*kinds, *(["ema"] if train.ema else [])]
            for variable in [*self.variables, *(self.statistics if kind == "ema" else [])]
        }
        if train.optimizer == "adam" or train.ema:
            self.state["steps"] = tf.Variable(0, dtype=tf.int64, trainable=False)

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor, masks: Mapping[str, tf.Variable]) -> None:
        """Take one step along what `masks` (by path) leave of `gradients`, one for each variable, at `learning_rate` (a
        scalar)."""
        if "steps" in self.state:
            assign(self.state["steps"], self.state["steps"] + 1)
        for variable, gradient in zip(self.variables, gradients, strict=True):
            mask = masks[variable.path].value() if variable.path in masks else None
            take = partial(self._take, variable)
            if gradient.shape.num_elements() >= LARGE:
                take = tf.function(take, jit_compile=True)
            take(gradient, mask, tf.cast(learning_rate, variable.dtype))
        for statistic in self.statistics:
            self._average(statistic)

    @part("update")
    def _take(self, variable: keras.Variable, gradient: tf.Tensor, mask: tf.Tensor | None, learning_rate: tf.Tensor) -> None:
        gradient = gradient if mask is None else masked(gradient, mask)
        self._update(variable, self._decayed(variable, gradient, learning_rate), learning_rate)
        if self.train.ema:
            self._average(variable)

    def _decayed(self, variable: keras.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> tf.Tensor:
        """`gradient` with the L2 term's; decoupled decay shrinks the variable here and now."""
        decay = self.train.weight_decay
        if not decay or (self.train.decays == "kernels" and not is_kernel(variable)):
            return gradient
        if self.train.decay == "l2":
            return gradient + variable.value * decay
        tf.raw_ops.AssignSubVariableOp(resource=variable.value.handle, value=variable.value * (learning_rate * decay))
        return gradient

    def _update(self, variable: keras.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        handle, kind = variable.value.handle, variable.dtype
        if self.train.optimizer == "adam":
            steps = tf.cast(self.state["steps"], kind)
            beta1, beta2 = (tf.constant(beta, kind) for beta in ADAM_BETAS)
            tf.raw_ops.ResourceApplyAdam(
                var=handle,
                m=self.state[entry("mean", variable.path)].handle,
                v=self.state[entry("variance", variable.path)].handle,
                beta1_power=beta1**steps,
                beta2_power=beta2**steps,
                lr=learning_rate,
                beta1=beta1,
                beta2=beta2,
                epsilon=tf.constant(ADAM_EPSILON, kind),
                grad=gradient,
            )
        elif self.train.momentum:
            tf.raw_ops.ResourceApplyMomentum(
                var=handle,
                accum=self.state[entry("momentum", variable.path)].handle,
                lr=learning_rate,
                grad=gradient,
                momentum=tf.constant(self.train.momentum, kind),
                use_nesterov=self.train.nesterov,
            )
        else:
            tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=learning_rate, delta=gradient)

    def _average(self, variable: keras.Variable) -> None:
        """Move the average of `variable` towards it; faster at first, so that a short training is not one of its beginning.
        That of a constant is the constant."""
        average, steps = self.state[entry("ema", variable.path)], tf.cast(self.state["steps"], variable.dtype)
        kept = tf.minimum(tf.constant(self.train.ema, variable.dtype), (1 + steps) / (10 + steps))
        assign(average, average + (variable.value - average) * (1 - kept))


@part("mask")
def masked(gradient: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """A select, not a product, so that not even a NaN reaches a pruned weight."""
    return tf.where(mask, gradient, tf.zeros([], gradient.dtype))


def entry(kind: str, path: str) -> str:
    """The name of what an optimizer's state holds of a weight."""
    return f"{kind}/{path}"


def weight_of(name: str) -> str:
    """The path of the weight that the entry `name` belongs to; empty for one that belongs to none."""
    return name.partition("/")[2]


def assign(variable: tf.Variable, value: tf.Tensor) -> None:
    """Set this replica's copy of `variable`; TensorFlow refuses the ordinary assignment of one replica."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.cast(value, variable.dtype))


def is_kernel(variable: keras.Variable) -> bool:
    return variable.name.endswith("kernel")
