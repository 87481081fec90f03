"""Classification: which of several classes an example is of."""

import keras
import tensorflow as tf

from data_prep.records import Manifest
from lottery.base.errors import InputError
from lottery.engine.tasks import Batch, Task
from lottery.experiment.recipe import Recipe
from lottery.networks.topology import last_activation

TOP = 5  # a right answer among the first so many
PROBABILITIES = ("softmax", "sigmoid", "hardsigmoid")
ROUNDING = 0.02  # of a sum of probabilities in bfloat16


class Classification(Task):
    """Cross-entropy of the logits, one for each class of the set, smoothed in training as the recipe says. Metrics: accuracy,
    and where there are more than five classes the share of answers among the first five."""

    answers = ("answer", "confidence")

    def __init__(self, recipe: Recipe, manifest: Manifest):
        super().__init__(recipe, manifest)
        self.outputs = len(manifest.classes)
        if manifest.fields or self.outputs < 2:
            raise InputError("task = classification is of images with classes, which these records do not have: set task")
        self.metrics = ("accuracy", "top5_accuracy") if self.outputs > TOP else ("accuracy",)

    def loss(self, batch: Batch, outputs: tf.Tensor) -> tf.Tensor:
        return cross_entropy(batch["label"], outputs, 0.0)

    def training_loss(self, batch: Batch, outputs: tf.Tensor) -> tf.Tensor:
        return cross_entropy(batch["label"], outputs, self.recipe.train.label_smoothing)

    def measures(self, batch: Batch, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """`answer` is the class of the largest logit, `confidence` its probability. Of equal logits the first ones count, so
        that a network that tells nothing apart is not right about everything."""
        labels = batch["label"]
        answer = tf.argmax(outputs, axis=1, output_type=tf.int32)
        first = tf.math.top_k(outputs, min(TOP, self.outputs)).indices
        return {
            "accuracy": tf.equal(answer, labels),
            "top5_accuracy": tf.reduce_any(tf.equal(first, labels[:, None]), axis=1),
            "answer": answer,
            "confidence": tf.exp(tf.reduce_max(outputs, axis=1) - tf.reduce_logsumexp(outputs, axis=1)),
        }


def check_logits(name: str, network: keras.Model, outputs: tf.Tensor) -> None:
    """Raise InputError where the user's own `network` gives probabilities, which its `outputs` ([n, classes]) then are."""
    activation = last_activation(network)
    sums = tf.reduce_sum(tf.cast(outputs, tf.float32), axis=1)
    if tf.reduce_min(outputs) >= 0 and tf.reduce_max(tf.abs(sums - 1)) < ROUNDING:
        activation = "softmax"
    if activation in PROBABILITIES:
        told = f"returns probabilities ({activation}), where logits are trained: leave that activation out"
        raise InputError(f"model.name: {name} {told}")


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
    """That of each example ([n]) with the share `smoothing` of its label spread over all classes."""
    if not smoothing:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    classes = logits.shape[-1]
    rest = smoothing / classes
    targets = tf.one_hot(labels, classes, 1 - smoothing + rest, rest, dtype=logits.dtype)
    return tf.nn.softmax_cross_entropy_with_logits(targets, logits)
