"""Masks that change while `model.fit` runs, and stay where the model is compiled again. Nothing here is a callback, so that
none can be forgotten: the model's own training function changes the masks, between two calls of the compiled step."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from data_prep.errors import InputError
from lottery.engine.models.topology import topology
from lottery.keras.optimizer import Pruned
from lottery.keras.probe import KerasProbe, Networks
from lottery.pruning.criteria import Criterion
from lottery.pruning.state import State


class Training:
    """Takes the place of the method `make_train_function` of `model`, whose optimizer is, or holds, `optimizer`."""

    def __init__(self, model: keras.Model, optimizer: Pruned):
        self.model, self.optimizer = model, optimizer

    def __call__(self, force: bool = False) -> None:
        self.follow()
        if self.model.train_function is None or force:
            type(self.model).make_train_function(self.model, force)
            run, self.optimizer.clock.wait = self.model.train_function, 0

            def train_function(iterator: Any) -> Any:
                if self.optimizer.clock.wait <= 0:  # in the beginning: somebody may have set weights before
                    look(self.model, self.optimizer)
                self.optimizer.clock.is_read = True
                logs = run(iterator)
                tick(self.model, self.optimizer)
                return logs

            self.model.train_function = train_function

    def follow(self) -> None:
        """Put the masks around the optimizer that the model has been compiled with since."""
        if self.model.optimizer is None or holding(self.model.optimizer) is self.optimizer:
            return
        old, plain = self.optimizer, inner(self.model)
        shapes: dict[str, Sequence[int]] = {path: mask.shape for path, mask in old.masks.items()}
        with self.model.distribute_strategy.scope():
            self.optimizer = Pruned(plain, shapes, old.plan)
        self.optimizer.take_over(old)
        install(self.model, self.optimizer)


def holding(optimizer: Any) -> Pruned | None:
    """The masks that `optimizer` is or, as a LossScaleOptimizer does, holds."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer if isinstance(optimizer, Pruned) else None


def current(model: keras.Model) -> Pruned | None:
    """The optimizer of `model` that has its masks, if it is pruned."""
    training = vars(model).get("make_train_function")
    if isinstance(training, Training):
        training.follow()
    return holding(getattr(model, "optimizer", None))


def pruned(model: keras.Model) -> Pruned:
    """The same. Raises InputError if it is not."""
    found = current(model)
    if found is None:
        raise InputError(
            f"{model.name} has no masks: call lottery.keras.prune(model, sparsity=...) first (a file has them if "
            "load_model compiles it)"
        )
    return found


def inner(model: keras.Model) -> keras.optimizers.Optimizer:
    """The user's own optimizer, without loss scale and masks."""
    optimizer = model.optimizer
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer | Pruned):
        optimizer = optimizer.inner_optimizer
    return optimizer


def install(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """Train and save `model` with `optimizer` in place of its own, under its loss scale if it has one."""
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        model.optimizer.inner_optimizer = optimizer
        if not isinstance(model._compile_config.config["optimizer"], keras.optimizers.LossScaleOptimizer):
            model._compile_config.config["optimizer"] = optimizer
    else:
        model.optimizer = model._compile_config.config["optimizer"] = optimizer
    for unbuilt in (one for one in (optimizer, model.optimizer) if not one.built):
        with model.distribute_strategy.scope():
            unbuilt.build(model.trainable_variables)
    model.train_function = None
    if isinstance(optimizer, Pruned):
        model.make_train_function = Training(model, optimizer)
    else:
        vars(model).pop("make_train_function", None)


def update(model: keras.Model) -> None:
    """Change the masks of `model` if it is time to. `fit` and `train_on_batch` do it; a loop of your own calls it before each
    step, outside of a `tf.function`."""
    if not tf.executing_eagerly():
        raise InputError("lottery.keras.update(model) inside a tf.function would run once: call it before that function")
    optimizer = pruned(model)
    optimizer.clock.is_read = True
    look(model, optimizer)


def resume(model: keras.Model, criterion: Criterion | None = None, images: Any = None) -> keras.Model:
    """Let the masks of a `model` that `load_model` has opened change as planned, and stay when it is compiled again.

    `criterion` and `images` are those of `prune`, where the criterion is a function or needs images. Returns `model`.
    """
    optimizer = pruned(model)
    if optimizer.plan:
        optimizer.plan = optimizer.plan.with_given(criterion, images)
    install(model, optimizer)
    return model


def tick(model: keras.Model, optimizer: Pruned) -> None:
    """Look at the masks after a call of the training function, if they may change then: the last change is due at the end."""
    optimizer.clock.wait -= model.steps_per_execution
    if optimizer.clock.wait <= 0:
        look(model, optimizer)


def look(model: keras.Model, optimizer: Pruned) -> None:
    """Change the masks if it is time to, and put zeros back otherwise; find out for how many steps the masks will stay."""
    weights, step, plan = {one.path: one for one in model.weights}, optimizer.step, optimizer.plan
    coming, date = optimizer.next_change, plan.last_date(step) if plan else None
    if coming is not None and date is not None and date >= coming:
        _change(model, optimizer, weights, date)
    else:
        optimizer.hold(weights)
    coming = optimizer.next_change
    optimizer.clock.is_read |= coming is None
    optimizer.clock.wait = math.inf if coming is None else coming - step


def _change(model: keras.Model, optimizer: Pruned, weights: dict[str, keras.Variable], date: int) -> None:
    """Make the masks anew, of what they keep and what was put aside."""
    plan, kept, aside = optimizer.plan, optimizer.masks, optimizer.aside
    assert plan, "masks that stay do not change"
    values = {path: weights[path].numpy() + aside.get(path, 0) for path in kept}
    among = {path: bits | (aside[path] != 0) if path in aside else bits for path, bits in kept.items()}
    state = State(date, {one.path: one.numpy() for one in model.trainable_weights} | values, {}, {})
    graph = topology(model) if plan.allocation == "uniform+" else None
    pruned = max(optimizer.pruned, plan.count(sum(bits.size for bits in kept.values()), date))
    networks = Networks(model)
    mask = plan.cut(
        state,
        among,
        pruned,
        lambda within: KerasProbe(networks, state, within, plan.images, plan.seed),
        graph.kernels if graph else None,
    )
    optimizer.change(weights, mask, values, date)
