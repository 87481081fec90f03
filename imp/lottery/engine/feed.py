"""Feeding: a prepared set as batches for the compiled loop, resident (see `memory`) or read as it goes (see `stream`).

Both give the same batches: `order` says which images they hold. What travels to the compiled step is, per step and image,
`rows` (its label, and in memory its place, streaming the image itself) and the draws of its augmentation; the step turns its
part of the rows into uint8 images and labels by `Feed.images`.
"""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf

from data_prep import records
from lottery.engine import order
from lottery.engine.order import Draws, Order
from lottery.recipe import Data

Rows = tuple[np.ndarray, ...]


class Reader(Protocol):
    """Hands out the rows of consecutive steps."""

    def take(self, count: int) -> Rows:
        """Rows ([steps, batch, ...]) of the next steps: `count`, or as many as are at hand, but one at least."""

    def close(self) -> None:
        """Nothing more will be taken."""


class Pass:
    """One way through a split, from step `position` on. `extras` ([steps, batch, ...]) go along with the rows."""

    def __init__(self, key: tuple[int, ...], reader: Reader, extras: Draws, position: int):
        self.key, self.position = key, position
        self._reader, self._extras = reader, extras

    def take(self, count: int) -> tuple[Rows, Draws]:
        """Rows and extras of the next steps: `count`, or as many as are at hand, but one at least."""
        try:
            rows = self._reader.take(count)
        except Exception:
            self.key = ()  # nothing goes on from a failure: the next pass reads anew
            raise
        first, self.position = self.position, self.position + len(rows[0])
        return rows, {name: values[first : self.position] for name, values in self._extras.items()}

    def close(self) -> None:
        self._reader.close()


class Feed(abc.ABC):
    """A prepared set and how its images are varied. `counts` and `sizes` (of the blocks, in order) are by split."""

    def __init__(self, folder: Path, manifest: records.Manifest, data: Data):
        self.folder, self.manifest, self.data = folder, manifest, data
        self.size, self.channels, self.classes = manifest.shape[0], manifest.shape[2], len(manifest.classes)
        self.counts = {split: manifest.count(split) for split in records.SPLITS}
        self.blocks = {split: records.blocks(folder, manifest, split) for split in records.SPLITS}
        self.sizes = {split: np.array([block.count for block in blocks]) for split, blocks in self.blocks.items()}
        self._pass: Pass | None = None

    @abc.abstractmethod
    def rows_spec(self, batch: int) -> tuple[tf.TensorSpec, ...]:
        """What `rows` look like to the compiled function."""

    @abc.abstractmethod
    def images(self, rows: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Images (uint8, [n, height, width, channels]) and labels (int32, [n]) of a step's `rows` ([n, ...]), in the graph."""

    @abc.abstractmethod
    def _reader(self, split: str, wanted: Order, batch: int, first: int) -> Reader:
        """A reader of `wanted`, cut into batches, from step `first` on."""

    def first_images(self, count: int) -> np.ndarray:
        """The first `count` training images, or all where there are fewer (uint8, [n, height, width, channels])."""
        found: list[np.ndarray] = []
        for block in self.blocks["train"]:
            if sum(map(len, found)) >= count:
                break
            found.append(np.empty((block.count, *self.manifest.shape), np.uint8))
            records.read_block(block, found[-1], np.empty(block.count, records.LABEL))
        return np.concatenate(found)[:count]

    def draws_spec(self, batch: int) -> dict[str, tf.TensorSpec]:
        """What the draws look like to the compiled function."""
        return {
            name: tf.TensorSpec([None, batch, *values.shape[1:]], values.dtype)
            for name, values in order.draws(self.data, 1, 0, 0).items()
        }

    def epoch(self, seed: int, epoch: int, batch: int, first: int = 0) -> Pass:
        """The training split in the order of one epoch (counted from 0), with its draws, from step `first` on.

        Images that do not fill a last batch sit this epoch out. A pass that stands at `first` already is gone on with.
        """
        key = (seed, epoch, batch)
        if self._pass and (self._pass.key, self._pass.position) == (key, first):
            return self._pass
        steps = self.counts["train"] // batch
        wanted = order.shuffled(self.sizes["train"], self.data.shuffle, seed, epoch).cut(steps * batch)
        drawn = order.draws(self.data, self.counts["train"], seed, epoch)
        extras = {name: values[wanted.indices] for name, values in drawn.items()}
        return self._open(key, "train", wanted, extras, batch, first)

    def sweep(self, split: str, batch: int) -> Pass:
        """A whole split, image after image, with `weights` (float32) that are 0 where a place of the last batch is padding.

        Like `epoch`, it ends the pass before it.
        """
        places = np.arange(-(-self.counts[split] // batch) * batch)
        weights = (places < self.counts[split]).astype(np.float32)
        wanted = order.sequential(self.sizes[split], self.data.shuffle, len(places))
        return self._open((), split, wanted, {"weights": weights}, batch, 0)

    def _open(self, key: tuple[int, ...], split: str, wanted: Order, extras: Draws, batch: int, first: int) -> Pass:
        if self._pass:
            self._pass.close()
        self._pass = None  # what it held is free before the next one takes as much
        by_step = {name: values.reshape(-1, batch, *values.shape[1:]) for name, values in extras.items()}
        self._pass = Pass(key, self._reader(split, wanted, batch, first), by_step, first)
        return self._pass
