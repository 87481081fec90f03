"""How large the weights of each variable are, and how they change during training. Pure NumPy. Nothing here changes its inputs.
Networks are given as path -> array of floats."""

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from lottery.pruning import ranking
from lottery.pruning.state import Arrays

IN_ALL = "in all"
BINS = 16
_TAIL = 0.1  # per cent of the magnitudes at either end that do not stretch a histogram


def table(weights: Arrays, quantiles: Mapping[str, Fraction]) -> list[dict[str, Any]]:
    """The magnitudes |w| of each variable, in the order of `weights`, and last of all together.

    Of the variable `path`, `count` weights, of which `zeros` are exactly 0.0, their `min`, `max` and `mean`; `norm` is the
    square root of the sum of their squares; `quantiles` (per cent, by a name for each) are those that `numpy.quantile` (linear)
    gives. `histogram` counts log10 |w| in equal bins from `low` to `high`, the same for all rows; what lies outside counts in
    the outermost bins, zeros nowhere. Raises ValueError where there are no weights, or a variable is empty."""
    if not weights or not all(array.size for array in weights.values()):
        raise ValueError("no weights to describe")
    magnitudes = {path: np.abs(array) for path, array in weights.items()}
    together = ranking.rank(magnitudes)
    low, high = _span(together.ascending)
    edges = np.linspace(low, high, BINS + 1)
    rows = []
    for path, part in [*((path, ranking.rank({path: array})) for path, array in magnitudes.items()), (IN_ALL, together)]:
        ascending = part.ascending
        zeros = int(np.searchsorted(ascending, 0, "right"))
        # The magnitudes ascend, so that counting is finding the edges; the outermost bins are open.
        inner = np.searchsorted(ascending, 10.0 ** edges[1:-1])
        rows.append(
            {
                "path": path,
                "count": ascending.size,
                "zeros": zeros,
                "min": float(ascending[0]),
                "max": float(ascending[-1]),
                "mean": float(ascending.mean(dtype=np.float64)),
                "norm": _length(ascending),
                "quantiles": {name: part.threshold(quantile) for name, quantile in quantiles.items()},
                "histogram": np.diff([zeros, *np.maximum(inner, zeros), ascending.size]).tolist(),
                "low": float(edges[0]),
                "high": float(edges[-1]),
            }
        )
    return rows


def _span(magnitudes: np.ndarray) -> tuple[float, float]:
    """Powers of ten between which all but the tails of the magnitudes (ascending) lie, without the zeros."""
    there = magnitudes[np.searchsorted(magnitudes, 0, "right") :]
    if not there.size:
        return -1.0, 0.0
    low, high = np.log10(np.quantile(there, (_TAIL / 100, 1 - _TAIL / 100)).astype(float))
    return (float(low), float(high)) if high > low else (float(low) - 0.5, float(low) + 0.5)


def movements(step: int, weights: Arrays, first: Arrays) -> list[dict[str, Any]]:
    """How far each variable of `weights` has moved from its value in `first` after `step` steps, and last all together. Of the
    variable `path`: its `norm`, its `mean` magnitude, and how far it has `moved`, as a share of its norm in `first` (None where
    that is 0)."""
    norms = {path: _length(array) for path, array in weights.items()}
    starts = {path: _length(first[path]) for path in weights}
    gone = {path: _length(array.astype(np.float64) - first[path]) for path, array in weights.items()}
    means = {path: float(np.abs(array).mean(dtype=np.float64)) for path, array in weights.items()}
    for every in (norms, starts, gone):
        every[IN_ALL] = float(np.sqrt(np.square(list(every.values())).sum()))
    sizes = [array.size for array in weights.values()]
    means[IN_ALL] = float(np.average(list(means.values()), weights=sizes))
    moved = {path: gone[path] / start if start else None for path, start in starts.items()}
    return [{"path": path, "step": step, "norm": norms[path], "mean": means[path], "moved": moved[path]} for path in norms]


def _length(array: np.ndarray) -> float:
    """The Euclidean norm, summed in float64."""
    return float(np.sqrt(np.square(array, dtype=np.float64).sum()))


def in_order(paths: Iterable[str], layers: Sequence[str] = ()) -> list[str]:
    """Paths of variables in the order of their `layers`; then the others, the second block before the tenth."""
    places = {layer: place for place, layer in enumerate(layers)}

    def key(path: str) -> tuple[int, list[int | str]]:
        parts = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]
        return places.get(path.rpartition("/")[0], len(places)), parts

    return sorted(paths, key=key)
