"""Ranking weights by their scores, and masks that drop exactly the k lowest. Pure NumPy; nothing here changes its inputs."""

import dataclasses
from fractions import Fraction
from functools import cached_property

import numpy as np

from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, widened

_BLOCK = 1 << 18  # weights at a time, so that temporaries stay in the cache


def pruned_count(quantile: Fraction, count: int) -> int:
    """k = ceil(q (N - 1) / 100): how many of `count` weights go at `quantile` per cent. Without ties this is the number of
    scores strictly below `numpy.quantile` (linear interpolation)."""
    return -(-quantile.numerator * (count - 1) // (100 * quantile.denominator)) if count else 0


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Scores (path -> float array) that are ranked together. A mask and a threshold for any count or quantile are read from it.
    Ranked are the survivors: the scores that `among` keeps (path -> bool array), or all of a path that it lacks."""

    scores: Arrays
    among: Bits

    @property
    def size(self) -> int:
        """How many survive."""
        gone = sum(kept.size - int(np.count_nonzero(kept)) for kept in self.among.values())
        return sum(array.size for array in self.scores.values()) - gone

    @cached_property
    def ascending(self) -> np.ndarray:
        """The sorted scores of the survivors (their dtype, [N]). Ranks would take four times as much memory."""
        ascending = _survivors(self.scores, self.among)
        ascending.sort()
        return ascending

    def prune(self, count: int, sort: bool = False) -> Bits:
        """The mask that drops exactly the `count` lowest survivors, ties broken by position (the order of paths, then C order),
        and keeps the others; what did not survive stays pruned. For one mask it is quicker not to `sort` the scores first."""
        return _cut(self.scores, self.among, *self._edge(count, sort))

    def threshold(self, quantile: Fraction) -> float:
        """The linear quantile of all scores, as `numpy.quantile` has it; 0 if there are none. Masks are cut by rank."""
        if not self.ascending.size:
            return 0.0
        position = quantile * (self.ascending.size - 1) / 100
        below = int(position)
        above = min(below + 1, self.ascending.size - 1)
        low, high = float(self.ascending[below]), float(self.ascending[above])
        return low + (high - low) * float(position - below)

    def _edge(self, count: int, sort: bool) -> tuple[float, int]:
        """The highest score of the `count` lowest survivors, and how many of those that score it are not among these."""
        if not count:
            return -np.inf, 0
        if sort or "ascending" in vars(self):
            edge = self.ascending[count - 1]
            return edge, int(np.searchsorted(self.ascending, edge, "right")) - count
        scores = _survivors(self.scores, self.among)
        scores.partition(count - 1)
        return scores[count - 1], int(np.count_nonzero(scores <= scores[count - 1])) - count


def rank(scores: Arrays, among: Bits | None = None) -> Ranking:
    """Rank the `scores` (path -> float array) of what `among` keeps."""
    scores = {path: widened(array) for path, array in scores.items()}
    return Ranking(scores, {path: kept for path, kept in (among or {}).items() if path in scores and not kept.all()})


def _survivors(scores: Arrays, among: Bits) -> np.ndarray:
    flat = [(array[among[path]] if path in among else array).reshape(-1) for path, array in scores.items()]
    return np.concatenate(flat) if flat else np.empty(0)


def _cut(scores: Arrays, among: Bits, edge: float, spared: int) -> Bits:
    """The mask of the survivors that score above `edge`, and of the last `spared` of those that score it."""
    mask = {path: np.empty(array.shape, bool) for path, array in scores.items()}
    for path in reversed(mask):  # from the end: of the weights that score `edge` the last `spared` stay
        flat, kept = scores[path].reshape(-1), mask[path].reshape(-1)
        for start in reversed(range(0, flat.size, _BLOCK)):
            block = slice(start, start + _BLOCK)
            np.greater(flat[block], edge, out=kept[block])
            if spared:
                equal = flat[block] == edge
                if path in among:
                    equal &= among[path].reshape(-1)[block]
                last = np.flatnonzero(equal)[-spared:]
                kept[block][last] = True
                spared -= last.size
        if path in among:
            mask[path] &= among[path]
    return mask
