"""Feeding: a prepared set as batches for the compiled loop, resident as uint8, or read as it goes (see `stream`). Both give the
same batches, of the examples that `order` says. What travels to the compiled step is, per step and example, `rows` (its label,
and in memory its place, streaming the example itself), from which `Feed.examples` makes examples, and its draws."""

import abc
import contextlib
import copy
import ctypes
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from data_prep import records
from lottery.engine import order
from lottery.engine.decoding import Decoder
from lottery.engine.order import Draws, Order
from lottery.engine.tasks import Batch
from lottery.experiment.recipe import Data

Rows = tuple[np.ndarray, ...]
Reader = Callable[[int, int], Rows]  # the rows [steps, batch, ...] of so many steps (or fewer, but one at least) from a step on


class Pass:
    """One way through a split, from step `position` on. `extras` ([steps, batch, ...]) go along with rows; `close` ends it."""

    def __init__(self, key: tuple[int, ...], read: Reader, close: Callable[[], None], extras: Draws, position: int):
        self.key, self.position, self.close = key, position, close
        self._read, self._extras = read, extras

    def take(self, count: int) -> tuple[Rows, Draws]:
        """Rows and extras of the next steps: `count`, or as many as are at hand, but one at least."""
        key, self.key = self.key, ()  # nothing goes on from a failure: the next pass reads anew
        rows = self._read(self.position, count)
        first, self.position, self.key = self.position, self.position + len(rows[0]), key
        return rows, {name: values[first : self.position] for name, values in self._extras.items()}


