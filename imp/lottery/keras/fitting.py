"""Masks that change while `model.fit` runs, and stay where the model is compiled again. Nothing here is a callback, so that
none can be forgotten: the model's own training function changes the masks, between two calls of the compiled step."""

import contextlib
import dataclasses
import gc
import math
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import partial, wraps
from typing import Any

import keras
import numpy as np

from lottery.base.errors import InputError
from lottery.keras.backends import backend
from lottery.keras.optimizer import Held, Pruned, as_new, is_complete, own_constraint
from lottery.keras.plan import SET, Plan, Replacing
from lottery.keras.probe import KerasProbe, Networks
from lottery.networks.topology import topology
from lottery.pruning import units
from lottery.pruning.allocation import Shapes
from lottery.pruning.criteria import Criterion, magnitude, random
from lottery.pruning.cut import Cutter
from lottery.pruning.masks import Bits, check_finite
from lottery.pruning.state import Arrays, State
from lottery.pruning.units import Pooling, Units, pooled_by
from lottery.pruning.updates import replaced


class Training:
    """Takes the place of the methods `compile`, `fit` and `make_train_function` of `model`, whose optimizer is, or holds, a
    `Pruned`: what the user does between two trainings leaves the masks in place."""

    METHODS = ("compile", "fit", "make_train_function")

    def __init__(self, model: keras.Model):
        self.model, self.is_tried = model, False
        for name in self.METHODS:
            setattr(model, name, getattr(self, name))

    def compile(self, *args: Any, **settings: Any) -> None:
        type(self.model).compile(self.model, *args, **settings)
        current(self.model)

    def fit(self, *args: Any, **settings: Any) -> Any:
        """Train, and put zeros back before and after: the user, or a callback, may have set weights."""
        hold(self.model)
        history = type(self.model).fit(self.model, *args, **settings)
        optimizer = hold(self.model)
        if optimizer.plan and optimizer.next_change is not None:
            pruned = optimizer.pruned / optimizer.size
            warnings.warn(
                f"fit ended before the schedule of {self.model.name}: step {optimizer.step} of "
                f"{optimizer.plan.schedule.dates[-1]}; {pruned:.1%} of the weights are pruned, "
                f"{float(optimizer.plan.sparsity):.1%} in the end",
                stacklevel=2,
            )
        return history

    def make_train_function(self, force: bool = False) -> None:
        if self.model.train_function is None or force:
            optimizer = pruned(self.model)
            type(self.model).make_train_function(self.model, force)
            optimizer.clock.wait, self.is_tried = 0, False
            self.model.train_function = backend.watched(
                self.model, partial(self._before, optimizer), partial(self._after, optimizer)
            )

    def _before(self, optimizer: Pruned) -> Callable[[], None] | None:
        """What is to be done before steps: in the beginning a look at the masks, as somebody may have set weights."""
        is_due, optimizer.clock.is_read = optimizer.clock.wait <= 0, True
        return partial(look, self.model, optimizer) if is_due else None

    def _after(self, optimizer: Pruned) -> Callable[[], None] | None:
        """What is to be done after steps: a look if the masks may change. The last change is due at the end."""
        optimizer.clock.wait -= self.model.steps_per_execution
        if not self.is_tried:
            return partial(self._try, optimizer)
        return partial(look, self.model, optimizer) if optimizer.clock.wait <= 0 else None

    def _try(self, optimizer: Pruned) -> None:
        self.is_tried = True
        _check_step(self.model, optimizer)
        if optimizer.clock.wait <= 0:
            look(self.model, optimizer)


