"""Weights ranked by magnitude, and the masks that drop exactly the k smallest. Pure NumPy; nothing here changes its inputs."""

import dataclasses
from collections.abc import Callable, Hashable
from fractions import Fraction

import numpy as np

from lottery import store
from lottery.masks import Mask


def pruned_count(quantile: Fraction, count: int) -> int:
    """k = ceil(q (N - 1) / 100): how many of `count` weights go at `quantile` per cent.

    Without ties this is the number of magnitudes strictly below `numpy.quantile` (linear interpolation).
    """
    return -(-quantile.numerator * (count - 1) // (100 * quantile.denominator)) if count else 0


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Weights that are ranked together by magnitude; a mask and a threshold for any count or quantile are read from it.

    `magnitudes` (the weights' dtype, [N], ascending) are those of the survivors: the weights that `among` keeps, all where it
    says nothing. Beside the weights themselves that is all that is held: sorted, ranks would take four times as much.
    """

    weights: store.Arrays
    among: Mask
    magnitudes: np.ndarray

    def prune(self, count: int) -> Mask:
        """The mask that drops exactly the `count` smallest survivors, ties broken by position (the order of paths, then C
        order), and keeps the others; what did not survive stays pruned."""
        if count == 0:
            return {path: self._survivors(path).copy() for path in self.weights}
        edge = self.magnitudes[count - 1]
        spared = int(np.searchsorted(self.magnitudes, edge, "right")) - count
        mask = {path: np.empty(array.shape, bool) for path, array in self.weights.items()}
        for path in reversed(mask):
            spared = self._prune_one(path, edge, spared, mask[path].reshape(-1))
            if path in self.among:
                mask[path] &= self.among[path]
        return mask

    def _prune_one(self, path: str, edge: np.number, spared: int, kept: np.ndarray) -> int:
        """Fill `kept` for one variable, block by block from its end: of the weights as large as `edge` the last `spared`
        stay. Returns how many are still to be spared before it."""
        flat = self.weights[path].reshape(-1)
        for start in reversed(range(0, flat.size, _BLOCK)):
            block = slice(start, start + _BLOCK)
            magnitudes = np.abs(flat[block])
            np.greater(magnitudes, edge, out=kept[block])
            if spared:
                equal = magnitudes == edge
                if path in self.among:
                    equal &= self.among[path].reshape(-1)[block]
                last = np.flatnonzero(equal)[-spared:]
                kept[block][last] = True
                spared -= last.size
        return spared

    def _survivors(self, path: str) -> np.ndarray:
        return self.among[path] if path in self.among else np.ones(self.weights[path].shape, bool)

    def threshold(self, quantile: Fraction) -> float:
        """The linear quantile of all magnitudes, as `numpy.quantile` defines it; 0 of none. Reported; masks go by rank."""
        if not self.magnitudes.size:
            return 0.0
        position = quantile * (self.magnitudes.size - 1) / 100
        below = int(position)
        above = min(below + 1, self.magnitudes.size - 1)
        low, high = float(self.magnitudes[below]), float(self.magnitudes[above])
        return low + (high - low) * float(position - below)


_BLOCK = 1 << 18  # weights at a time, so that temporaries stay in the cache


def rank(weights: store.Arrays, among: Mask | None = None) -> Ranking:
    """Sort the magnitudes of `weights` (path -> float array) that `among` keeps."""
    among = {path: kept for path, kept in (among or {}).items() if path in weights}
    flat = [(array[among[path]] if path in among else array).reshape(-1) for path, array in weights.items()]
    magnitudes = np.concatenate(flat) if flat else np.empty(0)
    np.abs(magnitudes, out=magnitudes)
    magnitudes.sort()
    return Ranking(weights, among, magnitudes)


def parted(weights: store.Arrays, layerwise: bool, key: Callable[[str], Hashable] = lambda path: None) -> list[store.Arrays]:
    """`weights` parted into those that are ranked together: each variable on its own, or all for which `key` is the same."""
    parts: dict[Hashable, store.Arrays] = {}
    for path, array in weights.items():
        parts.setdefault(path if layerwise else key(path), {})[path] = array
    return list(parts.values())
