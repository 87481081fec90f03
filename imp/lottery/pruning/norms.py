"""How large the weights of each variable are, and how they change during training. Pure NumPy.

Nothing here changes its inputs. Networks are given as path -> array of floats.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from lottery.pruning import ranking
from lottery.pruning.state import Arrays

IN_ALL = "in all"
BARS = " ▁▂▃▄▅▆▇█"
_TAIL = 0.1  # per cent of the magnitudes at either end that do not stretch a histogram


@dataclasses.dataclass(frozen=True)
class Norms:
    """The magnitudes |w| of the variable `path`, or of several together.

    `count` weights, of which `zeros` are exactly 0.0; `norm` is the square root of the sum of their squares; `quantiles` are
    those that `numpy.quantile` (linear) gives, by per cent. `histogram` counts log10 |w| in equal bins from `low` to `high`,
    the same for all variables of a table; what lies outside counts in the outermost bins, zeros nowhere.
    """

    path: str
    count: int
    zeros: int
    min: float
    max: float
    mean: float
    norm: float
    quantiles: dict[Fraction, float]
    histogram: list[int]
    low: float
    high: float


def table(weights: Arrays, quantiles: Sequence[Fraction], bins: int = 16) -> list[Norms]:
    """The figures of each variable, in the order of `weights`, and last of all together. Raises ValueError where there are none
    or one is empty."""
    if not weights or not all(array.size for array in weights.values()):
        raise ValueError("no weights to describe")
    magnitudes = {path: np.abs(array) for path, array in weights.items()}
    together = ranking.rank(magnitudes)
    low, high = _span(together.ascending)
    parts = {path: ranking.rank({path: array}) for path, array in magnitudes.items()} | {IN_ALL: together}
    edges = np.linspace(low, high, bins + 1)
    return [_norms(path, part, quantiles, edges) for path, part in parts.items()]


def _span(magnitudes: np.ndarray) -> tuple[float, float]:
    """Powers of ten between which all but the tails of the magnitudes (ascending) lie, without the zeros."""
    there = magnitudes[np.searchsorted(magnitudes, 0, "right") :]
    if not there.size:
        return -1.0, 0.0
    low, high = np.log10(np.quantile(there, (_TAIL / 100, 1 - _TAIL / 100)).astype(float))
    return (float(low), float(high)) if high > low else (float(low) - 0.5, float(low) + 0.5)


def _norms(path: str, part: ranking.Ranking, quantiles: Sequence[Fraction], edges: np.ndarray) -> Norms:
    magnitudes = part.ascending
    zeros = int(np.searchsorted(magnitudes, 0, "right"))
    # The magnitudes ascend, so that counting is finding the edges; the outermost bins are open.
    inner = np.searchsorted(magnitudes, 10.0 ** edges[1:-1])
    counts = np.diff([zeros, *np.maximum(inner, zeros), magnitudes.size])
    return Norms(
        path=path,
        count=magnitudes.size,
        zeros=zeros,
        min=float(magnitudes[0]),
        max=float(magnitudes[-1]),
        mean=float(magnitudes.mean(dtype=np.float64)),
        norm=length(magnitudes),
        quantiles={quantile: part.threshold(quantile) for quantile in quantiles},
        histogram=[int(count) for count in counts],
        low=float(edges[0]),
        high=float(edges[-1]),
    )


@dataclasses.dataclass(frozen=True)
class Movement:
    """The variable `path`, or all of them, after `step` steps: its norm, its mean magnitude, and how far it is from where it
    was first, as a share of its norm there (infinite where that is 0)."""

    path: str
    step: int
    norm: float
    mean: float
    moved: float


def movements(step: int, weights: Arrays, first: Arrays) -> list[Movement]:
    """How far each variable of `weights` has moved from its value in `first` after `step` steps; the last row is for all
    together."""
    norms = {path: length(array) for path, array in weights.items()}
    starts = {path: length(first[path]) for path in weights}
    gone = {path: length(array.astype(np.float64) - first[path]) for path, array in weights.items()}
    means = {path: float(np.abs(array).mean(dtype=np.float64)) for path, array in weights.items()}
    for every in (norms, starts, gone):
        every[IN_ALL] = float(np.sqrt(np.square(list(every.values())).sum()))
    sizes = [array.size for array in weights.values()]
    means[IN_ALL] = float(np.average(list(means.values()), weights=sizes))
    return [
        Movement(path, step, norms[path], means[path], gone[path] / starts[path] if starts[path] else np.inf) for path in norms
    ]


def length(array: np.ndarray) -> float:
    """The Euclidean norm, summed in float64."""
    return float(np.sqrt(np.square(array, dtype=np.float64).sum()))


def in_order(paths: Iterable[str], layers: Sequence[str] = ()) -> list[str]:
    """Paths of variables in the order of their `layers`. The others follow, sorted so that the second block comes before the
    tenth."""
    places = {layer: place for place, layer in enumerate(layers)}

    def key(path: str) -> tuple[int, list[int | str]]:
        parts = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]
        return places.get(path.rpartition("/")[0], len(places)), parts

    return sorted(paths, key=key)


def bars(values: Sequence[float]) -> str:
    """A small bar for each of `values` (not negative); the highest is full. Only spaces if all are 0."""
    most = max(values, default=0)
    if not most:
        return " " * len(values)
    return "".join(BARS[int(np.ceil(value / most * (len(BARS) - 1)))] for value in values)
