"""What TensorFlow and PyTorch have in common: while `fit` runs, variables have their values. JAX has its own of each."""

from collections.abc import Callable
from typing import Any

import keras


def sync(model: keras.Model) -> None:
    """Let the variables of `model` have their values while `fit` runs."""


def watched(model: keras.Model, before: Callable[[], Any], after: Callable[[], Any]) -> Callable[..., Any]:
    """The training function of `model`. Before and after each call of it, a function is asked what is to be done with the
    model's variables, and returns a function, or None for nothing."""
    run = model.train_function

    def train_function(iterator: Any) -> Any:
        if action := before():
            action()
        logs = run(iterator)
        if action := after():
            action()
        return logs

    return train_function
