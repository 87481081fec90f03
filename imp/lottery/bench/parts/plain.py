"""A training step as tutorials write it: one compiled step, called from Python with the next batch."""

import keras
import tensorflow as tf

from lottery.engine import models, precision
from lottery.recipe import Recipe


class PlainStep:
    """The network of `recipe` under Keras's own SGD. Images come as uint8 or as float32 in -1 .. 1."""

    def __init__(self, recipe: Recipe, classes: int):
        train = recipe.train
        with precision.policy(train.precision):
            self.model = models.build(recipe.model, recipe.data.size, classes, recipe.data.channels)
        optimizer: keras.optimizers.Optimizer = keras.optimizers.SGD(train.learning_rate, train.momentum, train.nesterov)
        if train.precision == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(self.model.trainable_variables)
        self.optimizer = optimizer
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(reduce_retracing=True)
    def __call__(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if images.dtype == tf.uint8:
            images = tf.cast(images, tf.float32) / 127.5 - 1
        with tf.GradientTape() as tape:
            loss = self.loss(labels, self.model(images, training=True))
            target = self.optimizer.scale_loss(loss)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(target, [one.value for one in variables]), variables, strict=True))
        return loss
