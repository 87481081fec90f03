"""Ranking weights by their scores, and masks that drop exactly the k lowest. Pure NumPy; nothing here changes its inputs."""

import dataclasses
from collections.abc import Callable, Hashable
from fractions import Fraction

import numpy as np

from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays

_BLOCK = 1 << 18  # weights at a time, so that temporaries stay in the cache


def pruned_count(quantile: Fraction, count: int) -> int:
    """k = ceil(q (N - 1) / 100): how many of `count` weights go at `quantile` per cent.

    Without ties this is the number of scores strictly below `numpy.quantile` (linear interpolation).
    """
    return -(-quantile.numerator * (count - 1) // (100 * quantile.denominator)) if count else 0


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Weights that are ranked together. A mask and a threshold for any count or quantile are read from it.

    `scores` are by path. `ascending` (their dtype, [N]) are the sorted scores of the survivors: the weights that `among` keeps,
    or all weights of a path that it lacks. Nothing else is stored; ranks would take four times as much memory.
    """

    scores: Arrays
    among: Bits
    ascending: np.ndarray

    def prune(self, count: int) -> Bits:
        """The mask that drops exactly the `count` lowest survivors, ties broken by position (the order of paths, then C
        order), and keeps the others; what did not survive stays pruned."""
        edge = self.ascending[count - 1] if count else -np.inf
        spared = int(np.searchsorted(self.ascending, edge, "right")) - count
        mask = {path: np.empty(array.shape, bool) for path, array in self.scores.items()}
        for path in reversed(mask):  # from the end: of the weights that score `edge` the last `spared` stay
            flat, kept = self.scores[path].reshape(-1), mask[path].reshape(-1)
            for start in reversed(range(0, flat.size, _BLOCK)):
                block = slice(start, start + _BLOCK)
                np.greater(flat[block], edge, out=kept[block])
                if spared:
                    equal = flat[block] == edge
                    if path in self.among:
                        equal &= self.among[path].reshape(-1)[block]
                    last = np.flatnonzero(equal)[-spared:]
                    kept[block][last] = True
                    spared -= last.size
            if path in self.among:
                mask[path] &= self.among[path]
        return mask

    def threshold(self, quantile: Fraction) -> float:
        """The linear quantile of all scores, as `numpy.quantile` defines it; 0 if there are none. It is reported only; masks
        are cut by rank."""
        if not self.ascending.size:
            return 0.0
        position = quantile * (self.ascending.size - 1) / 100
        below = int(position)
        above = min(below + 1, self.ascending.size - 1)
        low, high = float(self.ascending[below]), float(self.ascending[above])
        return low + (high - low) * float(position - below)


def rank(scores: Arrays, among: Bits | None = None) -> Ranking:
    """Sort the `scores` (path -> float array) of what `among` keeps."""
    among = {path: kept for path, kept in (among or {}).items() if path in scores}
    flat = [(array[among[path]] if path in among else array).reshape(-1) for path, array in scores.items()]
    ascending = np.concatenate(flat) if flat else np.empty(0)
    ascending.sort()
    return Ranking(scores, among, ascending)


def parted(scores: Arrays, layerwise: bool, key: Callable[[str], Hashable] = lambda path: None) -> list[Arrays]:
    """`scores` in parts that are ranked together: each variable on its own, or all variables with the same `key`."""
    parts: dict[Hashable, Arrays] = {}
    for path, array in scores.items():
        parts.setdefault(path if layerwise else key(path), {})[path] = array
    return list(parts.values())