def holding(optimizer: Any) -> Pruned | None:
    """The masks that `optimizer` is or, as a LossScaleOptimizer does, holds."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer if isinstance(optimizer, Pruned) else None


def current(model: keras.Model) -> Pruned | None:
    """The optimizer of `model` that has its masks, if it is pruned. If it was compiled since, or holds a pruned model, the
    masks are put around its own optimizer first."""
    optimizer = getattr(model, "optimizer", None)
    backend.sync(model)
    held = [one.constraint.optimizer for one in model.weights if isinstance(one.constraint, Held)]
    old = holding(optimizer) or next(iter(held), None)
    if optimizer is None or old is None or (old is holding(optimizer) and is_complete(old)):
        return optimizer and old
    old.find(model)
    shapes: dict[str, Sequence[int]] = {path: mask.shape for path, mask in old.masks.items()}
    with backend.scope(model):
        new = Pruned(inner(model), shapes, old.plan, scope=old.scope)
        new.build(model.trainable_variables)
    new.set_weights([variable.numpy() for variable in old._variables])
    install(model, new)
    return new


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
    return optimizer if is_complete(optimizer) else as_new(optimizer)


def install(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """Train and save `model` with `optimizer` in place of its own, under its loss scale if it has one."""
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        model.optimizer.inner_optimizer = optimizer
        if not isinstance(model._compile_config.config["optimizer"], keras.optimizers.LossScaleOptimizer):
            model._compile_config.config["optimizer"] = optimizer
    else:
        model.optimizer = model._compile_config.config["optimizer"] = optimizer
    for unbuilt in (one for one in (optimizer, model.optimizer) if not one.built):
        with backend.scope(model):
            unbuilt.build(model.trainable_variables)
    model.train_function = None
    if isinstance(optimizer, Pruned):
        optimizer.attach(model)
        Training(model)
    else:
        for name in Training.METHODS:
            vars(model).pop(name, None)
        for variable in model.weights:
            variable.constraint = own_constraint(variable)


def retrace(model: keras.Model) -> None:
    """Let every model that trains weights of `model` compile its step anew: the old one was made without their masks."""
    weights = {id(variable) for variable in model.weights}
    for other in gc.get_objects():
        with contextlib.suppress(Exception):  # one may be half made, or a user's own
            if issubclass(type(other), keras.Model) and weights & {id(variable) for variable in other.weights}:
                other.train_function = None


def by_path(model: keras.Model) -> dict[str, keras.Variable]:
    return {variable.path: variable for variable in model.weights}


def hold(model: keras.Model) -> Pruned:
    """Put zeros back in `model` if there are none where its masks prune. Returns its optimizer."""
    optimizer, weights = pruned(model), by_path(model)
    if optimizer.revived(weights):
        optimizer.hold(weights)
    return optimizer


def _check_step(model: keras.Model, optimizer: Pruned) -> None:
    """Raises InputError where a training step of the user's own, which has just been taken, passes the masks by."""
    if count := optimizer.revived(by_path(model)):
        raise InputError(
            f"{model.name}: {count} pruned weights are not zero after a step: its train_step changes them without an "
            "optimizer of Keras; let model.optimizer apply the gradients"
        )
    if optimizer.next_change is not None and not optimizer.clock.is_running:
        raise InputError(
            f"{model.name}: its train_step does not use model.optimizer, which counts the steps of the schedule: let it "
            "apply the gradients, or prune without a schedule"
        )


def update(model: keras.Model) -> None:
    """Change the masks of `model` if it is time to. `fit` and `train_on_batch` do it; a loop of your own calls it before each
    step, outside of a `tf.function`."""
    if backend.is_traced():
        raise InputError("lottery.keras.update(model) inside a compiled function would run once: call it before that function")
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
    hold(model)
    return model


