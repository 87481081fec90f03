"""What our feeds and our loop are compared with: noise stored as a tf.train.Example each, parsed by tf.data, and a step called
from Python."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import keras
import loops
import noise
import numpy as np
import tensorflow as tf

from data_prep import records
from data_prep.prepare import AnySettings, TextSettings
from data_prep.records import Field
from lottery.engine import models
from lottery.engine.models import policy
from lottery.engine.tasks import Batch, choice
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


def scale(images: tf.Tensor) -> tf.Tensor:
    """From uint8 to -1 .. 1."""
    return tf.cast(images, tf.float32) / 127.5 - 1


def plain_step(recipe: Recipe) -> Callable[[Batch], tf.Tensor]:
    """One compiled step, called from Python with the next batch: the task and the network of `recipe` under Keras's own
    optimizer. Images come as uint8 or as float32 in -1 .. 1. Returns the loss."""
    task = choice.make(recipe, noise.manifest(recipe.records()))
    with policy(recipe.train.precision):
        model = models.build(recipe.model, task.signature)
    optimizer, variables = loops.optimizer(recipe.train), model.trainable_variables
    if recipe.train.precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(variables)

    @tf.function(reduce_retracing=True)
    def step(batch: Batch) -> tf.Tensor:
        if "image" in batch and batch["image"].dtype == tf.uint8:
            batch = {**batch, "image": scale(batch["image"])}
        with tf.GradientTape() as tape:
            outputs = tf.cast(model(task.inputs(batch), training=True), model.variable_dtype)
            loss = tf.reduce_mean(task.training_loss(batch, outputs))
            target = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(target, [one.value for one in variables]), variables, strict=True))
        return loss

    return step
