"""Ranking weights by their scores, and masks that drop exactly the k lowest. Pure NumPy; nothing here changes its inputs."""

import dataclasses
from fractions import Fraction

import numpy as np

from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, widened

_STRIDE = 61  # of a sample of scores: a prime, which hardly any axis has
_MARGIN = 100  # places in a sample, so that hardly any is too short
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
        """The mask that drops exactly the `count` lowest survivors, as `lowest_cut` does."""
        edge = self.ascending[count - 1] if count else -np.inf
        return _cut(self.scores, self.among, edge, int(np.searchsorted(self.ascending, edge, "right")) - count)

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
    scores = {path: widened(array) for path, array in scores.items()}
    among = {path: kept for path, kept in (among or {}).items() if path in scores}
    ascending = _survivors(scores, among)
    ascending.sort()
    return Ranking(scores, among, ascending)


def lowest_cut(scores: Arrays, among: Bits, count: int) -> Bits:
    """The mask that drops exactly the `count` lowest of what `among` keeps, ties broken by position (the order of paths, then C
    order), and keeps the others; what did not survive stays pruned. For one mask it takes a fraction of what `rank` does."""
    scores = {path: widened(array) for path, array in scores.items()}
    low = _lowest(scores, {path: among[path] for path in scores}, count)
    found = [scores[path].reshape(-1)[places] for path, places in low.items()]
    flat = np.concatenate(found) if found else np.empty(0)
    edge = np.partition(flat, count - 1)[count - 1] if count else -np.inf
    below = count - int(np.count_nonzero(flat < edge))  # of those that score `edge`, so many go: the first
    mask = {path: among[path].copy() for path in scores}
    for (path, places), values in zip(low.items(), found, strict=True):
        equal = np.flatnonzero(values == edge)[:below]
        below -= equal.size
        pruned = mask[path].reshape(-1)
        pruned[places[values < edge]] = False
        pruned[places[equal]] = False
    return mask


def _lowest(scores: Arrays, among: Bits, count: int) -> dict[str, np.ndarray]:
    """Where the survivors are (path -> places in C order) up to a score that at least `count` do not exceed: found from a
    sample, so that all others need not be looked at again."""
    sampled = {path: array.reshape(-1)[::_STRIDE] for path, array in scores.items()}
    sample = np.sort(_survivors(sampled, {path: kept.reshape(-1)[::_STRIDE] for path, kept in among.items()}))
    total = sum(int(np.count_nonzero(kept)) for kept in among.values())
    place = int(len(sample) * count / max(total, 1) * 1.1) + _MARGIN
    if place < len(sample):
        low = {path: np.flatnonzero((array <= sample[place]) & among[path]) for path, array in scores.items()}
        if sum(map(len, low.values())) >= count:
            return low
    return {path: np.flatnonzero(kept) for path, kept in among.items()}


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
