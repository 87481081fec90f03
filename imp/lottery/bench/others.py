"""What ours is measured beside: images fed by tf.data, a step as tutorials write it, Keras's stock layers and its `fit`."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config

from lottery.bench import noise
from lottery.engine import models
from lottery.engine.models.stock import rebuild
from lottery.engine.precision import policy
from lottery.experiment.recipe import Data, Model, Recipe, Train

FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def write_examples(path: Path, images: int, size: int) -> None:
    """So many images of noise, one tf.train.Example each."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in noise.examples(images, size):
            feature = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def one_by_one(path: Path, data: Data, batch: int, workers: int = 0, scaled: bool = False) -> tf.data.Dataset:
    """Batches of images, each parsed and varied (`data.crop`, `data.flip`) on its own, by so many at a time (0: when they are
    asked for; tf.data.AUTOTUNE: as many as it finds best), as uint8, or `scaled` to float32."""
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
    batches = examples.map(parse, workers).batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    if workers != tf.data.AUTOTUNE:
        options.threading.private_threadpool_size = workers
    return batches.with_options(options)


def together(path: Path, data: Data, batch: int) -> tf.data.Dataset:
    """Batches of uint8 images as they are, parsed a batch at a time, several at a time, before they are asked for."""
    shape = [batch, data.size, data.size, data.channels]

    def parse(examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_example(examples, FEATURES)
        return tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), shape), parsed["label"]

    batches = tf.data.TFRecordDataset(str(path)).batch(batch, drop_remainder=True)
    return batches.map(parse, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def stepping(recipe: Recipe, feed: str, images: int, path: Path) -> Callable[[int], None]:
    """A function that takes the next so many steps of a loop in Python, to which the host brings each batch: `scaled`, as
    `bytes`, or parsed `together`."""
    write_examples(path, images, recipe.data.size)
    if feed == "together":
        batches = together(path, recipe.data, recipe.train.batch)
    else:
        batches = one_by_one(path, recipe.data, recipe.train.batch, scaled=feed == "scaled")
    step, source = PlainStep(recipe), iter(batches.repeat())

    def take(count: int) -> None:
        for batch in itertools.islice(source, count):
            loss = step(*batch)
        loss.numpy()

    return take


class PlainStep:
    """One compiled step, called from Python with the next batch: the network of `recipe` under Keras's own SGD. Images come as
    uint8 or as float32 in -1 .. 1."""

    def __init__(self, recipe: Recipe):
        train = recipe.train
        with policy(train.precision):
            self.model = models.build(recipe.model, recipe.data.size, noise.CLASSES, recipe.data.channels)
        self.optimizer = _sgd(train)
        if train.precision == "mixed_float16":
            self.optimizer = keras.optimizers.LossScaleOptimizer(self.optimizer)
        self.optimizer.build(self.model.trainable_variables)

    @tf.function(reduce_retracing=True)
    def __call__(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if images.dtype == tf.uint8:
            images = tf.cast(images, tf.float32) / 127.5 - 1
        with tf.GradientTape() as tape:
            loss = _loss()(labels, self.model(images, training=True))
            target = self.optimizer.scale_loss(loss)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(target, [one.value for one in variables]), variables, strict=True))
        return loss

    def epoch(self, batches: tf.data.Dataset) -> float:
        """Take a step on each of the batches. Returns the seconds that it waited for them."""
        waited, asked = 0.0, time.perf_counter()
        for batch in batches:
            waited += time.perf_counter() - asked
            self(*batch).numpy()
            asked = time.perf_counter()
        return waited + time.perf_counter() - asked


def stock_network(model: Model, size: int, classes: int, precision: str) -> keras.Model:
    """Keras's own network where it has the one that `model` says, or else ours of stock layers.

    It has the variables of ours. Raises ValueError where Keras does not build it at that size.
    """
    with policy(precision):
        if model.name == "mobilenet_v2" and model.stem == "standard":
            return keras.applications.MobileNetV2(
                (size, size, 3), model.alpha, weights=None, classes=classes, classifier_activation=None
            )
        return rebuild(models.build(model, size, classes))


def stock_fit(
    network: keras.Model,
    train: Train,
    images: int,
    size: int,
    classes: int,
    xla: bool,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> Callable[[], object]:
    """A function that fits `network` to `images` images once. They are tensors on the host, in -1 .. 1 already: of NumPy
    arrays `fit` would make tensors at every call, which takes a small network's time again."""
    rng = np.random.default_rng(0)
    with tf.device("CPU:0"):
        inputs = tf.constant(rng.uniform(-1, 1, (images, size, size, 3)).astype(np.float32))
        labels = tf.constant(rng.integers(0, classes, images, np.int32))
    network.compile(_sgd(train), _loss(), metrics=["accuracy"], jit_compile=xla)

    def fit() -> None:
        with _any_order():
            network.fit(inputs, labels, train.batch, epochs=1, verbose=0, callbacks=list(callbacks))

    return fit


def mask_after_batch(network: keras.Model) -> keras.callbacks.Callback:
    """A callback that multiplies every kernel by a random mask of its half once a batch is over, by way of NumPy."""
    rng = np.random.default_rng(0)
    kernels = [weight for weight in network.trainable_weights if weight.path.endswith("kernel")]
    kept = {weight.path: rng.random(weight.shape) < 0.5 for weight in kernels}

    def mask(batch: int, logs: object) -> None:
        for layer in network.layers:
            if any(weight.path in kept for weight in layer.weights):
                values = zip(layer.weights, layer.get_weights(), strict=True)
                layer.set_weights([value * kept[weight.path] if weight.path in kept else value for weight, value in values])

    return keras.callbacks.LambdaCallback(on_train_batch_end=mask)


@contextlib.contextmanager
def _any_order() -> Iterator[None]:
    """Without the determinism that our loop asks of TensorFlow: few users of Keras do, and `fit` is slower with it."""
    config.disable_op_determinism()
    try:
        yield
    finally:
        tf.config.experimental.enable_op_determinism()


def _sgd(train: Train) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(train.learning_rate, train.momentum, train.nesterov)


def _loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
