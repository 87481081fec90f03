"""The compiled loop: exact zeros under every optimizer, the same bits however it is driven, one device or two."""

import dataclasses
import re
from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf
from tiny import CPUS, KERNELS, STEPS, advance, half_masks, initial, same

from data_prep import records
from lottery.base.errors import InputError
from lottery.engine import optimizers, order
from lottery.engine.augment import augment, cut_out, normalise
from lottery.engine.feed import MemoryFeed
from lottery.engine.loop import Diverged
from lottery.engine.stream import StreamFeed
from lottery.experiment.recipe import Data, Model
from lottery.rundir import store

pytestmark = pytest.mark.usefixtures("tensorflow")


def on_each_device(folder, manifest, data, strategy):
    return MemoryFeed(folder, manifest, data, strategy, on_host=False)


def streamed(folder, manifest, data, strategy):
    return StreamFeed(folder, manifest, data, ["CPU:0"] * strategy.num_replicas_in_sync)


ADAMW = {"optimizer": "adam", "learning_rate": 0.01, "decay": "decoupled", "weight_decay": 0.1}


@pytest.mark.parametrize(
    "train",
    [
        {"momentum": 0.0, "nesterov": False},
        {"weight_decay": 0.1, "label_smoothing": 0.1},
        {"ema": 0.9, "clip_norm": 0.1},
        {**ADAMW, "ema": 0.9},
        {"ema": 0.9, "precision": "mixed_float16"},
        {**ADAMW, "ema": 0.9, "precision": "mixed_bfloat16"},
    ],
    ids=str,
)
def test_pruned_weights_and_their_optimizer_state_are_exactly_zero(make_trainer, monkeypatch, train):
    monkeypatch.setattr(optimizers, "LARGE", 50_000)  # so that XLA has one of the kernels
    trainer = make_trainer(**train)
    state = initial()
    rng = np.random.default_rng(1)
    state.optimizer = {
        name: rng.random(array.shape).astype(array.dtype) if array.ndim else array
        for name, array in trainer.state(0).optimizer.items()
    }
    mask = half_masks(state)

    trainer.load(state, mask)
    advance(trainer, 0, 2 * STEPS)
    found = trainer.state(2 * STEPS)

    for path, kept in mask.items():
        states = [array for name, array in found.optimizer.items() if name.endswith(path)]
        for array in (found.weights[path], *states):
            assert not array[~kept].any()
            assert not np.signbit(array[~kept]).any()
        assert (found.weights[path][kept] != state.weights[path][kept]).mean() > 0.5
    assert len(found.optimizer) > 1 or not train.get("momentum", 1)


def test_an_all_ones_mask_changes_no_bit(make_trainer):
    masked, plain = make_trainer(), make_trainer(maskable=())
    ones = {path: np.ones_like(initial().weights[path], bool) for path in KERNELS}
    masked.load(initial(), ones)
    plain.load(initial())

    for trainer in (masked, plain):
        trainer.advance(0, STEPS, order_seed=0)

    assert same(masked.state(STEPS), plain.state(STEPS))


@pytest.mark.parametrize("parts", [[2, STEPS, 2 * STEPS, 2 * STEPS + 1], range(2, 2 * STEPS + 2)], ids=["epochs", "steps"])
def test_steps_are_the_same_however_they_are_divided_into_calls_and_across_the_ends_of_epochs(make_trainer, parts):
    trainer = make_trainer()
    trainer.load(initial())
    whole = trainer.advance(2, 2 * STEPS + 1, order_seed=0)
    expected = trainer.state(2 * STEPS + 1)

    trainer.load(initial())
    found = [trainer.advance(*stretch, order_seed=0) for stretch in pairwise(parts)]

    assert same(trainer.state(2 * STEPS + 1), expected)
    np.testing.assert_array_equal(whole, np.concatenate(found))


