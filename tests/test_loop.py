"""The compiled loop: exact zeros under every optimizer, the same bits however it is driven, one device or two."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from helpers import lenet, tiny_set

from data_prep import records
from data_prep.errors import InputError
from lottery import models, order
from lottery.augment import augment, cut_out, normalise
from lottery.loop import Diverged, Trainer
from lottery.memory import MemoryFeed
from lottery.recipe import Data, Model, Recipe, Train
from lottery.stream import StreamFeed

pytestmark = pytest.mark.usefixtures("tensorflow")

PRUNED = ("fc1/kernel", "fc2/kernel", "predictions/kernel")
STEPS = 6  # an epoch of the tiny set
VARIED = {"crop": 1, "flip": True}


def on_each_device(folder, manifest, data, strategy):
    return MemoryFeed(folder, manifest, data, strategy, on_host=False)


def streamed(folder, manifest, data, strategy):
    return StreamFeed(folder, manifest, data, ["CPU:0"] * strategy.num_replicas_in_sync)


@pytest.fixture(scope="module")
def make_trainer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    manifest = tiny_set(folder)

    def make(
        model: Model | None = None, devices=("CPU:0",), maskable=PRUNED, feed=MemoryFeed, varied=VARIED, **train
    ) -> Trainer:
        data = Data(size=8, **varied)
        recipe = Recipe(data=data, model=model or lenet(), train=Train(**{"batch": 8, "epochs": 4, "warmup": "0", **train}))
        return Trainer(
            recipe, devices, lambda strategy: feed(folder, manifest, data, strategy), lambda path, shape: path in maskable
        )

    return make


def initial(seed=0, model=None):
    return models.initial_weights(model or lenet(), 8, 3, seed)


def half_masks(state, seed=0):
    rng = np.random.default_rng(seed)
    return {path: rng.random(state.weights[path].shape) < 0.5 for path in PRUNED}


def same(one, other):
    return all(
        np.array_equal(group[path], getattr(other, name)[path])
        for name in ("weights", "statistics", "slots")
        for group in [getattr(one, name)]
        for path in group
    )


@pytest.mark.parametrize(
    "train",
    [
        {"momentum": 0.0, "nesterov": False},
        {"momentum": 0.9, "nesterov": False},
        {"momentum": 0.9, "nesterov": True},
        {"optimizer": "adam", "learning_rate": 0.01},
        {"optimizer": "adam", "learning_rate": 0.01, "decay": "decoupled", "weight_decay": 0.1},
        {"decay": "decoupled", "weight_decay": 0.1},
        {"decay": "decoupled", "weight_decay": 0.1, "decays": "kernels"},
        {"weight_decay": 0.1, "label_smoothing": 0.1},
    ],
    ids=str,
)
def test_pruned_weights_and_their_slots_are_exactly_zero(make_trainer, train):
    trainer = make_trainer(**train)
    state = initial()
    rng = np.random.default_rng(1)
    state.slots = {
        path: rng.random(slot.shape).astype(slot.dtype) if slot.ndim else slot for path, slot in trainer.state(0).slots.items()
    }
    mask = half_masks(state)

    trainer.load(state, mask)
    for epoch in range(2):
        trainer.advance(epoch * STEPS, (epoch + 1) * STEPS, order_seed=0)
    found = trainer.state(2 * STEPS)

    for path, kept in mask.items():
        slots = [slot for name, slot in found.slots.items() if path.replace("/", "_") in name]
        for array in (found.weights[path], *slots):
            assert not array[~kept].any()
            assert not np.signbit(array[~kept]).any()
        assert (found.weights[path][kept] != state.weights[path][kept]).mean() > 0.5
    assert len(found.slots) > 1 or not train.get("momentum", 1)


def test_an_all_ones_mask_changes_no_bit(make_trainer):
    masked, plain = make_trainer(), make_trainer(maskable=())
    ones = {path: np.ones_like(initial().weights[path], bool) for path in PRUNED}
    masked.load(initial(), ones)
    plain.load(initial())

    for trainer in (masked, plain):
        trainer.advance(0, STEPS, order_seed=0)

    assert same(masked.state(STEPS), plain.state(STEPS))


def test_steps_are_the_same_however_they_are_divided_into_calls(make_trainer):
    trainer = make_trainer()
    trainer.load(initial())
    whole = trainer.advance(0, STEPS, order_seed=0)
    expected = trainer.state(STEPS)

    trainer.load(initial())
    parts = [trainer.advance(step, step + 1, order_seed=0) for step in range(STEPS)]

    assert same(trainer.state(STEPS), expected)
    np.testing.assert_array_equal(whole[0], np.concatenate([losses for losses, _ in parts]))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_saved_state_goes_on_bit_for_bit(make_trainer, optimizer):
    trainer, other = make_trainer(optimizer=optimizer), make_trainer(optimizer=optimizer)
    trainer.load(initial())
    trainer.advance(0, 4, order_seed=0)
    middle = trainer.state(4)
    trainer.advance(4, STEPS, order_seed=0)

    other.load(middle)
    other.advance(4, STEPS, order_seed=0)

    assert same(trainer.state(STEPS), other.state(STEPS))


def test_fresh_slots_start_the_optimizer_anew(make_trainer):
    trainer = make_trainer(optimizer="adam")
    trainer.load(initial())
    trainer.advance(0, STEPS, order_seed=0)
    trainer.load(dataclasses.replace(trainer.state(STEPS), slots={}))

    slots = trainer.state(STEPS).slots

    assert slots["optimizer/iteration"] == 0
    assert not any(slot.any() for slot in slots.values())


def test_two_replicas_take_the_step_of_one(make_trainer):
    found = []
    for devices in (("CPU:0",), ("CPU:0", "CPU:1")):
        trainer = make_trainer(devices=devices, weight_decay=0.01, learning_rate=0.1)
        trainer.load(initial(), half_masks(initial()))
        losses, right = trainer.advance(0, 1, order_seed=0)
        found.append((trainer.state(1), losses, right, trainer.evaluate("validation")))
    (one, losses, right, evaluation), (two, *others) = found

    for path in one.weights:
        np.testing.assert_allclose(two.weights[path], one.weights[path], atol=1e-5)
    np.testing.assert_allclose(others[0], losses, rtol=1e-5)
    np.testing.assert_array_equal(others[1], right)
    assert others[2].accuracy == evaluation.accuracy
    assert others[2].loss == pytest.approx(evaluation.loss, rel=1e-4)


def test_replicas_average_their_batch_norm_statistics(make_trainer):
    model = Model(name="mobilenet_v2", alpha=0.1)
    trainer = make_trainer(model, devices=("CPU:0", "CPU:1"), maskable=())
    trainer.load(initial(model=model))
    before = trainer.state(0)
    trainer.advance(0, 2, order_seed=0)
    after = trainer.state(2)

    assert same(initial(model=model), before)
    assert all((after.statistics[path] != before.statistics[path]).any() for path in after.statistics)
    trainer.load(after)
    assert same(after, trainer.state(2))


def test_a_batch_that_does_not_divide_among_devices_is_refused(make_trainer):
    with pytest.raises(InputError, match=r"train\.batch 9 does not divide among 2 devices"):
        make_trainer(devices=("CPU:0", "CPU:1"), batch=9)


def test_evaluation_counts_each_image_once_whatever_the_batch(make_trainer):
    found = []
    for batch in (8, 5):
        trainer = make_trainer(batch=batch)
        trainer.load(initial())
        found.append(trainer.evaluate("test"))

    assert found[0].count == found[1].count == 11
    assert found[0].accuracy == found[1].accuracy
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-6)


def test_the_network_learns(make_trainer):
    trainer = make_trainer(learning_rate=0.05)
    trainer.load(initial(), half_masks(initial()))

    losses = np.concatenate([trainer.advance(epoch * STEPS, (epoch + 1) * STEPS, 0)[0] for epoch in range(4)])

    assert losses[-STEPS:].mean() < 0.5 * losses[:STEPS].mean()


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


def test_not_even_nan_reaches_a_pruned_weight(make_trainer):
    trainer = make_trainer()
    state = initial()
    mask = half_masks(state)
    state.weights["predictions/bias"][:] = np.nan
    trainer.load(state, mask)

    with pytest.raises(Diverged):
        trainer.advance(0, 1, order_seed=0)

    for path, kept in mask.items():
        assert not trainer.state(1).weights[path][~kept].any()


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_a_state_of_another_network_is_refused(make_trainer, change):
    state = initial()
    if change == "missing":
        del state.weights["fc1/kernel"]
    elif change == "unknown":
        state.weights["fc9/kernel"] = np.zeros(3, np.float32)
    else:
        state.weights["fc1/kernel"] = np.zeros((2, 2), np.float32)

    with pytest.raises(InputError, match=r"fc\d/kernel"):
        make_trainer().load(state)


def test_slots_of_another_optimizer_are_refused(make_trainer):
    state = make_trainer(optimizer="adam").state(0)

    with pytest.raises(InputError, match="optimizer/"):
        make_trainer(optimizer="sgd").load(state)


EVERY_WAY = [{"crop": 0}, {"crop": 1, "flip": True, "cutout": 3}, {"crop": 0, "resized_crop": 0.3, "flip": True, "cutout": 3}]


@pytest.mark.parametrize(
    ("devices", "varied"),
    [*((("CPU:0",), varied) for varied in EVERY_WAY), (("CPU:0", "CPU:1"), EVERY_WAY[1])],
    ids=str,
)
def test_every_way_of_feeding_trains_the_same_network(make_trainer, devices, varied):
    found = []
    for feed in (MemoryFeed, on_each_device, streamed):
        trainer = make_trainer(devices=devices, feed=feed, varied=varied)
        trainer.load(initial())
        losses = [trainer.advance(epoch * STEPS, (epoch + 1) * STEPS, order_seed=0)[0] for epoch in range(2)]
        found.append((trainer.state(2 * STEPS), np.concatenate(losses), trainer.evaluate("validation")))

    for state, losses, evaluation in found[1:]:
        assert same(state, found[0][0])
        np.testing.assert_array_equal(losses, found[0][1])
        assert evaluation == found[0][2]


@pytest.mark.parametrize("feed", [MemoryFeed, streamed])
@pytest.mark.parametrize("varied", EVERY_WAY[1:], ids=str)
def test_each_image_is_varied_by_its_own_draws(make_trainer, feed, varied):
    """Losses of a network whose weights stand still, against images that were varied one by one."""
    data = Data(size=8, **varied)
    trainer = make_trainer(feed=feed, varied=varied, learning_rate=1e-30, weight_decay=0.0)
    trainer.load(initial())
    losses, _ = trainer.advance(STEPS, 2 * STEPS, order_seed=7)

    images, labels = records.read_split(trainer.feed.folder, trainer.feed.manifest, "train")
    draws = order.draws(data, len(images), 7, 1)
    expected = []
    for batch in order.shuffled(np.array([len(images)]), data.shuffle, 7, 1).indices.reshape(-1, 8):
        chosen = {name: values[batch] for name, values in draws.items()}
        seen = cut_out(normalise(augment(tf.constant(images[batch]), chosen, data)), chosen["hole"], data.cutout)
        logits = trainer.model(seen, training=False)
        expected.append(tf.nn.sparse_softmax_cross_entropy_with_logits(labels[batch], logits).numpy().mean())
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_mask_of_what_is_not_pruned_is_refused(make_trainer):
    state = initial()
    mask = {"fc1/bias": np.zeros(state.weights["fc1/bias"].shape, bool)}

    with pytest.raises(InputError, match="fc1/bias"):
        make_trainer().load(state, mask)


@pytest.mark.parametrize("train", [{}, {"decay": "decoupled"}, {"optimizer": "adam", "decay": "decoupled"}], ids=str)
def test_decay_is_the_same_on_two_replicas(make_trainer, train):
    found = []
    for devices, decay in ((("CPU:0",), 0.5), (("CPU:0", "CPU:1"), 0.5), (("CPU:0",), 0.0)):
        trainer = make_trainer(devices=devices, weight_decay=decay, learning_rate=0.01, **train)
        trainer.load(initial())
        trainer.advance(0, 2, order_seed=0)
        found.append(trainer.state(2).weights)

    for path, weights in found[0].items():
        np.testing.assert_allclose(found[1][path], weights, atol=1e-5)
    assert np.linalg.norm(found[0]["fc1/kernel"]) < np.linalg.norm(found[2]["fc1/kernel"])