class Feed(abc.ABC):
    """A prepared set and how its examples are read. `counts` and `sizes` (of the blocks, in order) are by split."""

    def __init__(self, folder: Path, manifest: records.Manifest, data: Data):
        self.folder, self.manifest, self.data = folder, manifest, data
        self.decoder = Decoder(manifest, data)
        self.counts = {split: manifest.count(split) for split in records.SPLITS}
        self.blocks = {split: records.blocks(folder, manifest, split) for split in records.SPLITS}
        self.sizes = {split: np.array([block.count for block in blocks]) for split, blocks in self.blocks.items()}
        self._pass: Pass | None = None

    @abc.abstractmethod
    def rows_spec(self, batch: int) -> tuple[tf.TensorSpec, ...]:
        """What `rows` look like to the compiled function."""

    @abc.abstractmethod
    def examples(self, rows: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Examples (uint8, [n, *shape]) and labels (int32, [n]) of a step's `rows` ([n, ...]), in the graph."""

    @abc.abstractmethod
    def _reader(self, split: str, planned: Order, batch: int, first: int) -> tuple[Reader, Callable[[], None]]:
        """What reads `planned`, cut into batches, step after step from `first` on, and what ends that."""

    def beside(self) -> "Feed":
        """The same examples, to be gone through independently."""
        other = copy.copy(self)
        other._pass = None
        return other

    def first_batch(self, count: int) -> Batch:
        """The first `count` training examples, or all where there are fewer, as they are evaluated."""
        indices = np.arange(min(count, self.counts["train"]))
        examples, labels = records.read_examples(self.blocks["train"], self.manifest.shape, indices)
        return self.decoder.batch(tf.constant(examples), tf.constant(labels))

    def draws_spec(self, batch: int) -> dict[str, tf.TensorSpec]:
        """What the draws look like to the compiled function."""
        return {
            name: tf.TensorSpec([None, batch, *values.shape[1:]], values.dtype)
            for name, values in self.decoder.draws(1, 0, 0).items()
        }

    def epoch(self, seed: int, epoch: int, batch: int, first: int = 0) -> Pass:
        """The training split in the order of one epoch (counted from 0), with its draws, from step `first` on. Examples that do
        not fill a last batch sit this epoch out. A pass that stands at `first` already is gone on with."""
        key = (seed, epoch, batch)
        if self._pass and (self._pass.key, self._pass.position) == (key, first):
            return self._pass
        steps = self.counts["train"] // batch
        planned = order.shuffled(self.sizes["train"], self.data.shuffle, seed, epoch).cut(steps * batch)
        drawn = self.decoder.draws(self.counts["train"], seed, epoch)
        extras = {name: values[planned.indices] for name, values in drawn.items()}
        return self._open(key, "train", planned, extras, batch, first)

    def sweep(self, split: str, batch: int) -> Pass:
        """A whole split, example after example, padded to whole batches. Like `epoch`, it ends the pass before it."""
        planned = order.sequential(self.sizes[split], self.data.shuffle, -(-self.counts[split] // batch) * batch)
        return self._open((), split, planned, {}, batch, 0)

    def _open(self, key: tuple[int, ...], split: str, planned: Order, extras: Draws, batch: int, first: int) -> Pass:
        if self._pass:
            self._pass.close()
            self._pass = None  # what it held is free before the next one takes as much
        by_step = {name: values.reshape(-1, batch, *values.shape[1:]) for name, values in extras.items()}
        self._pass = Pass(key, *self._reader(split, planned, batch, first), by_step, first)
        return self._pass


class MemoryFeed(Feed):
    """Every split resident as uint8, in one array, so that one compiled function reads them all. On CPU devices there is one
    copy; on GPUs each has its own, or, with `on_host`, the host has one and GPUs get batches."""

    def __init__(
        self, folder: Path, manifest: records.Manifest, data: Data, strategy: tf.distribute.Strategy, on_host: bool = True
    ):
        super().__init__(folder, manifest, data)
        counts = list(self.counts.values())
        self._firsts = dict(zip(records.SPLITS, np.cumsum([0, *counts[:-1]]).astype(np.int32), strict=True))
        self._device = tf.device("CPU:0") if on_host else contextlib.nullcontext()
        with contextlib.nullcontext() if on_host else strategy.scope(), self._device:
            empty = tf.raw_ops.Empty(shape=[sum(counts), *manifest.shape], dtype=tf.uint8)
            self._examples = tf.Variable(empty, trainable=False, name="examples")
            del empty
            if on_host:
                _use_huge_pages(self._examples)
            self._labels = self._fill(strategy)

    def rows_spec(self, batch: int) -> tuple[tf.TensorSpec, ...]:
        return (tf.TensorSpec([None, batch], tf.int32),) * 2  # places in the resident array, and labels

    def examples(self, rows: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        with self._device:
            return tf.gather(self._examples, rows[0]), rows[1]

    def _reader(self, split: str, planned: Order, batch: int, first: int) -> tuple[Reader, Callable[[], None]]:
        places = (planned.indices + self._firsts[split]).reshape(-1, batch)
        labels = self._labels[places]
        return lambda step, count: (places[step : step + count], labels[step : step + count]), lambda: None

    def _fill(self, strategy: tf.distribute.Strategy) -> np.ndarray:
        """Read the examples block by block, in place (else they would take twice the memory), and return the labels (int32)."""
        examples = np.empty((records.BLOCK, *self.manifest.shape), np.uint8)
        labels = np.empty(sum(self.counts.values()), records.LABEL)
        first = 0
        for shard in self.manifest.shards:
            records.check_shard(self.folder, self.manifest, shard)
        for block in (block for split in records.SPLITS for block in self.blocks[split]):
            last = first + block.count
            records.read_block(block, examples[: block.count], labels[first:last])
            for resident in strategy.experimental_local_results(self._examples):
                resident.scatter_update(tf.IndexedSlices(examples[: block.count], tf.range(first, last)))
            first = last
        return labels.astype(np.int32)


def _use_huge_pages(variable: tf.Variable) -> None:
    """Ask the kernel to put a variable of the host, still empty, into huge pages: to find an example in ordinary ones costs the
    processor an address translation for every 4 kB, and gathering takes a quarter longer."""
    memory = np.asarray(memoryview(variable.value()))
    first = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    length = memory.ctypes.data + memory.nbytes - first
    if hasattr(mmap, "MADV_HUGEPAGE") and length > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
