"""Training loops to be measured: ours, on noise, and what it is measured beside: images fed by tf.data, a step as tutorials
write it, Keras's stock layers and its `fit`."""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config

from lottery.bench.noise import CLASSES, examples, make_noise
from lottery.engine import devices, models
from lottery.engine.feed import MemoryFeed
from lottery.engine.formats import rebuild
from lottery.engine.loop import Trainer
from lottery.engine.models import policy
from lottery.experiment.recipe import Data, Model, Recipe, Train
from lottery.pruning import masks

FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

Take = Callable[[int], None]  # takes the next so many steps


def on_noise(recipe: Recipe, names: Sequence[str], images: int, classes: int = CLASSES) -> Callable[..., Trainer]:
    """A function that makes training loops of the recipe's network, all on the same made-up images, which are resident on the
    devices of these `names`: one that knows of no mask, or `masked`, with a random half of each kernel pruned."""
    with tempfile.TemporaryDirectory() as place:
        manifest = make_noise(Path(place), images, recipe.data.size, classes, channels=recipe.data.channels)
        feed = MemoryFeed(Path(place), manifest, recipe.data, tf.distribute.get_strategy(), on_host=devices.on_cpu(names))

    def make(masked: bool = False) -> Trainer:
        if not masked:
            return Trainer(recipe, names, lambda strategy: feed)
        trainer = Trainer(recipe, names, lambda strategy: feed, partial(masks.in_scope, scope="kernels"))
        rng = np.random.default_rng(0)
        trainer.load(trainer.state(0), {path: rng.random(kept.shape) < 0.5 for path, kept in trainer.masks.items()})
        return trainer

    return make


def stepping(trainer: Trainer) -> Take:
    """Takes the next so many steps, within one epoch where they fit into one."""
    position = 0

    def take(count: int) -> None:
        nonlocal position
        left = trainer.steps_per_epoch - position % trainer.steps_per_epoch
        position += left if left < count <= trainer.steps_per_epoch else 0
        trainer.advance(position, position + count, order_seed=0)
        position += count

    return take


def plain_stepping(recipe: Recipe, feed: str, images: int, path: Path) -> Take:
    """Takes the next so many steps of a loop in Python, to which the host brings each batch: `scaled`, as `bytes`, or parsed
    `together`."""
    write_examples(path, images, recipe.data.size)
    if feed == "together":
        batches = together(path, recipe.data, recipe.train.batch)
    else:
        batches = one_by_one(path, recipe.data, recipe.train.batch, scaled=feed == "scaled")
    step, source = plain_step(recipe), iter(batches.repeat())

    def take(count: int) -> None:
        for batch in itertools.islice(source, count):
            loss = step(*batch)
        loss.numpy()

    return take


def write_examples(path: Path, images: int, size: int) -> None:
    """So many images of noise, one tf.train.Example each."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in examples(images, size):
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
        return (_scaled(image) if scaled else image), parsed["label"]

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

    def parse(serialised: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_example(serialised, FEATURES)
        return tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), shape), parsed["label"]

    batches = tf.data.TFRecordDataset(str(path)).batch(batch, drop_remainder=True)
    return batches.map(parse, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def plain_step(recipe: Recipe) -> Callable[..., tf.Tensor]:
    """One compiled step, called from Python with the next batch: the network of `recipe` under Keras's own SGD. Images come as
    uint8 or as float32 in -1 .. 1. Returns the loss."""
    with policy(recipe.train.precision):
        model = models.build(recipe.model, recipe.data.size, CLASSES, recipe.data.channels)
    optimizer, variables = _sgd(recipe.train), model.trainable_variables
    if recipe.train.precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(variables)

    @tf.function(reduce_retracing=True)
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if images.dtype == tf.uint8:
            images = _scaled(images)
        with tf.GradientTape() as tape:
            loss = _loss()(labels, model(images, training=True))
            target = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(target, [one.value for one in variables]), variables, strict=True))
        return loss

    return step


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
    network: keras.Model, train: Train, images: int, xla: bool, callbacks: Sequence[keras.callbacks.Callback] = ()
) -> Callable[[], None]:
    """A function that fits `network` to so many images of noise once. They are tensors on the host, in -1 .. 1 already: of
    NumPy arrays `fit` would make tensors at every call, which takes a small network's time again."""
    rng = np.random.default_rng(0)
    with tf.device("CPU:0"):
        inputs = tf.constant(rng.uniform(-1, 1, (images, *network.input_shape[1:])).astype(np.float32))
        labels = tf.constant(rng.integers(0, network.output_shape[-1], images, np.int32))
    network.compile(_sgd(train), _loss(), metrics=["accuracy"], jit_compile=xla)

    def fit() -> None:
        config.disable_op_determinism()  # which our loop asks for; few users of Keras do, and `fit` is slower with it
        try:
            network.fit(inputs, labels, train.batch, epochs=1, verbose=0, callbacks=list(callbacks))
        finally:
            tf.config.experimental.enable_op_determinism()

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


def _scaled(images: tf.Tensor) -> tf.Tensor:
    return tf.cast(images, tf.float32) / 127.5 - 1


def _sgd(train: Train) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(train.learning_rate, train.momentum, train.nesterov)


def _loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
