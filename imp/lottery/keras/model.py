"""Masks on a model: put on, looked at, taken off, and rewound under."""

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from os import PathLike
from typing import Any

import keras
import numpy as np

from lottery.base.errors import InputError, first_line
from lottery.keras.backends import backend
from lottery.keras.fitting import by_path, check_end, current, inner, install, look, pruned, retrace, units_of
from lottery.keras.optimizer import Pruned
from lottery.keras.plan import AT_ONCE, SCHEDULES, MaskSchedule, Plan, fraction
from lottery.networks import compaction
from lottery.pruning import masks as bits
from lottery.pruning.allocation import Allocation
from lottery.pruning.criteria import Criterion
from lottery.pruning.masks import Bits, Scope
from lottery.pruning.state import Arrays, State
from lottery.pruning.units import WEIGHT, Score


def prune(
    model: keras.Model,
    sparsity: float | str | Fraction | None = None,
    *,
    criterion: str | Criterion = "magnitude",
    allocation: Allocation = "global",
    schedule: MaskSchedule = AT_ONCE,
    scope: Scope = "kernels",
    exclude: Sequence[str] = (),
    densities: Mapping[str, float] | None = None,
    images: Any = None,
    iterations: int | None = None,
    seed: int = 0,
    units: str = WEIGHT,
    unit_score: Score = "mean",
    streams: bool = True,
    masks: Bits | None = None,
) -> keras.Model:
    """Prune a built and compiled `model` in place: from now on exactly so many of its weights are 0.0, and `fit` keeps them so.

    `sparsity` is the share of the weights in scope that is pruned in the end, `schedule` says when. `criterion` is a name or a
    function (docs/criteria.md); `images` are what snip and grasp look at, a batch (x, y); `iterations` scores so many times.
    `allocation` divides the weights among layers; `densities` fix the share that some keep, by shell pattern of variable paths.
    `units` ("weight", "channel", "4x1", "2:4") go as a whole: as few as leave no more weights. `unit_score` is the "mean",
    "norm" or "sum" of what their weights score; without `streams` the channels of branches that are added stay. `scope` and
    `exclude` are as in a recipe; `all` is every trainable variable. Frozen layers are left alone. Or give `masks` (path -> bool
    array) in place of a sparsity. A pruned model can be pruned further, within its masks. Returns `model`. Raises InputError.
    """
    _check(model)
    before = current(model)
    if before and before.next_change is not None:
        raise InputError(
            f"the masks of {model.name} still change: train to the end of the schedule (a loaded model: after resume(model)), "
            "or strip(model) first"
        )
    if (masks is None) == (sparsity is None):
        raise InputError("prune: give either a sparsity or masks")
    if masks is not None and schedule != AT_ONCE:
        raise InputError("prune: masks that you give stay as they are: leave schedule out")
    if not isinstance(schedule, MaskSchedule):
        raise InputError(f"schedule: {schedule!r} is none: write one of {', '.join(SCHEDULES)}, as in Cubic(end=...)")
    exclude, plan = [exclude] if isinstance(exclude, str) else exclude, None
    if masks is None:
        fixed = tuple((pattern, fraction(share, f"densities: {pattern}")) for pattern, share in (densities or {}).items())
        given = criterion, allocation, schedule, fixed, iterations, seed, images, units, unit_score, streams
        plan = Plan(fraction(sparsity, "sparsity"), *given)
    kept = _whole(model, scope, exclude, densities or ()) if masks is None else _given(model, masks)
    mask = kept | (before.masks if before else {})
    counted = [path for path in mask if path in kept or (before and path in before.scope)]
    if plan:
        mask = _covered(model, plan, counted) | mask
    size = sum(mask[path].size for path in counted)
    if before and plan and plan.count(size) <= before.pruned:
        left = f"{before.pruned / size:.2%} of the weights are pruned"
        raise InputError(f"{model.name}: {left} already: ask for more, or strip(model) first")
    weights = by_path(model)
    with backend.scope(model):
        shapes = {path: one.shape for path, one in weights.items() if path in mask}
        optimizer = Pruned(inner(model), shapes, plan, scope=counted)
        optimizer.build(model.trainable_variables)
    if plan and plan.schedule.dates[-1] > 0:
        check_end(model, optimizer, plan, mask)
    optimizer.change(weights, mask, {path: weights[path].numpy() for path in mask}, date=-1)
    look(model, optimizer)
    install(model, optimizer)
    retrace(model)
    return model


def masks(model: keras.Model) -> Bits:
    """A copy of the masks of `model`: by variable path, a bool array of its shape, True where a weight is kept. Empty before
    `prune`."""
    optimizer = current(model)
    return optimizer.masks if optimizer else {}


def strip(model: keras.Model) -> keras.Model:
    """Take the masks off a pruned `model`, in place: it is plain Keras again, with zeros in it. Returns `model`."""
    optimizer = pruned(model)
    optimizer.hold(by_path(model))
    install(model, optimizer.inner_optimizer)
    return model


