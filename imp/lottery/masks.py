"""Masks: which weights a network keeps. Pure NumPy over `dict[str, array]`; nothing here changes its inputs.

A mask maps the path of a prunable variable to a boolean array of its shape, True where the weight is kept.
"""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from data_prep.errors import InputError
from lottery import store

Mask = dict[str, np.ndarray]
Scope = Literal["kernels", "pointwise", "all"]


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


def pruned_count(quantile: Fraction, count: int) -> int:
    """k = ceil(q (N - 1) / 100): how many of `count` weights go at `quantile` per cent.

    Without ties this is the number of magnitudes strictly below `numpy.quantile` (linear interpolation).
    """
    return -(-quantile.numerator * (count - 1) // (100 * quantile.denominator)) if count else 0


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The magnitudes of all prunable weights in order, from which a mask or a threshold for any quantile is read.

    `magnitudes` (float64, [N]) is ascending; `ranks` gives each weight its place in it, ties broken by position (the
    order of paths, then C order). With `layerwise`, places are counted within each variable instead of over all.
    """

    magnitudes: np.ndarray
    ranks: Mapping[str, np.ndarray]
    layerwise: bool

    def mask(self, quantile: Fraction) -> Mask:
        """The mask that prunes exactly `pruned_count` of the smallest magnitudes, over all or in each variable."""
        overall = pruned_count(quantile, self.magnitudes.size)
        return {
            path: ranks >= (pruned_count(quantile, ranks.size) if self.layerwise else overall)
            for path, ranks in self.ranks.items()
        }

    def threshold(self, quantile: Fraction) -> float:
        """The linear quantile of all magnitudes, as `numpy.quantile` defines it. Reported; masks go by rank."""
        position = quantile * (self.magnitudes.size - 1) / 100
        below = int(position)
        above = min(below + 1, self.magnitudes.size - 1)
        low, high = float(self.magnitudes[below]), float(self.magnitudes[above])
        return low + (high - low) * float(position - below)


def rank(weights: store.Arrays, layerwise: bool = False) -> Ranking:
    """Sort the magnitudes of `weights` (path -> float array)."""
    flat = np.concatenate([np.abs(array, dtype=array.dtype).ravel() for array in weights.values()])
    order = np.argsort(flat, kind="stable")
    return Ranking(flat[order].astype(np.float64), _places(weights, order, layerwise), layerwise)


def _places(weights: store.Arrays, order: np.ndarray, layerwise: bool) -> dict[str, np.ndarray]:
    if layerwise:
        return {
            path: _inverse(np.argsort(np.abs(array).ravel(), kind="stable")).reshape(array.shape)
            for path, array in weights.items()
        }
    places = _inverse(order)
    ends = np.cumsum([array.size for array in weights.values()])
    return {
        path: places[end - array.size : end].reshape(array.shape)
        for (path, array), end in zip(weights.items(), ends, strict=True)
    }


def _inverse(order: np.ndarray) -> np.ndarray:
    places = np.empty(order.size, np.int64)
    places[order] = np.arange(order.size)
    return places


def trainable_part(mask: Mask, weights: store.Arrays) -> Mask:
    """The part of `mask` over trainable variables: what a retraining applies (scope `all` also ranks statistics)."""
    return {path: kept for path, kept in mask.items() if path in weights}


def shuffle(mask: Mask, seed: int) -> Mask:
    """`mask` with its kept places permuted within each variable: the layerwise densities stay, the structure goes."""
    return {
        path: np.random.default_rng([seed, index]).permutation(kept.ravel()).reshape(kept.shape)
        for index, (path, kept) in enumerate(sorted(mask.items()))
    }


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
    pruned = sum(int(kept.size - kept.sum()) for kept in applied.values())
    trainable = sum(array.size for array in state.weights.values())
    total = trainable + sum(array.size for array in state.statistics.values())
    return Density(*(1 - pruned / count for count in (sum(kept.size for kept in applied.values()), trainable, total)))


def collapsed(mask: Mask) -> list[str]:
    """Paths of variables of which nothing is kept: the network no longer passes anything through those layers."""
    return [path for path, kept in mask.items() if kept.size and not kept.any()]


def save(path: Path, mask: Mask, attributes: Mapping[str, store.Attribute]) -> None:
    """Write `mask` bit-packed: per variable its bits (uint8, C order, first weight in the highest bit) and its shape."""
    packed = {name: np.packbits(kept) for name, kept in mask.items()}
    shapes = {name: np.array(kept.shape, np.int64) for name, kept in mask.items()}
    store.save(path, {"bits": packed, "shape": shapes}, attributes)


def load(path: Path) -> Mask:
    groups, _ = store.load(path)
    return {
        name: np.unpackbits(bits, count=int(np.prod(groups["shape"][name]))).reshape(groups["shape"][name]).astype(bool)
        for name, bits in groups["bits"].items()
    }
