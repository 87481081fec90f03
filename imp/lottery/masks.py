"""Masks: which weights a network keeps. Pure NumPy over `dict[str, array]`; nothing here changes its inputs.

A mask maps the path of a prunable variable to a boolean array of its shape, True where the weight is kept.
"""

import dataclasses
import fnmatch
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from data_prep.errors import InputError
from lottery import store

Mask = dict[str, np.ndarray]
Scope = Literal["kernels", "pointwise", "all"]
SCOPES: dict[str, Scope] = {name: name for name in get_args(Scope)}


def prunable(state: store.State, scope: Scope, exclude: Sequence[str] = ()) -> store.Arrays:
    """The variables that `scope` ranks, in the order of their paths.

    `kernels`: convolution, depthwise and dense kernels. `pointwise`: 1x1 convolution kernels. `all`: every variable,
    BatchNorm statistics included (but not the integers of a random generator). `exclude` are shell patterns of paths to
    leave out (`predictions/*`).
    Raises InputError when nothing is left, and by name when a variable holds NaN or infinity.
    """
    candidates = {**state.weights, **state.statistics} if scope == "all" else state.weights
    candidates = {path: array for path, array in candidates.items() if np.issubdtype(array.dtype, np.floating)}
    chosen = {path: array for path, array in sorted(candidates.items()) if in_scope(path, array.shape, scope, exclude)}
    if not chosen:
        raise InputError(f"nothing to prune: scope {scope!r} less {list(exclude)} leaves no variable of this network")
    for path, array in chosen.items():
        if not np.isfinite(array).all():
            raise InputError(f"{path} holds NaN or infinite weights: the dense network diverged, lower its learning rate")
    return chosen


def in_scope(path: str, shape: tuple[int, ...], scope: Scope, exclude: Sequence[str] = ()) -> bool:
    """Whether `scope` less the patterns `exclude` covers the variable of this path and shape."""
    if any(fnmatch.fnmatchcase(path, pattern) for pattern in exclude):
        return False
    is_kernel = path.rsplit("/", 1)[-1].endswith("kernel")
    is_pointwise = len(shape) == 4 and tuple(shape[:2]) == (1, 1)
    return scope == "all" or (is_kernel and (scope == "kernels" or is_pointwise))


def trainable_part(mask: Mask, weights: store.Arrays) -> Mask:
    """The part of `mask` over trainable variables: what a retraining applies (scope `all` also ranks statistics)."""
    return {path: kept for path, kept in mask.items() if path in weights}


def shuffle(mask: Mask, seed: int, met: Mapping[str, np.ndarray] | None = None) -> Mask:
    """`mask` with its kept places permuted within each variable: the layerwise densities stay, the structure goes.

    Of a kernel in `met` (bool, broadcast to its shape: `connectivity.met`) only among the places that are met; what lies at
    the others, where no weight does anything, stays.
    """
    met, shuffled = met or {}, {}
    for index, (path, kept) in enumerate(sorted(mask.items())):
        places = np.broadcast_to(met.get(path, True), kept.shape)
        shuffled[path] = kept.copy()
        shuffled[path][places] = np.random.default_rng([seed, index]).permutation(kept[places])
    return shuffled


def apply(mask: Mask, arrays: store.Arrays) -> store.Arrays:
    """`arrays` with exact zeros (+0.0) where `mask` prunes; paths without a mask are passed on as they are."""
    return {
        path: np.where(mask[path], array, np.zeros((), array.dtype)) if path in mask else array
        for path, array in arrays.items()
    }


@dataclasses.dataclass(frozen=True)
class Density:
    """The share of weights kept, over the prunable, the trainable and all weights of the network."""

    prunable: float
    trainable: float
    total: float


def density(mask: Mask, state: store.State) -> Density:
    """Densities of the network `state` under `mask`, which may rank statistics too (scope `all`) but prunes none."""
    applied = trainable_part(mask, state.weights)
    pruned = sum(kept.size - int(np.count_nonzero(kept)) for kept in applied.values())
    trainable = sum(array.size for array in state.weights.values())
    total = trainable + sum(array.size for array in state.statistics.values())
    return Density(*(1 - pruned / max(count, 1) for count in (sum(kept.size for kept in applied.values()), trainable, total)))


def collapsed(mask: Mask, least: float = 0.0) -> list[str]:
    """Paths of kernels of which nothing is kept, or a smaller share than `least`: layer collapse (Tanaka et al. 2020). A bias
    or a scale that is pruned (scope `all`) cuts no layer off."""
    kernels = {path: kept for path, kept in mask.items() if kept.size and in_scope(path, kept.shape, "kernels")}
    shares = {path: np.count_nonzero(kept) / kept.size for path, kept in kernels.items()}
    return [path for path, share in shares.items() if share == 0 or share < least]


def save(path: Path, mask: Mask, attributes: Mapping[str, store.Attribute]) -> None:
    """Write `mask` bit-packed: `bits` (uint8) has one variable's after another's, each from a byte of its own, C order, first
    weight in the highest bit; `layout` is JSON, the variables' paths and shapes in the order of their bits.

    Two datasets however many variables there are: one for each would take HDF5 longer than all else that makes a mask.
    """
    bits = np.concatenate([np.packbits(kept) for kept in mask.values()]) if mask else np.empty(0, np.uint8)
    layout = json.dumps({name: kept.shape for name, kept in mask.items()})
    store.save(path, {"mask": {"bits": bits, "layout": np.array(layout.encode())}}, attributes)


def load(path: Path) -> Mask:
    """The mask that `save` wrote. Raises InputError as `store.load` does, and where the file holds something else."""
    groups, _ = store.load(path)
    if "mask" not in groups:
        raise InputError(f"{path} holds no mask, or one of an older version: remove it and run its stage again")
    stored = groups["mask"]
    mask, start = {}, 0
    for name, shape in json.loads(stored["layout"].item()).items():
        size = math.prod(shape)
        bits = stored["bits"][start : start + -(-size // 8)]
        mask[name] = np.unpackbits(bits, count=size).reshape(shape).view(bool)
        start += bits.size
    return mask