def compact(model: keras.Model) -> keras.Model:
    """A new, smaller model that answers as the pruned `model`, which stays as it is: `compact(model).save("small.keras")`.

    It lacks the channels (units of Dense layers, filters of convolutions) that nobody reads, and those that are 0 for every
    input; what is the same for every input goes into a bias, if no padding is read beside it. Layers keep their names, and
    answers are the same but for rounding. It has no masks, and is not compiled. Raises InputError where `model` is neither
    functional nor Sequential, or has a layer that cannot be made anew from its config.
    """
    _check_paths(model)
    return compaction.compact(model, backend.stock)


def snapshot(model: keras.Model) -> Arrays:
    """A copy of the weights of `model` and of BatchNorm's statistics, by path: what `rewind` goes back to."""
    _check_paths(model)
    return {variable.path: variable.numpy() for variable in model.weights}


def rewind(model: keras.Model, to: Mapping[str, np.ndarray] | str | PathLike) -> keras.Model:
    """Put the weights of a pruned `model` back to what they were: its masks stay, the optimizer's state is new.

    `to` is a `snapshot`, or a `.weights.h5` or `.keras` file of the same network, pruned or not. BatchNorm's statistics go back
    too. The learning rate stays as it is. Returns `model`. Raises InputError.
    """
    optimizer = pruned(model)
    if optimizer.next_change is not None:
        raise InputError(f"the masks of {model.name} still change, at step {optimizer.next_change}: train to the end first")
    weights = by_path(model)
    if isinstance(to, Mapping):
        for path, variable in weights.items():
            if path not in to or np.shape(to[path]) != variable.shape:
                raise InputError(f"rewind: {path} is not in the snapshot, or has another shape there")
        for path, variable in weights.items():
            variable.assign(to[path])
    else:
        _load(model, to)
    optimizer.renew()
    if isinstance(scaled := model.optimizer, keras.optimizers.LossScaleOptimizer):
        scaled.dynamic_scale.assign(scaled.initial_scale)
        scaled.step_counter.assign(0)
    optimizer.hold(weights)
    return model


def _load(model: keras.Model, file: str | PathLike) -> None:
    """Load the weights of `file`, without the optimizer's state."""
    optimizer, model.optimizer = model.optimizer, None
    try:
        model.load_weights(file)
    except (OSError, ValueError) as error:
        raise InputError(f"rewind: {file} cannot be loaded into {model.name}: {first_line(error)}") from error
    finally:
        model.optimizer = optimizer


def _check(model: keras.Model) -> None:
    if not model.built or not model.weights:
        raise InputError(f"{model.name} has no weights yet: give it an Input, or call model.build(shape), before you prune it")
    if getattr(model, "optimizer", None) is None:
        raise InputError(f"{model.name} has no optimizer: call model.compile(...) before you prune it")
    _check_paths(model)


def _check_paths(model: keras.Model) -> None:
    known: dict[str, str] = {}  # by the name that Keras's optimizers give to what is theirs
    for variable in model.weights:
        other = known.setdefault(variable.path.replace("/", "_"), variable.path)
        if other is not variable.path:
            raise InputError(f"{model.name} has two variables named {other}: give its layers names of their own")


def _whole(model: keras.Model, scope: Scope, exclude: Sequence[str], named: Collection[str]) -> Bits:
    """The mask that keeps all in scope. Raises InputError where there is nothing, or a pattern of `exclude` or one that is
    `named` elsewhere matches no variable."""
    paths = [variable.path for variable in model.weights]
    for pattern in [*exclude, *named]:
        if not fnmatch.filter(paths, pattern):
            raise InputError(f"{pattern!r} matches no variable of {model.name}, which has {paths[0]} ... {paths[-1]}")
    if scope not in bits.SCOPES:
        raise InputError(f"unknown scope {scope!r}; known are {', '.join(bits.SCOPES)}")
    weights = {variable.path: variable.numpy() for variable in _maskable(model)}
    return bits.whole(bits.prunable(State(0, weights, {}, {}), scope, exclude))


def _covered(model: keras.Model, plan: Plan, scope: Collection[str]) -> Bits:
    """The mask that keeps all that one may prune with the units of `scope`."""
    shapes = {path: variable.shape for path, variable in by_path(model).items() if path in scope}
    shapes |= {variable.path: variable.shape for variable in _maskable(model)}
    covered = units_of(model, plan, shapes, scope).covered(scope)
    return {path: np.ones(shape, bool) for path, shape in shapes.items() if path in covered}


def _maskable(model: keras.Model) -> list[keras.Variable]:
    return [variable for variable in model.trainable_weights if not variable.overwrite_with_gradient]  # float8's scales


def _given(model: keras.Model, mask: Bits) -> Bits:
    """A copy of the user's `mask`. Raises InputError where it does not fit the model."""
    shapes = {variable.path: variable.shape for variable in model.weights}
    for path, kept in mask.items():
        if np.shape(kept) != shapes.get(path) or np.asarray(kept).dtype != bool:
            raise InputError(f"masks: {path} is not a bool array of the shape {shapes.get(path, 'of a variable of the model')}")
    return {path: np.asarray(kept) for path, kept in mask.items()}
