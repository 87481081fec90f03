"""Examples of noise as tutorials store and feed them: a tf.train.Example each, parsed by tf.data. Our feeds are measured
beside it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from data_prep import records
from data_prep.prepare import AnySettings, TextSettings
from data_prep.records import Field
from lottery.bench import noise
from lottery.engine.tasks import Batch
from lottery.experiment.recipe import Data, Recipe

LABEL = tf.io.FixedLenFeature([], tf.int64)
IMAGE = {"image": tf.io.FixedLenFeature([], tf.string), "label": LABEL}

Parse = Callable[[tf.Tensor, tf.Tensor], Batch]  # of the number of an example, and its bytes


def write(path: Path, settings: AnySettings, count: int) -> None:
    """So many examples of noise: an image as its bytes, of texts each field as a list of numbers."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example, label in noise.examples(settings, count):
            if isinstance(settings, TextSettings):
                fields = records.unpack(example[None], settings.fields)
                features = {name: _numbers(values) for name, values in fields.items()}
            else:
                features = {"image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[example.tobytes()]))}
            features["label"] = _numbers(np.array(label))
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def _numbers(values: np.ndarray) -> tf.train.Feature:
    if values.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values.ravel()))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values.ravel()))


def parser(recipe: Recipe) -> Parse:
    """What parses an example of the recipe's kind, an image being varied as the recipe says."""
    settings = recipe.records()
    return partial(text, settings.fields) if isinstance(settings, TextSettings) else partial(image, recipe.data)


def image(data: Data, number: tf.Tensor, example: tf.Tensor, scaled: bool = False) -> Batch:
    """An image, varied (`data.crop`, `data.flip`), as uint8, or `scaled` to float32, and its label."""
    shape = [data.size, data.size, data.channels]
    parsed = tf.io.parse_single_example(example, IMAGE)
    pixels = tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), shape)
    seed = tf.stack([tf.constant(0, tf.int64), number])
    if data.crop:
        pixels = tf.image.resize_with_crop_or_pad(pixels, data.size + 2 * data.crop, data.size + 2 * data.crop)
        pixels = tf.image.stateless_random_crop(pixels, shape, seed)
    if data.flip:
        pixels = tf.image.stateless_random_flip_left_right(pixels, seed)
    return {"image": scale(pixels) if scaled else pixels, "label": parsed["label"]}


def text(fields: dict[str, Field], number: tf.Tensor, example: tf.Tensor) -> Batch:
    """Each of `fields`, whole numbers as int32, and the label."""
    features = {
        name: tf.io.FixedLenFeature(field.shape, tf.float32 if field.dtype == "<f4" else tf.int64)
        for name, field in fields.items()
    }
    parsed = tf.io.parse_single_example(example, {**features, "label": LABEL})
    return {name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value for name, value in parsed.items()}


def one_by_one(path: Path, parse: Parse, batch: int, workers: int = 0) -> tf.data.Dataset:
    """Batches of examples, each parsed on its own, by so many `workers` at a time (0: when they are asked for;
    tf.data.AUTOTUNE: as many as it finds best)."""
    numbered = tf.data.TFRecordDataset(str(path)).enumerate()
    if workers == 0:
        return numbered.map(parse).batch(batch, drop_remainder=True)
    batches = numbered.map(parse, workers).batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    if workers != tf.data.AUTOTUNE:
        options.threading.private_threadpool_size = workers
    return batches.with_options(options)


def together(path: Path, data: Data, batch: int) -> tf.data.Dataset:
    """Batches of uint8 images as they are, parsed a batch at a time, several at a time, before they are asked for."""
    shape = [batch, data.size, data.size, data.channels]

    def parse(serialised: tf.Tensor) -> Batch:
        parsed = tf.io.parse_example(serialised, IMAGE)
        return {"image": tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), shape), "label": parsed["label"]}

    batches = tf.data.TFRecordDataset(str(path)).batch(batch, drop_remainder=True)
    return batches.map(parse, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def scale(images: tf.Tensor) -> tf.Tensor:
    """From uint8 to -1 .. 1."""
    return tf.cast(images, tf.float32) / 127.5 - 1
