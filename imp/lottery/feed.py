"""Feeding: the whole prepared set held resident as uint8, gathered by index and augmented inside the compiled step.

The host draws, per epoch, which image stands where and how it is shifted, as functions of (seed, epoch, index).
"""

import dataclasses
from pathlib import Path

import numpy as np
import tensorflow as tf

from data_prep import records
from lottery.recipe import Data

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Epoch:
    """The batches of one epoch: `order` (int32, [steps, batch]) indexes training images; `shifts` (int32, [steps, batch, 3])
    says for each where its crop starts (rows, columns) and whether it is mirrored (0 or 1)."""

    order: np.ndarray
    shifts: np.ndarray


class Feed:
    """A prepared set in memory. Create inside a strategy's scope: every device then holds a copy.

    All splits lie in one array, so that one compiled function reads them all; `spans[split]` is (first, count).
    """

    def __init__(self, folder: Path, manifest: records.Manifest, data: Data):
        parts = [records.read_split(folder, manifest, split) for split in SPLITS]
        self.data, self.size, self.classes = data, manifest.shape[0], len(manifest.classes)
        counts = [len(labels) for _, labels in parts]
        self.spans = dict(zip(SPLITS, zip(np.cumsum([0, *counts[:-1]]).tolist(), counts, strict=True), strict=True))
        self.images = tf.Variable(np.concatenate([images for images, _ in parts]), trainable=False, name="images")
        self.labels = tf.Variable(np.concatenate([labels for _, labels in parts]), trainable=False, name="labels")

    def epoch(self, seed: int, epoch: int, batch: int) -> Epoch:
        """The plan of one epoch (counted from 0); images that do not fill a last batch sit this epoch out."""
        count = self.spans["train"][1]
        steps = count // batch
        order = np.random.default_rng([seed, epoch, 0]).permutation(count)[: steps * batch]
        rng = np.random.default_rng([seed, epoch, 1])
        corners = rng.integers(0, 2 * self.data.crop + 1, (count, 2))
        mirrored = rng.integers(0, 2, (count, 1)) * self.data.flip
        shifts = np.concatenate([corners, mirrored], axis=1)[order]
        return Epoch(order.reshape(steps, batch).astype(np.int32), shifts.reshape(steps, batch, 3).astype(np.int32))

    def padded(self, split: str, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices (int32, [steps, batch]) of a whole split, and weights (float32) that are 0 where a place is padding."""
        first, count = self.spans[split]
        places = np.arange(-(-count // batch) * batch)
        order = (first + np.minimum(places, count - 1)).astype(np.int32)
        return order.reshape(-1, batch), (places < count).astype(np.float32).reshape(-1, batch)

    def gather(self, order: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Images (uint8, [n, height, width, 3]) and labels (int32, [n]) at `order` (int32, [n])."""
        return tf.gather(self.images, order), tf.gather(self.labels, order)

    def augment(self, images: tf.Tensor, shifts: tf.Tensor) -> tf.Tensor:
        """Pad with zeros, crop and mirror each of `images` (uint8, [n, height, width, 3]) as `shifts` (int32, [n, 3]) says."""
        pad = self.data.crop
        if pad:
            reach = tf.range(self.size)
            images = tf.pad(images, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
            images = tf.gather(images, shifts[:, :1] + reach, axis=1, batch_dims=1)
            images = tf.gather(images, shifts[:, 1:2] + reach, axis=2, batch_dims=1)
        if self.data.flip:
            images = tf.where(tf.cast(shifts[:, 2], tf.bool)[:, None, None, None], images[:, :, ::-1], images)
        return images


def normalise(images: tf.Tensor) -> tf.Tensor:
    """uint8 0 .. 255 to float32 -1 .. 1, as MobileNetV2 expects."""
    return tf.cast(images, tf.float32) / 127.5 - 1.0
