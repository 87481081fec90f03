"""Feeding from memory: every image resident as uint8, gathered by index inside the compiled step."""

import contextlib
import ctypes
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from data_prep import records
from lottery.engine.feed import Feed, Reader
from lottery.engine.order import Order
from lottery.experiment.recipe import Data


class MemoryFeed(Feed):
    """Every split resident as uint8, in one array, so that one compiled function reads them all.

    On CPU devices there is one copy; on GPUs each has its own, or, with `on_host`, the host has one and GPUs get batches.
    """

    def __init__(
        self,
        folder: Path,
        manifest: records.Manifest,
        data: Data,
        strategy: tf.distribute.Strategy,
        on_host: bool = True,
    ):
        super().__init__(folder, manifest, data)
        counts = list(self.counts.values())
        self.firsts = dict(zip(records.SPLITS, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))
        self._device = tf.device("CPU:0") if on_host else contextlib.nullcontext()
        with contextlib.nullcontext() if on_host else strategy.scope(), self._device:
            empty = tf.raw_ops.Empty(shape=[sum(counts), *manifest.shape], dtype=tf.uint8)
            self._images = tf.Variable(empty, trainable=False, name="images")
            del empty
            if on_host:
                _use_huge_pages(self._images)
            self._labels = self._fill(strategy)

    def rows_spec(self, batch: int) -> tuple[tf.TensorSpec, ...]:
        return tf.TensorSpec([None, batch], tf.int32), tf.TensorSpec([None, batch], tf.int32)

    def images(self, rows: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        places, labels = rows
        with self._device:
            return tf.gather(self._images, places), labels

    def _reader(self, split: str, planned: Order, batch: int, first: int) -> tuple[Reader, Callable[[], None]]:
        """The rows are places in the resident array, and labels (int32, [steps, batch])."""
        places = (planned.indices + np.int32(self.firsts[split])).reshape(-1, batch)
        labels = self._labels[places]
        return lambda step, count: (places[step : step + count], labels[step : step + count]), lambda: None

    def _fill(self, strategy: tf.distribute.Strategy) -> np.ndarray:
        """Read the images block by block, in place (a whole array would be there twice, or three times, on the way), and
        return the labels (int32)."""
        images = np.empty((records.BLOCK, *self.manifest.shape), np.uint8)
        labels = np.empty(sum(self.counts.values()), records.LABEL)
        first = 0
        for shard in self.manifest.shards:
            records.check_shard(self.folder, self.manifest, shard)
        for block in (block for split in records.SPLITS for block in self.blocks[split]):
            last = first + block.count
            records.read_block(block, images[: block.count], labels[first:last])
            for copy in strategy.experimental_local_results(self._images):
                copy.scatter_update(tf.IndexedSlices(images[: block.count], tf.range(first, last)))
            first = last
        return labels.astype(np.int32)


def _use_huge_pages(variable: tf.Variable) -> None:
    """Ask the kernel to put a variable of the host, still empty, into huge pages: to find an image in ordinary ones costs the
    processor an address translation for every 4 kB, and gathering takes a quarter longer."""
    memory = np.asarray(memoryview(variable.value()))
    first = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    length = memory.ctypes.data + memory.nbytes - first
    if hasattr(mmap, "MADV_HUGEPAGE") and length > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
