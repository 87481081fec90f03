"""From what records hold of examples to what a task is given of them: images varied and scaled, or the fields of others."""

import itertools

import numpy as np
import tensorflow as tf

from data_prep.records import Manifest
from lottery.engine import order
from lottery.engine.augment import augment, cut_out, normalise
from lottery.engine.order import Draws
from lottery.engine.tasks import Batch
from lottery.experiment.recipe import Data


class Decoder:
    """Makes the batches of a task from the bytes of a prepared set, within the compiled step. Images are varied by draws."""

    def __init__(self, manifest: Manifest, data: Data):
        self.fields, self.data = manifest.fields, data

    def draws(self, count: int, seed: int, epoch: int) -> Draws:
        """How each of `count` images is varied in one epoch; examples of other kinds are not."""
        return {} if self.fields else order.draws(self.data, count, seed, epoch)

    def batch(self, examples: tf.Tensor, labels: tf.Tensor, draws: Batch | None = None) -> Batch:
        """Of `examples` (uint8, [n, *shape]) and their `labels` (int32, [n]), varied if there are `draws`."""
        if self.fields:
            return {**self._fields(examples), "label": labels}
        if draws is None:
            return {"image": normalise(examples, self.data), "label": labels}
        images = normalise(augment(examples, draws, self.data), self.data)
        if self.data.cutout:
            images = cut_out(images, draws["hole"], self.data.cutout)
        return {"image": images, "label": labels}

    def _fields(self, examples: tf.Tensor) -> Batch:
        """Each field in its shape; whole numbers as int32."""
        ends = list(itertools.accumulate(field.bytes for field in self.fields.values()))
        batch = {}
        for (name, field), first, last in zip(self.fields.items(), [0, *ends[:-1]], ends, strict=True):
            dtype = np.dtype(field.dtype)
            parts = tf.reshape(examples[:, first:last], [-1, *field.shape, *([dtype.itemsize] if dtype.itemsize > 1 else [])])
            values = tf.bitcast(parts, dtype.name)
            batch[name] = values if dtype.kind == "f" else tf.cast(values, tf.int32)
        return batch
