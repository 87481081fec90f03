"""Streaming: a set that is not held in memory, read window by window ahead of the loop. A window is a group of blocks from
shards everywhere. While one is fed, the next is read; while one call trains, the rows of the next are put together."""

import dataclasses
import math
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tensorflow as tf

from data_prep import records
from lottery.base import capacity
from lottery.base.errors import InputError
from lottery.engine.feed import Feed, Reader, Rows
from lottery.engine.order import Order
from lottery.experiment.recipe import Data

CHUNK_BYTES = 16 << 20
READERS = 2
ALIGNMENT = 64  # bytes


class StreamFeed(Feed):
    """A prepared set read from its shards, by one of so many `ranks` on this host. `devices` are TensorFlow's names; where
    there is one, rows are put on it ahead."""

    def __init__(self, folder: Path, manifest: records.Manifest, data: Data, devices: Sequence[str], ranks: int = 1):
        super().__init__(folder, manifest, data)
        self.device = devices[0] if len(devices) == 1 else "CPU:0"
        self.readers, self.thread = ThreadPoolExecutor(READERS, "shards"), ThreadPoolExecutor(1, "rows")
        # Two windows are held: the one that is fed, and the next.
        example, budget = records.example_bytes(manifest.shape), capacity.host_budget(data.budget, ranks)
        needed, fits = 2 * example * min(max(self.counts.values()), max(data.shuffle, records.BLOCK)), budget // (2 * example)
        if needed > budget:
            lower = f"lower data.shuffle to {fits}, or " if fits >= records.BLOCK else ""
            raise InputError(
                f"streaming with data.shuffle {data.shuffle} holds {needed / 1e6:.3g} MB of examples at a time, and "
                f"{budget / 1e6:.3g} MB may be used: {lower}raise data.budget"
            )

    def rows_spec(self, batch: int) -> tuple[tf.TensorSpec, ...]:
        return tf.TensorSpec([None, batch, *self.manifest.shape], tf.uint8), tf.TensorSpec([None, batch], tf.int32)

    def examples(self, rows: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return rows[0], rows[1]

    def _reader(self, split: str, planned: Order, batch: int, first: int) -> tuple[Reader, Callable[[], None]]:
        ahead = _Ahead(self, split, planned, batch, first)
        return ahead.take, ahead.close


@dataclasses.dataclass
class _Held:
    """Memory for the examples and labels of one window, whose examples are needed up to position `end`. `shift`, by block,
    leads from an index in the split to the place here; `reading` are the parts that may still be under way."""

    examples: np.ndarray
    labels: np.ndarray
    end: int = 0
    shift: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    reading: list[Future[None]] = dataclasses.field(default_factory=list)


class _Ahead:
    """Rows of `planned` from step `first` on, made while the ones before are in use: as many steps as were asked for last,
    within `CHUNK_BYTES`."""

    def __init__(self, feed: StreamFeed, split: str, planned: Order, batch: int, first: int):
        self._shape, self._device, self._readers, self._thread = feed.manifest.shape, feed.device, feed.readers, feed.thread
        self._blocks, self._sizes, self._ends = feed.blocks[split], feed.sizes[split], np.cumsum(feed.sizes[split])
        self._indices, self._batch, self._position = planned.indices, batch, first * batch
        self._windows = iter([window for window in planned.windows if window.end > self._position])
        largest = max(int(self._sizes[window.blocks].sum()) for window in planned.windows)
        self._fed, self._coming = (
            _Held(np.empty((largest, *self._shape), np.uint8), np.empty(largest, records.LABEL)) for _ in range(2)
        )
        self._turn()
        self._turn()
        self._most = max(1, CHUNK_BYTES // (batch * records.example_bytes(self._shape)))
        self._spare: list[np.ndarray] = []
        self._rest: Rows = ()
        self._next = self._thread.submit(self._make, 1)

    def take(self, step: int, count: int) -> Rows:
        rows = self._rest
        if not rows:
            rows = self._next.result()
            self._next = self._thread.submit(self._make, count)
        self._rest = tuple(values[count:] for values in rows) if len(rows[0]) > count else ()
        return tuple(values[:count] for values in rows) if self._rest else rows

    def close(self) -> None:
        """What has not been read yet is not read any more."""
        self._next.cancel()
        for future in (*self._fed.reading, *self._coming.reading):
            future.cancel()

    def _turn(self) -> None:
        """Go to the window ahead, and begin to read the one after it into the memory of the last."""
        self._fed, self._coming = self._coming, self._fed
        window, held = next(self._windows, None), self._coming
        if window is None:
            return
        ends = np.cumsum(self._sizes[window.blocks])
        starts = ends - self._sizes[window.blocks]
        held.end, held.shift = window.end, np.zeros(len(self._sizes), np.int64)
        held.shift[window.blocks] = starts - (self._ends - self._sizes)[window.blocks]
        held.reading = [
            self._readers.submit(records.read_block, self._blocks[block], held.examples[start:stop], held.labels[start:stop])
            for block, start, stop in zip(window.blocks, starts, ends, strict=True)
        ]

    def _make(self, steps: int) -> Rows:
        """The next rows. Raises InputError for a damaged shard."""
        count = min(min(steps, self._most) * self._batch, len(self._indices) - self._position)
        shape = (count // self._batch, self._batch)
        examples, labels = self._memory((*shape, *self._shape)), np.empty(shape, np.int32)
        self._copy(examples.reshape(-1, *self._shape), labels.reshape(-1))
        with tf.device(self._device):
            return tf.identity(tf.experimental.dlpack.from_dlpack(examples.__dlpack__())), tf.constant(labels)

    def _copy(self, examples: np.ndarray, labels: np.ndarray) -> None:
        filled = 0
        while filled < len(labels):
            if self._position == self._fed.end:
                self._turn()
            held = self._fed
            while held.reading:
                held.reading[-1].result()
                held.reading.pop()
            part = slice(filled, filled + min(len(labels) - filled, held.end - self._position))
            indices = self._indices[self._position :][: part.stop - filled]
            places = indices + held.shift[np.searchsorted(self._ends, indices, side="right")]
            np.take(held.examples, places, axis=0, out=examples[part], mode="clip")  # `raise` would buffer the result
            np.take(held.labels, places, out=labels[part], mode="clip")
            self._position, filled = self._position + len(indices), part.stop

    def _memory(self, shape: tuple[int, ...]) -> np.ndarray:
        """Bytes of `shape`, aligned so that a tensor can share them. They are used again when none does."""
        if self._spare:
            memory = self._spare.pop()
        else:
            size = self._most * self._batch * math.prod(self._shape)
            memory = np.empty(size + ALIGNMENT, np.uint8)
            memory = memory[-memory.ctypes.data % ALIGNMENT :][:size]
        lent = memory[: math.prod(shape)].reshape(shape)
        weakref.finalize(lent, self._spare.append, memory)
        return lent