def from_target(callback: keras.callbacks.Callback) -> keras.callbacks.Callback:
    """Let `callback` look at no epoch and no batch of training until the masks of its model have changed for the last time:
    what an EarlyStopping or a ModelCheckpoint finds best is then pruned as planned. Returns `callback`."""

    def once_final(look_at: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(look_at)
        def method(*args: Any, **given: Any) -> None:
            optimizer = current(callback.model)
            if optimizer is None or optimizer.next_change is None:
                look_at(*args, **given)

        return method

    for name in ("on_epoch_end", "on_train_batch_end"):
        look_at = getattr(callback, name)
        if not getattr(look_at, "_is_default", False):  # Keras calls those of its own from another thread
            setattr(callback, name, once_final(look_at))
    return callback


def look(model: keras.Model, optimizer: Pruned) -> None:
    """Change the masks if it is time to, and put zeros back otherwise; find out for how many steps the masks will stay."""
    weights, step, plan = by_path(model), optimizer.step, optimizer.plan
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
    check_finite(values)
    if isinstance(plan.schedule, Replacing) and date > 0:
        optimizer.change(weights, kept | _replaced(model, optimizer, plan.schedule, date, values), values, date)
        return
    among = optimizer.within or {path: bits | (aside[path] != 0) if path in aside else bits for path, bits in kept.items()}
    keep = optimizer.size - max(optimizer.pruned, plan.count(optimizer.size, date))
    optimizer.change(weights, kept | _cutter(model, optimizer, plan, among, date, values).leaving(keep).mask, values, date)


def _replaced(model: keras.Model, optimizer: Pruned, schedule: Replacing, date: int, values: Arrays) -> Bits:
    """The masks of what is trained after the smallest units are dropped, and others grown; as they are where a gradient is not
    finite."""
    assert optimizer.plan
    trained = {one.path for one in model.trainable_weights}
    kept, within = (
        {path: one for path, one in bits.items() if path in trained} for bits in (optimizer.masks, optimizer.within)
    )
    rng = np.random.default_rng([optimizer.plan.seed, date])
    scores = {path: np.abs(gradient) for path, gradient in optimizer.gradients.items()} or {
        path: rng.random(bits.shape) for path, bits in sorted(kept.items())
    }
    if not all(np.isfinite(scores[path]).all() for path in kept):
        return kept
    shapes = {path: bits.shape for path, bits in kept.items()}
    units = pooled_by(optimizer.plan.unit_score, units_of(model, optimizer.plan, shapes, list(kept)))
    counts = {path: schedule.replaced(date, int(np.count_nonzero(bits))) for path, bits in units.total(kept).items()}
    return replaced(values, kept, scores, counts, units, within, by_chance=isinstance(schedule, SET))


def check_end(model: keras.Model, optimizer: Pruned, plan: Plan, among: Bits) -> None:
    """Raises InputError where of the mask `among` cannot be pruned what `plan` prunes in the end, whatever the scores."""
    cutter = _cutter(model, optimizer, plan, among, plan.schedule.dates[-1], {})
    method = dataclasses.replace(cutter.method, criterion=magnitude, passes=1)
    dataclasses.replace(cutter, method=method).leaving(optimizer.size - plan.count(optimizer.size))


def _cutter(model: keras.Model, optimizer: Pruned, plan: Plan, among: Bits, date: int, values: Arrays) -> Cutter:
    """What cuts within the mask `among` at a date, where weights have these `values`."""
    whole = units_of(model, plan, {path: bits.shape for path, bits in among.items()}, optimizer.scope)
    covered = whole.covered(optimizer.scope)
    within = {path: bits for path, bits in among.items() if path in covered}
    state = State(date, {one.path: one.numpy() for one in model.trainable_weights} | values, {}, {})
    graph = topology(model) if plan.allocation == "uniform+" else None
    probe = partial(KerasProbe, Networks(model), state, images=plan.images, seed=plan.seed)
    return Cutter(plan.method(whole), state, within, probe, graph.kernels if graph else None)


def units_of(model: keras.Model, plan: Plan, shapes: Shapes, scope: Collection[str]) -> Units:
    """The units of `model`, of which masks may cover variables of these `shapes`. Raises InputError as `units.of`."""
    graph = None if plan.spec.is_weight else topology(model)
    score: Pooling = "wrapped" if plan.criterion == random.__name__ else plan.unit_score
    return units.of(plan.spec, score, shapes, scope, graph, plan.streams)
