"""Aligned networks: which hidden unit of one does what a unit of another does. NumPy, and SciPy's assignment.

Hidden units can be renamed: with its channels in another order a network computes the same. So a mask means nothing to a
network with another start, unless its units are renamed first. Adnan et al. 2025 ("Sparse Training from Random Initialization:
Aligning Lottery Ticket Masks using Weight Symmetry", arXiv 2505.05143) match the units of two trained networks by the
correlation of their activations: here of what kernels read. Channels of a residual stream, or of a depthwise kernel and of what
is in front of it, are one by one the same (`channels`), so they keep one order: by the mean over all kernels that read them."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from lottery.pruning.channels import STAYS, Channels
from lottery.pruning.state import Arrays

Axes = Mapping[str, Mapping[int, np.ndarray]]  # of variables by path: the numbers of the channels along an axis (`slices.axes`)

POSITIONS = 8192  # of the maps in a batch that count at least, where there are more: evenly far apart
DECIMALS = 6  # of correlations: sums in another order, as with other threads, choose the same of two equally good matchings
CONSTANT = 1e-10  # share of a unit's mean square up to which its variance is rounding


@dataclasses.dataclass(frozen=True)
class Alignment:
    """`order`: of each channel of one network, the channel of the other that does the same (int [channels]); they lie along
    `axes`. `correlation`: of the activations of such pairs, the mean over channels; None where there is no hidden channel."""

    order: np.ndarray
    axes: Axes
    correlation: float | None = None

    def permuted(self, arrays: Arrays) -> Arrays:
        """`arrays` of the other network (weights, statistics or a mask, by path) with its channels in the order of the one."""
        return {path: _permuted(array, self.axes.get(path, {}), self.order) for path, array in arrays.items()}


def _permuted(array: np.ndarray, axes: Mapping[int, np.ndarray], order: np.ndarray) -> np.ndarray:
    for axis, numbers in axes.items():
        places = np.empty(numbers.size, int)  # a channel may have several, as behind a flattening: they keep their sequence
        places[np.argsort(np.append(order, STAYS)[numbers], kind="stable")] = np.argsort(numbers, kind="stable")
        array = array.take(places, axis)
    return array


def interchangeable(channels: Channels) -> list[np.ndarray]:
    """The numbers of the channels that may change places with one another: those of which every node has as many."""
    counts = [np.bincount(numbers[numbers != STAYS], minlength=channels.count) for numbers in channels.by_node.values()]
    _, group = np.unique(np.stack(counts, 1), axis=0, return_inverse=True)
    return [np.flatnonzero(group == number) for number in np.unique(group)]


class Matching:
    """Gathers the activations of two networks on the same examples, and matches their `channels`, which lie along `axes`."""

    def __init__(self, channels: Channels, axes: Axes):
        self._channels, self._axes, self._groups = channels, axes, interchangeable(channels)
        self._moments: list[dict[str, tuple[np.ndarray, ...]]] = [{} for _ in self._groups]

    def add(self, one: Arrays, other: Arrays) -> None:
        """Take in what the kernels at the paths of both read: [..., inputs], for some of the examples."""
        for path in one:
            numbers = self._channels.by_node[self._channels.nodes[path].inputs[0]]
            sequence = np.argsort(numbers, kind="stable")
            for group, moments in zip(self._groups, self._moments, strict=True):
                places = sequence[np.isin(numbers[sequence], group)].reshape(group.size, -1)
                if places.size:
                    found = _moments(*(_columns(array, places) for array in (one[path], other[path])))
                    known = moments.get(path)
                    moments[path] = tuple(map(np.add, known, found)) if known else found

    def alignment(self) -> Alignment:
        """The matching with the largest sum of correlations."""
        from scipy.optimize import linear_sum_assignment

        order, correlations = np.arange(self._channels.count), np.zeros(self._channels.count)
        for group, moments in zip(self._groups, self._moments, strict=True):
            matrix = np.mean([_correlation(*sums) for sums in moments.values()], axis=0).round(DECIMALS)
            rows, columns = linear_sum_assignment(matrix, maximize=True)
            order[group[rows]], correlations[group[rows]] = group[columns], matrix[rows, columns]
        return Alignment(order, self._axes, float(correlations.mean()) if correlations.size else None)


def _columns(array: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The values of each channel at all of its `places` (int [channels, places]): float64 [values, channels]."""
    flat = array.reshape(-1, array.shape[-1])
    step = len(flat) // POSITIONS | 1  # odd, so that it meets every column of a map
    return flat[::step].take(places.T.ravel(), 1).reshape(-1, len(places)).astype(np.float64)


def _moments(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, ...]:
    squares = (np.einsum("vc,vc->c", values, values) for values in (one, other))
    return np.array(len(one)), one.sum(0), other.sum(0), *squares, one.T @ other


def _correlation(
    count: np.ndarray, one: np.ndarray, other: np.ndarray, squares: np.ndarray, other_squares: np.ndarray, products: np.ndarray
) -> np.ndarray:
    """Pearson's, of each channel of one network with each of the other; 0 where either is constant."""
    deviations = []
    for total, square in ((one, squares), (other, other_squares)):
        variance = square / count - (total / count) ** 2
        deviations.append(np.sqrt(np.where(variance > CONSTANT * square / count, variance, 0)))
    scale = np.outer(*deviations)
    covariance = products / count - np.outer(one, other) / count**2
    return np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 0)
