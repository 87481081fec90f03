"""Feeding as most programs do it: an Example an image, read, parsed and varied by tf.data on the host."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from data_prep import records
from lottery.recipe import Data

FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def write_examples(path: Path, folder: Path, manifest: records.Manifest) -> None:
    """The training split of a prepared set, one tf.train.Example an image."""
    images = np.empty((records.BLOCK, *manifest.shape), np.uint8)
    labels = np.empty(records.BLOCK, records.LABEL)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for block in records.blocks(folder, manifest, "train"):
            records.read_block(block, images[: block.count], labels[: block.count])
            for image, label in zip(images[: block.count], labels, strict=False):
                feature = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def one_by_one(path: Path, data: Data, batch: int, workers: int = 0, scaled: bool = False) -> tf.data.Dataset:
    """Batches of images, each parsed and varied (`data.crop`, `data.flip`) on its own, by so many at a time (0: by whoever
    asks, when he asks; tf.data.AUTOTUNE: as many as it finds best), as uint8, or `scaled` to float32."""
    shape = [data.size, data.size, data.channels]

    def parse(number: tf.Tensor, example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(example, FEATURES)
        image = tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), shape)
        seed = tf.stack([tf.constant(0, tf.int64), number])
        if data.crop:
            image = tf.image.resize_with_crop_or_pad(image, data.size + 2 * data.crop, data.size + 2 * data.crop)
            image = tf.image.stateless_random_crop(image, shape, seed)
        if data.flip:
            image = tf.image.stateless_random_flip_left_right(image, seed)
        return (tf.cast(image, tf.float32) / 127.5 - 1 if scaled else image), parsed["label"]

    examples = tf.data.TFRecordDataset(str(path)).enumerate()
    if workers == 0:
        return examples.map(parse).batch(batch, drop_remainder=True)
    ready = examples.map(parse, workers).batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    if workers != tf.data.AUTOTUNE:
        options.threading.private_threadpool_size = workers
    return ready.with_options(options)


def together(path: Path, data: Data, batch: int) -> tf.data.Dataset:
    """Batches of uint8 images as they are, parsed a batch at a time, several at a time, before they are asked for."""
    shape = [batch, data.size, data.size, data.channels]

    def parse(examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_example(examples, FEATURES)
        return tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), shape), parsed["label"]

    batches = tf.data.TFRecordDataset(str(path)).batch(batch, drop_remainder=True)
    return batches.map(parse, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
