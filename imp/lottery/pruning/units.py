"""Units: what is kept or pruned as a whole. Pure NumPy; nothing here changes its inputs.

A kernel [..., inputs, outputs] is the matrix of its product here: all axes but the last are its rows, in C order. (So the
channels of a depthwise kernel, whose outputs are along two axes, are not those of `Channels`.) A unit scores the sum of the
scores of those of its weights that are left: by magnitude their L1 norm, as Li et al. 2017 rank filters ("Pruning Filters for
Efficient ConvNets", arXiv 1608.08710) and Chen et al. 2022 channels, after each round ("Coarsening the Granularity", arXiv
2202.04736).
"""

import dataclasses
import math
from typing import Protocol

import numpy as np

from lottery.base.errors import InputError

Shape = tuple[int, ...]


class Units(Protocol):
    """How an array is made of units, which are ranked in C order."""

    def size(self, shape: Shape) -> int:
        """How many units of an array of `shape` can be kept."""

    def pool(self, scores: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The score of each unit (float), and whether it can be kept (bool), of the `scores` (float) of an array of which the
        weights `kept` (bool, of the same shape) are left. Scores of other weights are not looked at."""

    def spread(self, kept: np.ndarray, shape: Shape) -> np.ndarray:
        """Where the units `kept` (bool) have their weights: bool, of `shape`."""


@dataclasses.dataclass(frozen=True)
class Single:
    """Each weight on its own."""

    def size(self, shape: Shape) -> int:
        return math.prod(shape)

    def pool(self, scores: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scores, kept

    def spread(self, kept: np.ndarray, shape: Shape) -> np.ndarray:
        return kept


SINGLE = Single()


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blocks of `rows` inputs and `columns` outputs (Gray et al. 2017, "GPU Kernels for Block-Sparse Weights"). The last ones
    are smaller where these do not divide the matrix, and count as one like the others."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise InputError(f"{self}: a block has one row and one column, or more")

    def size(self, shape: Shape) -> int:
        rows, columns = _matrix(shape)
        return -(-rows // self.rows) * -(-columns // self.columns)

    def pool(self, scores: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        left = kept.reshape(_matrix(kept.shape))
        starts = [np.arange(0, size, step) for size, step in zip(left.shape, (self.rows, self.columns), strict=True)]
        sums = np.where(left, scores.reshape(left.shape), 0).astype(np.float64)
        for axis, start in enumerate(starts):
            sums, left = np.add.reduceat(sums, start, axis), np.logical_or.reduceat(left, start, axis)
        return sums, left

    def spread(self, kept: np.ndarray, shape: Shape) -> np.ndarray:
        rows, columns = _matrix(shape)
        return kept.repeat(self.rows, 0)[:rows].repeat(self.columns, 1)[:, :columns].reshape(shape)


@dataclasses.dataclass(frozen=True)
class Channels:
    """Output channels: all weights of a kernel that one output is made of."""

    def size(self, shape: Shape) -> int:
        return _matrix(shape)[1]

    def pool(self, scores: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        left = kept.reshape(_matrix(kept.shape))
        sums = np.where(left, scores.reshape(left.shape), 0).sum(axis=0, dtype=np.float64)
        return sums, np.logical_or.reduce(left, axis=0)

    def spread(self, kept: np.ndarray, shape: Shape) -> np.ndarray:
        return np.broadcast_to(kept, _matrix(shape)).reshape(shape)


@dataclasses.dataclass(frozen=True)
class NofM:
    """N:M sparsity (Mishra et al. 2021, "Accelerating Sparse Deep Neural Networks", arXiv 2104.08378): of each `m` inputs in
    sequence of an output the `n` weights of the highest scores can be kept, of a last group of fewer inputs as many, or all.
    Of equal scores the last stay. Where all that can be is kept, exactly `n` of each `m` are."""

    n: int
    m: int

    def __post_init__(self) -> None:
        if not 1 <= self.n <= self.m:
            raise InputError(f"{self}: let n be from 1 to m")

    def size(self, shape: Shape) -> int:
        rows, columns = _matrix(shape)
        return (rows // self.m * self.n + min(rows % self.m, self.n)) * columns

    def pool(self, scores: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = _matrix(kept.shape)
        groups = -(-rows // self.m)
        padded = np.full((groups * self.m, columns), -np.inf)
        padded[:rows] = np.where(kept, scores, -np.inf).reshape(rows, columns)
        order = np.argsort(padded.reshape(groups, self.m, columns), axis=1, kind="stable")
        highest = np.zeros(order.shape, bool)
        np.put_along_axis(highest, order[:, self.m - self.n :], True, axis=1)
        return scores, kept & highest.reshape(padded.shape)[:rows].reshape(kept.shape)

    def spread(self, kept: np.ndarray, shape: Shape) -> np.ndarray:
        return kept


def _matrix(shape: Shape) -> tuple[int, int]:
    """The shape of the matrix that an array of `shape` is; a scalar has one row and one column."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1
