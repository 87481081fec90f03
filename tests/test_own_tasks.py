"""Tasks of a user's own: they are trained like ours, and a mistake in one is a line before anything is trained."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import lenet, tiny_set
from texts import text_set
from tiny import CPUS

from lottery.base.errors import InputError
from lottery.engine.feed import MemoryFeed
from lottery.engine.loop import Trainer
from lottery.engine.signature import Signature
from lottery.engine.tasks import Task
from lottery.experiment import tasks
from lottery.experiment.recipe import Data, Model, Recipe, Train

pytestmark = pytest.mark.usefixtures("tensorflow")

IMAGES = Data(size=8, crop=0)


class Value(Task):
    metrics = ("within_half", "within_one")
    outputs = 1

    def loss(self, batch, outputs):
        return self.distance(batch, outputs) ** 2

    def measures(self, batch, outputs):
        distance = self.distance(batch, outputs)
        return {"within_half": distance < 0.5, "within_one": distance < 1.0}

    def distance(self, batch, outputs):
        return tf.abs(outputs[:, 0] - tf.cast(batch["label"], outputs.dtype))


class IsLong(Task):
    """Whether a document has more than half of its places filled, from its tokens alone."""

    metrics = ("right",)
    outputs = 1

    @property
    def signature(self):
        return Signature(self.manifest.fields["document"].shape, self.outputs, "int32")

    def inputs(self, batch):
        return batch["document"]

    def loss(self, batch, outputs):
        return tf.nn.sigmoid_cross_entropy_with_logits(self.wanted(batch, outputs), outputs[:, 0])

    def measures(self, batch, outputs):
        return {"right": tf.equal(outputs[:, 0] > 0, self.wanted(batch, outputs) > 0)}

    def wanted(self, batch, outputs):
        return tf.cast(tf.reduce_sum(tf.cast(batch["document"] != 1, tf.int32), axis=1) > 6, outputs.dtype)


def bag_of_tokens(shape, outputs):
    """A network of a user's own, which reads whole numbers."""
    tokens = keras.Input(shape, dtype="int32", name="tokens")
    x = keras.layers.GlobalAveragePooling1D(name="mean")(keras.layers.Embedding(50, 8, name="embedding")(tokens))
    return keras.Model(tokens, keras.layers.Dense(outputs, name="out")(x))


class NoClass:
    metrics = ("near",)


class NoMetrics(Value):
    metrics = ()


class NoMethods(Task):
    metrics = ("near",)
    outputs = 1


class Mean(Value):
    def loss(self, batch, outputs):
        return tf.reduce_mean(super().loss(batch, outputs))


class Column(Value):
    def training_loss(self, batch, outputs):
        return outputs**2


class Wide(Value):
    def loss(self, batch, outputs):
        return tf.cast(super().loss(batch, outputs), tf.float64)


class LacksOne(Value):
    metrics = ("within_half", "within_two")


class Points(Value):
    def measures(self, batch, outputs):
        return {name: 100 * tf.cast(one, tf.float32) for name, one in super().measures(batch, outputs).items()}


class Mistaken(Value):
    def loss(self, batch, outputs):
        return batch["target"]


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """A function that makes a trainer of a task of this file, on images."""
    folder = tmp_path_factory.mktemp("images")
    manifest = tiny_set(folder)

    def trainer(task, **train):
        recipe = Recipe(task=f"{__name__}:{task}", data=IMAGES, model=lenet(), train=Train(batch=8, epochs=4, **train))
        return Trainer(recipe, CPUS[:1], lambda strategy: MemoryFeed(folder, manifest, IMAGES, strategy))

    return trainer


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "float64"])
def test_one_is_trained_and_measured_in_every_precision(make, precision):
    trainer = make("Value", precision=precision, learning_rate=1e-3)
    trainer.load(trainer.drawn(0))

    losses = trainer.advance(0, 24, order_seed=0)[:, 0]

    assert losses[-6:].mean() < losses[:6].mean()
    found = trainer.evaluate("test").metrics
    assert list(found) == ["within_half", "within_one"]
    assert 0 <= found["within_half"] <= found["within_one"] <= 1
    assert trainer.answers("test").predictions() is None


def test_one_of_texts_is_trained_with_a_network_that_reads_them(tmp_path):
    manifest, data = text_set(tmp_path), Data(source="docstrings")
    train = Train(batch=8, epochs=10, optimizer="adam", learning_rate=0.03, warmup="0", weight_decay=0.0)
    recipe = Recipe(task=f"{__name__}:IsLong", data=data, model=Model(name=f"{__name__}:bag_of_tokens"), train=train)
    kernel = "embedding/embeddings"
    trainer = Trainer(
        recipe, CPUS[:1], lambda strategy: MemoryFeed(tmp_path, manifest, data, strategy), lambda path, _: path == kernel
    )
    kept = np.random.default_rng(0).random((50, 8)) < 0.5
    trainer.load(trainer.drawn(0), {kernel: kept})

    trainer.advance(0, 60, order_seed=0)

    assert trainer.evaluate("validation").metrics["right"] > 0.8
    assert not trainer.state(60).weights[kernel][~kept].any()


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("Nowhere", "has no function Nowhere"),
        ("NoClass", "is not a class made from lottery.engine.tasks.Task"),
        ("NoMetrics", "needs the names of its metrics"),
        ("NoMethods", "fails: TypeError: Can't instantiate abstract class"),
        ("Mean", r"Mean\.loss has the shape \(\) for 48 examples: let it be one number for each, \[48\]"),
        ("Column", r"Column\.training_loss has the shape \(48, 1\)"),
        ("Wide", r"Wide\.loss returns float64, not float32"),
        ("LacksOne", r"measures does not return {'within_two': \.\.\.}"),
        ("Points", r"measures\['within_half'\] is 0 \.\. 100: let it be 0 \.\. 1"),
        ("Mistaken", "fails: KeyError: 'target'"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_trained(make, task, words):
    with pytest.raises(InputError, match=words) as caught:
        make(task)

    assert str(caught.value).startswith("task: ")
    assert "\n" not in str(caught.value)


def test_the_deciding_metric_is_asked_of_the_class():
    assert tasks.deciding(f"{__name__}:Value") == "within_half"
    with pytest.raises(InputError, match="needs the names of its metrics"):
        tasks.deciding(f"{__name__}:NoMetrics")
