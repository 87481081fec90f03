"""Masks: which weights of a network are kept. Pure NumPy over `dict[str, array]`; nothing here changes its inputs. A mask maps
the path of a prunable variable to a boolean array of its shape, True where the weight is kept."""

import fnmatch
from collections.abc import Container, Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from lottery.base.errors import InputError
from lottery.pruning.state import Arrays, State, is_float

Bits = dict[str, np.ndarray]
Scope = Literal["kernels", "pointwise", "all"]
SCOPES: dict[str, Scope] = {name: name for name in get_args(Scope)}


def prunable(state: State, scope: Scope, exclude: Sequence[str] = (), include: Sequence[str] = ()) -> Arrays:
    """The variables that `scope` ranks, in the order of their paths.

    `kernels`: convolution, depthwise and dense kernels. `pointwise`: 1x1 convolution kernels. `all`: every variable, BatchNorm
    statistics included (but not the integers of a random generator). `exclude` are shell patterns of paths to leave out
    (`predictions/*`), `include` of trainable ones to take in beside the scope. Raises InputError when nothing is left, and by
    name when a variable holds NaN or infinity."""
    candidates = {**state.weights, **state.statistics} if scope == "all" else state.weights
    candidates = {path: array for path, array in candidates.items() if is_float(array)}
    chosen = {path: array for path, array in sorted(candidates.items()) if in_scope(path, array.shape, scope, exclude, include)}
    if not chosen:
        raise InputError(f"nothing to prune: scope {scope!r} less {list(exclude)} leaves no variable of this network")
    check_finite(chosen)
    return chosen


def check_finite(weights: Arrays) -> None:
    """Raises InputError by name when one of `weights` holds NaN or infinity."""
    for path, array in weights.items():
        if not np.isfinite(array).all():
            raise InputError(f"training diverged: {path} holds NaN or infinite weights; lower the learning rate")


def in_scope(path: str, shape: tuple[int, ...], scope: Scope, exclude: Sequence[str] = (), include: Sequence[str] = ()) -> bool:
    """Whether the variable of this path and shape is in `scope`, or matches a pattern of `include`, and none of `exclude`."""
    if any(fnmatch.fnmatchcase(path, pattern) for pattern in exclude):
        return False
    if any(fnmatch.fnmatchcase(path, pattern) for pattern in include):
        return True
    is_kernel = path.rsplit("/", 1)[-1].endswith("kernel")
    is_pointwise = len(shape) == 4 and tuple(shape[:2]) == (1, 1)
    return scope == "all" or (is_kernel and (scope == "kernels" or is_pointwise))


def whole(variables: Arrays) -> Bits:
    """The mask that keeps all of `variables`."""
    return {path: np.ones(array.shape, bool) for path, array in variables.items()}


def trainable_part(mask: Bits, trainable: Container[str]) -> Bits:
    """The part of `mask` over `trainable` variables, which a retraining applies (scope `all` also ranks statistics)."""
    return {path: kept for path, kept in mask.items() if path in trainable}


def shuffle(mask: Bits, seed: int, met: Mapping[str, np.ndarray] | None = None) -> Bits:
    """`mask` with its kept places permuted within each variable: the layerwise densities stay, the structure goes. Of a kernel
    in `met` (bool, broadcast to its shape: `connectivity.met`) only among the places that are met; the others stay."""
    met, shuffled = met or {}, {}
    for index, (path, kept) in enumerate(sorted(mask.items())):
        places = np.broadcast_to(met.get(path, True), kept.shape)
        shuffled[path] = kept.copy()
        shuffled[path][places] = np.random.default_rng([seed, index]).permutation(kept[places])
    return shuffled


def apply(mask: Bits, arrays: Arrays) -> Arrays:
    """`arrays` with exact zeros (+0.0) where `mask` prunes; paths without a mask are passed on as they are."""
    return {
        path: np.where(mask[path], array, np.zeros((), array.dtype)) if path in mask else array
        for path, array in arrays.items()
    }
