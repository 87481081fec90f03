"""Training loops to be measured: ours, on noise, and what it is measured beside: a step as tutorials write it, Keras's stock
layers and its `fit`."""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config

from lottery.bench import noise, tfdata
from lottery.engine import devices, models, signature
from lottery.engine.feed import MemoryFeed
from lottery.engine.formats.stock import rebuild
from lottery.engine.loop import Trainer
from lottery.engine.models import policy
from lottery.engine.tasks import Batch, choice
from lottery.experiment.recipe import Model, Recipe, Train
from lottery.pruning import masks

Take = Callable[[int], None]  # takes the next so many steps


def on_noise(recipe: Recipe, names: Sequence[str], images: int, classes: int = noise.CLASSES) -> Callable[..., Trainer]:
    """A function that makes training loops of the recipe's network, all on the same made-up examples, resident on the
    devices of these `names`: one that knows of no mask, or `masked`, with a random half of each kernel pruned."""
    with tempfile.TemporaryDirectory() as place:
        manifest = noise.make_noise(Path(place), images, recipe.records(), classes)
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
    tfdata.write(path, recipe.records(), images)
    if feed == "together":
        batches = tfdata.together(path, recipe.data, recipe.train.batch)
    else:
        parse = partial(tfdata.image, recipe.data, scaled=feed == "scaled")
        batches = tfdata.one_by_one(path, parse, recipe.train.batch)
    step, source = plain_step(recipe), iter(batches.repeat())

    def take(count: int) -> None:
        for batch in itertools.islice(source, count):
            loss = step(batch)
        loss.numpy()

    return take


def plain_step(recipe: Recipe) -> Callable[[Batch], tf.Tensor]:
    """One compiled step, called from Python with the next batch: the task and the network of `recipe` under Keras's own
    optimizer. Images come as uint8 or as float32 in -1 .. 1. Returns the loss."""
    task = choice.make(recipe, noise.manifest(recipe.records()))
    with policy(recipe.train.precision):
        model = models.build(recipe.model, task.signature)
    optimizer, variables = _optimizer(recipe.train), model.trainable_variables
    if recipe.train.precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(variables)

    @tf.function(reduce_retracing=True)
    def step(batch: Batch) -> tf.Tensor:
        if "image" in batch and batch["image"].dtype == tf.uint8:
            batch = {**batch, "image": tfdata.scale(batch["image"])}
        with tf.GradientTape() as tape:
            outputs = tf.cast(model(task.inputs(batch), training=True), model.variable_dtype)
            loss = tf.reduce_mean(task.training_loss(batch, outputs))
            target = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(target, [one.value for one in variables]), variables, strict=True))
        return loss

    return step


def stock_network(model: Model, size: int, classes: int, precision: str) -> keras.Model:
    """Keras's own network where it has the one that `model` says, or else ours of stock layers.

    It has the variables of ours. Raises ValueError where Keras does not build it at that size.
    """
    with policy(precision):
        if model.name == "mobilenet_v2" and model.stem == "standard" and model.padding == "same":
            return keras.applications.MobileNetV2(
                (size, size, 3), model.alpha, weights=None, classes=classes, classifier_activation=None
            )
        return rebuild(models.build(model, signature.images(size, classes)))


def stock_fit(
    network: keras.Model, train: Train, images: int, xla: bool, callbacks: Sequence[keras.callbacks.Callback] = ()
) -> Callable[[], None]:
    """A function that fits `network` to so many images of noise once. They are tensors on the host, in -1 .. 1 already: of
    NumPy arrays `fit` would make tensors at every call, which takes a small network's time again."""
    rng = np.random.default_rng(0)
    with tf.device("CPU:0"):
        inputs = tf.constant(rng.uniform(-1, 1, (images, *network.input_shape[1:])).astype(np.float32))
        labels = tf.constant(rng.integers(0, network.output_shape[-1], images, np.int32))
    network.compile(
        _optimizer(train), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], jit_compile=xla
    )

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


def _optimizer(train: Train) -> keras.optimizers.Optimizer:
    if train.optimizer == "adam":
        return keras.optimizers.Adam(train.learning_rate)
    return keras.optimizers.SGD(train.learning_rate, train.momentum, train.nesterov)