@pytest.mark.parametrize(
    "train",
    [
        {"momentum": 0.0, "nesterov": False},
        {"nesterov": False},
        {**ADAMW, "ema": 0.9},
        {"precision": "mixed_float16", "ema": 0.9},
    ],
    ids=str,
)
def test_a_saved_state_goes_on_bit_for_bit(make_trainer, tmp_path, monkeypatch, train):
    monkeypatch.setattr(optimizers, "GROWTH_STEPS", 3)  # at steps 3 and 6: the loss scale and its count have to be saved
    trainer, other = make_trainer(**train), make_trainer(**train)
    trainer.load(initial())
    trainer.advance(0, 4, order_seed=0)
    store.save_state(tmp_path / "middle.h5", trainer.state(4))
    trainer.advance(4, STEPS, order_seed=0)

    other.load(store.load_state(tmp_path / "middle.h5"))
    other.advance(4, STEPS, order_seed=0)

    assert same(trainer.state(STEPS), other.state(STEPS))


def test_a_fresh_state_starts_the_optimizer_anew(make_trainer):
    trainer = make_trainer(optimizer="adam")
    trainer.load(initial())
    trainer.advance(0, STEPS, order_seed=0)
    trainer.load(dataclasses.replace(trainer.state(STEPS), optimizer={}))

    fresh = trainer.state(STEPS).optimizer

    assert fresh["steps"] == 0
    assert not any(array.any() for array in fresh.values())


def test_a_batch_that_does_not_divide_among_devices_is_refused(make_trainer):
    with pytest.raises(InputError, match=r"train\.batch 9 does not divide among 2 devices"):
        make_trainer(devices=CPUS[:2], batch=9)


@pytest.mark.parametrize(("batch", "evaluated"), [(8, 256), (5, 255), (48, 240), (16, 256)])
def test_as_many_whole_training_batches_are_evaluated_together_as_fit(make_trainer, batch, evaluated):
    trainer = make_trainer(batch=batch)

    assert trainer._step.evaluated == evaluated


@pytest.mark.parametrize(("devices", "feed"), [(CPUS[:1], MemoryFeed), (CPUS[:2], streamed)], ids=["memory", "streamed"])
def test_evaluation_gives_the_same_figures_however_many_images_it_takes_at_a_time(make_trainer, monkeypatch, devices, feed):
    found = []
    for at_once in (1, 24, 256):
        monkeypatch.setattr("lottery.engine.step.EVALUATED", at_once)
        trainer = make_trainer(devices=devices, feed=feed, classes=9)
        trainer.load(initial(classes=9))
        found.append([trainer.evaluate(split) for split in ("train", "validation", "test")])
        assert trainer._step.evaluated == {1: 8, 24: 24, 256: 256}[at_once]

    for evaluations in found[1:]:
        for one, other in zip(evaluations, found[0], strict=True):
            assert one.metrics == other.metrics
            assert one.loss == pytest.approx(other.loss, rel=1e-6)


def test_a_network_that_tells_nothing_apart_is_right_about_the_first_classes_alone(make_trainer):
    trainer = make_trainer(classes=9)
    state = initial(classes=9)
    state.weights = {path: np.zeros_like(array) for path, array in state.weights.items()}
    trainer.load(state)

    found = trainer.evaluate("test")  # of labels 0 .. 8, 0 and 1

    assert tuple(found.metrics.values()) == pytest.approx((2 / 11, 7 / 11))
    assert found.loss == pytest.approx(np.log(9), rel=1e-6)


def test_divergence_names_the_step(make_trainer):
    trainer = make_trainer(learning_rate=0.05)
    state = initial()
    trainer.load(state)
    trainer.advance(0, 2, order_seed=0)
    ill = trainer.state(2)
    ill.weights["predictions/bias"][:] = np.nan
    trainer.load(ill)

    with pytest.raises(Diverged) as caught:
        trainer.advance(2, STEPS, order_seed=0)
    assert caught.value.step == 2


@pytest.mark.parametrize("train", [{}, {"clip_norm": 1.0}], ids=str)
def test_not_even_nan_reaches_a_pruned_weight(make_trainer, train):
    trainer = make_trainer(**train)
    state = initial()
    mask = half_masks(state)
    state.weights["predictions/bias"][:] = np.nan
    trainer.load(state, mask)

    with pytest.raises(Diverged):
        trainer.advance(0, 1, order_seed=0)

    for path, kept in mask.items():
        assert not trainer.state(1).weights[path][~kept].any()


