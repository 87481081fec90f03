"""Which example stands where in an epoch, and how it is varied: drawn on the host as functions of (seed, epoch, index). Nothing
here depends on how examples are fed, so both ways give the same batches, and any step can be gone to at once."""

import math
from typing import NamedTuple

import numpy as np

from data_prep.records import BLOCK
from lottery.experiment.recipe import Data

Draws = dict[str, np.ndarray]


class Window(NamedTuple):
    """A stretch of an order, up to position `end`, for which nothing but `blocks` (indices) need be at hand."""

    end: int
    blocks: np.ndarray


class Order(NamedTuple):
    """Examples by index (int32, [n]) in the order in which they are fed, and the windows that n divides into."""

    indices: np.ndarray
    windows: list[Window]

    def cut(self, count: int) -> "Order":
        """The first `count` of them."""
        reached = next(number for number, window in enumerate(self.windows, 1) if window.end >= count)
        return Order(self.indices[:count], self.windows[:reached])


def shuffled(sizes: np.ndarray, mixed: int, seed: int, epoch: int) -> Order:
    """All examples of a split in the order of one epoch (counted from 0), from its `sizes` (int, [blocks]: the examples in
    each). A split of at most `mixed` examples is permuted as a whole. Of a larger one, those of groups of blocks that are drawn
    at random are, about so many at a time."""
    rng, starts = _generator(seed, epoch, 0), np.cumsum(sizes) - sizes
    groups = [np.arange(len(sizes))] if sizes.sum() <= mixed else _grouped(rng.permutation(len(sizes)), mixed)
    parts = [
        rng.permutation(np.concatenate([np.arange(starts[block], starts[block] + sizes[block]) for block in group]))
        for group in groups
    ]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return Order(np.concatenate(parts).astype(np.int32), list(map(Window, ends, groups)))


def sequential(sizes: np.ndarray, mixed: int, length: int) -> Order:
    """All examples of a split one after the other, and the last one repeated up to `length` places."""
    indices = np.minimum(np.arange(length), sizes.sum() - 1).astype(np.int32)
    groups = _grouped(np.arange(len(sizes)), mixed)
    ends = np.cumsum([sizes[group].sum() for group in groups]).tolist()
    return Order(indices, list(map(Window, [*ends[:-1], length], groups)))


def draws(data: Data, count: int, seed: int, epoch: int) -> Draws:
    """How each of `count` images is varied in one epoch: of these, the ones that `data` asks for.

    `corner` (int32, [count, 2]): row and column at which the crop of the padded image begins. `mirrored` (int32, [count]): 1
    for a mirrored image. `box` (float32, [count, 4]): top, left, bottom, right of the crop to resize, as fractions. `hole`
    (int32, [count, 2]): row and column of the centre of the square that is blanked out."""
    drawn: Draws = {}
    if data.crop:
        drawn["corner"] = _generator(seed, epoch, 1).integers(0, 2 * data.crop + 1, (count, 2)).astype(np.int32)
    if data.flip:
        drawn["mirrored"] = _generator(seed, epoch, 2).integers(0, 2, count).astype(np.int32)
    if data.resized_crop:
        drawn["box"] = _boxes(_generator(seed, epoch, 3).uniform(size=(count, 4)), data.resized_crop)
    if data.cutout:
        drawn["hole"] = _generator(seed, epoch, 4).integers(0, data.size, (count, 2)).astype(np.int32)
    return drawn


def _generator(seed: int, epoch: int, purpose: int) -> np.random.Generator:
    """One for each array that is drawn, so that an example's draw depends on nothing but its index."""
    return np.random.default_rng([seed, epoch, purpose])


def _grouped(blocks: np.ndarray, mixed: int) -> list[np.ndarray]:
    """`blocks` in groups of about `mixed` examples, but of one block at least."""
    return np.array_split(blocks, min(len(blocks), -(-len(blocks) * BLOCK // mixed)))


def _boxes(chance: np.ndarray, least: float) -> np.ndarray:
    """Crops of an area of least .. 1 and an aspect ratio (log-uniform) of 3/4 .. 4/3, cut off at the image's sides, placed
    at random (Szegedy et al. 2015, section 6), from `chance` (0 .. 1, [n, 4])."""
    area = least + (1 - least) * chance[:, 0]
    aspect = (2 * chance[:, 1] - 1) * math.log(4 / 3)
    sides = np.sqrt(area)[:, None] * np.exp(np.stack([-aspect, aspect], axis=1) / 2)
    sides = np.minimum(sides, 1)
    corner = chance[:, 2:] * (1 - sides)
    return np.concatenate([corner, corner + sides], axis=1).astype(np.float32)
