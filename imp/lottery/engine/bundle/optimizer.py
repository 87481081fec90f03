"""The optimizer of a bundle: each ticket has its own learning rate and its own count of steps."""

from typing import Any

import tensorflow as tf

from lottery.engine.optimizers import ADAM_BETAS, ADAM_EPSILON, Optimizer, assign


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