@pytest.mark.parametrize(("path", "shape"), [("fc1/kernel", None), ("fc9/kernel", 3), ("fc1/kernel", (2, 2))], ids=str)
def test_a_state_of_another_network_is_refused(make_trainer, path, shape):
    state = initial()
    state.weights[path] = np.zeros(shape or 0, np.float32)
    if not shape:
        del state.weights[path]

    with pytest.raises(InputError, match=path):
        make_trainer().load(state)


def test_the_state_of_another_optimizer_is_refused(make_trainer):
    state = make_trainer(optimizer="adam").state(0)

    with pytest.raises(InputError, match="mean/fc1/bias"):
        make_trainer(optimizer="sgd").load(state)


EVERY_WAY = [{"crop": 0}, {"crop": 1, "flip": True, "cutout": 3}, {"crop": 0, "resized_crop": 0.3, "flip": True, "cutout": 3}]


@pytest.mark.parametrize(("devices", "varied"), zip((CPUS[:1], CPUS[:2], CPUS[:1]), EVERY_WAY, strict=True), ids=str)
def test_every_way_of_feeding_trains_the_same_network(make_trainer, devices, varied):
    found = []
    for feed in (MemoryFeed, on_each_device, streamed):
        trainer = make_trainer(devices=devices, feed=feed, varied=varied)
        trainer.load(initial())
        losses = advance(trainer, 0, 2 * STEPS)[:, 0]
        found.append((trainer.state(2 * STEPS), losses, trainer.evaluate("validation")))

    for state, losses, evaluation in found[1:]:
        assert same(state, found[0][0])
        np.testing.assert_array_equal(losses, found[0][1])
        assert evaluation == found[0][2]


@pytest.mark.parametrize("varied", EVERY_WAY[1:], ids=str)
def test_each_image_is_varied_by_its_own_draws(make_trainer, varied):
    """Losses of a network whose weights stand still, against images that were varied one by one."""
    data = Data(size=8, **varied)
    trainer = make_trainer(varied=varied, learning_rate=1e-30, weight_decay=0.0)
    trainer.load(initial())
    losses = trainer.advance(STEPS, 2 * STEPS, order_seed=7)[:, 0]

    images, labels = records.read_split(trainer.feed.folder, trainer.feed.manifest, "train")
    draws = order.draws(data, len(images), 7, 1)
    expected = []
    for batch in order.shuffled(np.array([len(images)]), data.shuffle, 7, 1).indices.reshape(-1, 8):
        chosen = {name: values[batch] for name, values in draws.items()}
        scaled = normalise(augment(tf.constant(images[batch]), chosen, data), data)
        seen = cut_out(scaled, chosen["hole"], data.cutout)
        logits = trainer.model(seen, training=False)
        expected.append(tf.nn.sparse_softmax_cross_entropy_with_logits(labels[batch], logits).numpy().mean())
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_mask_of_what_is_not_pruned_is_refused(make_trainer):
    state = initial()
    mask = {"fc1/bias": np.zeros(state.weights["fc1/bias"].shape, bool)}

    with pytest.raises(InputError, match="fc1/bias"):
        make_trainer().load(state, mask)


@pytest.mark.parametrize(
    ("head", "activation", "precision"),
    [
        ("softmax", "softmax", "mixed_bfloat16"),
        ("softmax_layer", "softmax", "mixed_bfloat16"),
        ("sigmoid_within", "sigmoid", "mixed_bfloat16"),
    ],
)
def test_a_network_of_ones_own_that_gives_probabilities_is_refused(make_trainer, head, activation, precision):
    told = f"model.name: tiny:{head} returns probabilities ({activation}), where logits are trained: leave that activation out"
    with pytest.raises(InputError, match=f"^{re.escape(told)}$"):
        make_trainer(model=Model(name=f"tiny:{head}"), maskable=(), precision=precision)


@pytest.mark.parametrize("head", ["log_softmax", "subclassed"])
def test_any_other_head_is_trained(make_trainer, head):
    assert make_trainer(model=Model(name=f"tiny:{head}"), maskable=()).state(0).weights
