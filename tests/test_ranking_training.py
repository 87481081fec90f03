"""Texts through the trainer: they keep what images are promised. Memory or stream, padding, masks, replicas, precision."""

import numpy as np
import pytest
import tensorflow as tf
from texts import TINY, text_set
from tiny import CPUS, assert_close, same

from data_prep import records
from data_prep.records import Field, Manifest
from lottery.engine import derivatives, models, optimizers
from lottery.engine.decoding import Decoder
from lottery.engine.feed import MemoryFeed
from lottery.engine.loop import Trainer
from lottery.engine.stream import StreamFeed
from lottery.experiment.recipe import Data, Recipe, Train
from lottery.pruning import masks
from lottery.rundir import store

pytestmark = pytest.mark.usefixtures("tensorflow")

STEPS = 6  # an epoch
TRAIN = {"batch": 8, "epochs": 4, "warmup": "0", "optimizer": "adam", "learning_rate": 1e-3, "weight_decay": 0.0}
TEXTS = Data(source="docstrings")
SPLITS = ("train", "validation", "test")


def recipe(**train):
    return Recipe(task="ranking", data=TEXTS, model=TINY, train=Train(**{**TRAIN, **train}))


def streamed(folder, manifest, data, strategy):
    return StreamFeed(folder, manifest, data, ["CPU:0"] * strategy.num_replicas_in_sync)


def is_kernel(path, shape):
    return masks.in_scope(path, shape, "kernels", [])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    return folder, text_set(folder)


@pytest.fixture(scope="module")
def make(prepared):
    """A function that makes a trainer on the prepared set."""

    def trainer(devices=CPUS[:1], feed=MemoryFeed, maskable=is_kernel, **train):
        return Trainer(recipe(**train), devices, lambda strategy: feed(*prepared, TEXTS, strategy), maskable)

    return trainer


@pytest.fixture(scope="module")
def plain(make):
    return make(maskable=lambda path, shape: False)


@pytest.fixture(scope="module")
def begun(plain):
    return plain.begun(seed=0)


def trained(trainer, state, mask=None, steps=2 * STEPS):
    """The figures of so many steps, and the state after them."""
    trainer.load(state, mask)
    return trainer.advance(0, steps, order_seed=0), trainer.state(steps)


@pytest.fixture(scope="module")
def expected(plain, begun):
    return trained(plain, begun)


def halved(state, seed=0):
    rng = np.random.default_rng(seed)
    return {path: rng.random(array.shape) < 0.5 for path, array in masks.prunable(state, "kernels").items()}


def test_fields_of_every_dtype_are_decoded_as_they_were_packed():
    shapes = {"bytes": ("|u1", (5,)), "tokens": ("<u2", (2, 3)), "whole": ("<i4", ()), "real": ("<f4", (2,))}
    fields = {name: Field(*field) for name, field in shapes.items()}
    rng = np.random.default_rng(0)
    examples = rng.integers(0, 256, (7, sum(field.bytes for field in fields.values())), np.uint8)
    labels = np.arange(7, dtype=np.int32)

    decoder = Decoder(Manifest(examples.shape[1:], [], [], {}, fields=fields), TEXTS)
    found = tf.function(decoder.batch)(tf.constant(examples), tf.constant(labels))

    assert found.pop("label").numpy().tolist() == labels.tolist()
    for name, array in records.unpack(examples, fields).items():
        wanted = array if name == "real" else array.astype(np.int32)
        assert found[name].numpy().dtype == wanted.dtype
        assert found[name].numpy().tobytes() == wanted.tobytes()


def test_a_streamed_training_under_masks_that_keep_all_is_that_in_memory_without_masks_bit_for_bit(make, begun, expected):
    figures, state = trained(make(feed=streamed), begun)

    np.testing.assert_array_equal(figures, expected[0])
    assert same(state, expected[1])


@pytest.mark.parametrize(
    "train",
    [
        {"optimizer": "sgd", "learning_rate": 0.05, "weight_decay": 0.01, "clip_norm": 1.0},
        {"precision": "mixed_float16"},
    ],
    ids=str,
)
def test_half_of_a_network_learns_and_the_rest_is_exactly_zero(make, begun, monkeypatch, tmp_path, train):
    monkeypatch.setattr(optimizers, "LARGE", 50_000)  # so that XLA has some of the kernels
    trainer, mask = make(ema=0.9, **train), halved(begun)

    figures, state = trained(trainer, begun, mask)

    store.save_state(tmp_path / "state.h5", state)
    saved = store.load_state(tmp_path / "state.h5")
    assert {path.split("/")[0].split("_")[0] for path in mask} == {"embedding", "layer"}
    for path, kept in mask.items():
        slots = [array for name, array in saved.optimizer.items() if name.endswith(path)]
        assert len(slots) == (2 if trainer.train.optimizer == "sgd" else 3)
        for array in (saved.weights[path], *slots):
            assert array.dtype == np.float32
            assert not array[~kept].any()
            assert not np.signbit(array[~kept]).any()
        assert (saved.weights[path] != begun.weights[path])[kept].mean() > 0.1
    assert figures[-STEPS:, 0].mean() < figures[:STEPS, 0].mean()


def test_replicas_train_the_same_network_but_for_rounding(make, begun, expected):
    figures, state = trained(make(CPUS[:2]), begun)

    np.testing.assert_allclose(figures, expected[0], rtol=1e-4)
    assert_close(state, expected[1], 1e-4)


def test_every_example_is_answered_and_measured_by_its_rouge(plain, begun, prepared):
    plain.load(begun)
    for split in SPLITS:
        answers, fields = plain.answers(split), records.unpack(records.read_split(*prepared, split)[0], prepared[1].fields)
        rouge = fields["rouge"][:, 1:]

        np.testing.assert_allclose(answers.measures["first_rouge1"], rouge[:, 0, 0])
        np.testing.assert_allclose(answers.measures["random_rouge1"], rouge[:, :, 0].mean(axis=1), rtol=1e-6)
        np.testing.assert_array_equal(answers.label, rouge.mean(axis=2).argmax(axis=1))
        assert answers.predictions() is None
        assert answers.task.metrics[0] == "rouge1"


@pytest.fixture(scope="module")
def exact(prepared):
    return derivatives.Derivatives(recipe(precision="float64", batch=16), prepared[1], CPUS[:1])


def test_gradients_and_hessian_products_are_those_of_finite_differences(exact, begun, prepared):
    with models.policy("float64"):
        state = models.initial_weights(TINY, exact.task.signature, 0)
    rng = np.random.default_rng(0)
    shaken = {path: array + rng.normal(0, 0.05, array.shape) for path, array in state.weights.items()}
    direction = {path: rng.normal(size=array.shape) for path, array in shaken.items()}
    examples = [one[:24] for one in records.read_split(*prepared, "train")]  # two batches, of which no gradient is dense

    def at(step, find):
        moved = {path: array + step * direction[path] for path, array in shaken.items()}
        return find(store.State(0, moved, {}, {}), *examples)

    product = exact.gradients(store.State(0, shaken, {}, {}), *examples, vector=direction)
    ends = [at(step, exact.gradients) for step in (1e-6, -1e-6)]
    largest = max(np.abs(array).max() for array in product.values())
    for path, array in product.items():
        np.testing.assert_allclose((ends[0][path] - ends[1][path]) / 2e-6, array, rtol=1e-4, atol=1e-7 * largest)
