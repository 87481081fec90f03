"""Streaming: a set that is not held in memory, read window by window ahead of the loop.

A window is a group of blocks from shards everywhere. While one is fed, the next is read; while one call trains, the rows of
the next are put together. They travel as uint8.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tensorflow as tf

from data_prep import records
from data_prep.errors import InputError
from data_prep.records import Block
from lottery.engine.feed import Feed, Reader, Rows
from lottery.engine.order import Order, Window
from lottery.experiment.recipe import Data
from lottery.machine import capacity

CHUNK_BYTES = 16 << 20
READERS = 2
ALIGNMENT = 64  # bytes


class StreamFeed(Feed):
    """A prepared set read from its shards, by one of so many `ranks` on this host. `devices` are TensorFlow's names; where
    there is one, rows are put on it ahead."""

    def __init__(self, folder: Path, manifest: records.Manifest, data: Data, devices: Sequence[str], ranks: int = 1):
        super().__init__(folder, manifest, data)
        self._device = devices[0] if len(devices) == 1 else "CPU:0"
        self._readers, self._thread = ThreadPoolExecutor(READERS, "shards"), ThreadPoolExecutor(1, "rows")
        self._check_budget(capacity.host_budget(data.budget, ranks))

    def rows_spec(self, batch: int) -> tuple[tf.TensorSpec, ...]:
        return tf.TensorSpec([None, batch, *self.manifest.shape], tf.uint8), tf.TensorSpec([None, batch], tf.int32)

    def images(self, rows: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = rows
        return images, labels

    def _reader(self, split: str, planned: Order, batch: int, first: int) -> tuple[Reader, Callable[[], None]]:
        reading = _Reading(self.blocks[split], self.manifest.shape, planned, first * batch, self._readers)
        ahead = _Ahead(reading, batch, self._device, self._thread)
        return ahead.take, ahead.close

    def _check_budget(self, budget: int) -> None:
        """Two windows are held: the one that is fed, and the next."""
        image = records.image_bytes(self.manifest.shape)
        needed = 2 * image * min(max(self.counts.values()), max(self.data.shuffle, records.BLOCK))
        if needed > budget:
            fits = budget // (2 * image)
            raise InputError(
                f"streaming with data.shuffle {self.data.shuffle} holds {needed / 1e6:.3g} MB of images at a time, and "
                f"{budget / 1e6:.3g} MB may be used: "
                + (f"lower data.shuffle to {fits}, or raise data.budget" if fits >= records.BLOCK else "raise data.budget")
            )


class _Reading:
    """The examples of `planned` from a position on, copied out in order, while the window after is being read."""

    def __init__(
        self, blocks: Sequence[Block], shape: records.Shape, planned: Order, position: int, readers: ThreadPoolExecutor
    ):
        self.shape, self.position, self._planned = shape, position, planned
        self._blocks, self._sizes, self._readers = blocks, np.array([block.count for block in blocks]), readers
        self._block_ends = np.cumsum(self._sizes)
        self._windows = iter([window for window in planned.windows if window.end > position])
        most = max(int(self._sizes[window.blocks].sum()) for window in planned.windows)
        self._current, self._ahead = (_Held(most, shape) for _ in range(2))
        self._turn()
        self._turn()

    @property
    def left(self) -> int:
        """How many examples are still to come."""
        return len(self._planned.indices) - self.position

    def copy(self, images: np.ndarray, labels: np.ndarray) -> None:
        """The next examples into `images` and `labels`. Raises InputError for a damaged shard."""
        filled = 0
        while filled < len(labels):
            if self.position == self._current.end:
                self._turn()
            count = min(len(labels) - filled, self._current.end - self.position)
            indices = self._planned.indices[self.position : self.position + count]
            in_block = np.searchsorted(self._block_ends, indices, side="right")
            stretch = slice(filled, filled + count)
            self._current.copy(indices + self._current.shift[in_block], images[stretch], labels[stretch])
            self.position, filled = self.position + count, filled + count

    def close(self) -> None:
        """What has not been read yet is not read any more."""
        for held in (self._current, self._ahead):
            held.cancel()

    def _turn(self) -> None:
        """Go to the window ahead, and begin to read the one after it into the memory of the last."""
        self._current, self._ahead = self._ahead, self._current
        window = next(self._windows, None)
        if window:
            self._ahead.read(window, self._blocks, self._sizes, self._readers)


class _Held:
    """Memory for the images and labels of one window, whose examples are needed up to position `end`.

    `shift`, by block, leads from an index in the split to the place here.
    """

    def __init__(self, most: int, shape: records.Shape):
        self.end, self.shift = 0, np.empty(0, np.int64)
        self._images, self._labels = np.empty((most, *shape), np.uint8), np.empty(most, records.LABEL)
        self._reading: list[Future[None]] = []

    def read(self, window: Window, blocks: Sequence[Block], sizes: np.ndarray, readers: ThreadPoolExecutor) -> None:
        """Begin to read `window` in the place of what was here."""
        ends = np.cumsum(sizes[window.blocks])
        starts = ends - sizes[window.blocks]
        self.end, self.shift = window.end, np.zeros(len(sizes), np.int64)
        self.shift[window.blocks] = starts - (np.cumsum(sizes) - sizes)[window.blocks]
        self._reading = [
            readers.submit(records.read_block, blocks[block], self._images[start:stop], self._labels[start:stop])
            for block, start, stop in zip(window.blocks, starts, ends, strict=True)
        ]

    def copy(self, places: np.ndarray, images: np.ndarray, labels: np.ndarray) -> None:
        while self._reading:
            self._reading[-1].result()
            self._reading.pop()
        np.take(self._images, places, axis=0, out=images, mode="clip")  # `raise` would buffer the result
        np.take(self._labels, places, out=labels, mode="clip")

    def cancel(self) -> None:
        for future in self._reading:
            future.cancel()


class _Ahead:
    """Rows made while the ones before are in use: as many steps as were asked for last, within `CHUNK_BYTES`."""

    def __init__(self, reading: _Reading, batch: int, device: str, thread: ThreadPoolExecutor):
        self._reading, self._batch, self._device, self._thread = reading, batch, device, thread
        self._most = max(1, CHUNK_BYTES // (batch * records.image_bytes(reading.shape)))
        self._spare: list[np.ndarray] = []
        self._next = self._thread.submit(self._make, 1)
        self._rest: Rows = ()

    def take(self, step: int, count: int) -> Rows:
        rows = self._rest
        if not rows:
            rows = self._next.result()
            self._next = self._thread.submit(self._make, count)
        self._rest = tuple(values[count:] for values in rows) if len(rows[0]) > count else ()
        return tuple(values[:count] for values in rows) if self._rest else rows

    def close(self) -> None:
        self._next.cancel()
        self._reading.close()

    def _make(self, steps: int) -> Rows:
        count = min(min(steps, self._most) * self._batch, self._reading.left)
        shape = (count // self._batch, self._batch)
        images, labels = self._memory((*shape, *self._reading.shape)), np.empty(shape, np.int32)
        self._reading.copy(images.reshape(-1, *self._reading.shape), labels.reshape(-1))
        with tf.device(self._device):
            return tf.identity(tf.experimental.dlpack.from_dlpack(images.__dlpack__())), tf.constant(labels)

    def _memory(self, shape: tuple[int, ...]) -> np.ndarray:
        """Bytes of `shape` that a tensor can share. They are lent: when no tensor shares them any more, they are used again."""
        size = self._most * self._batch * math.prod(self._reading.shape)
        memory = self._spare.pop() if self._spare else _aligned(size)
        lent = memory[: math.prod(shape)].reshape(shape)
        weakref.finalize(lent, self._spare.append, memory)
        return lent


def _aligned(size: int) -> np.ndarray:
    """So many bytes, from an address that TensorFlow can work with in place."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size]
