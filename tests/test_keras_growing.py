"""Masks that drop and grow weights in `model.fit`: RigL and SET of `lottery.keras`, beside a NumPy of their papers."""

from itertools import pairwise

import keras
import numpy as np
import pytest
from keras_networks import LOSS, ON_TENSORFLOW, fit, is_exact, kept, network

from lottery.base.errors import InputError
from lottery.keras import SET, RigL, masks, prune, update
from lottery.keras.fitting import pruned
from lottery.keras.plan import Plan

pytestmark = [pytest.mark.usefixtures("any_backend"), pytest.mark.filterwarnings("ignore:fit ended before the schedule")]
RANDOM = {"criterion": "random", "allocation": "erk"}
BOTH = pytest.mark.parametrize("schedule", [RigL, SET])


def grown(model, schedule, **settings):
    return prune(model, 0.8, schedule=schedule(end=12, every=3, **settings), **RANDOM)


@BOTH
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "accumulated", "multi"])
def test_each_layer_keeps_as_many_weights_and_zeros_are_exact(schedule, optimizer):
    model = grown(network(optimizer), schedule)
    counts, seen = kept(model), []

    for epoch in range(4):
        fit(model, 1, epoch)
        assert is_exact(model)
        assert kept(model) == counts
        seen.append(masks(model)["dense/kernel"])

    assert [np.array_equal(*pair) for pair in pairwise(seen)] == [False, False, True]


class Masks(keras.callbacks.Callback):
    """Weights and mask of the first layer after each step."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_begin(self, logs=None):
        self.seen.append((self.model.weights[0].numpy(), next(iter(masks(self.model).values()))))

    def on_train_batch_end(self, batch, logs=None):
        self.on_train_begin()


def linear():
    """One layer, whose gradient is easy."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def by_hand(weights, kept, scores, count):
    """The mask after `count` weights of the smallest magnitude are dropped, and of the highest score grown."""
    left = kept.ravel().copy()
    left[np.where(kept, np.abs(weights), np.inf).ravel().argsort(kind="stable")[:count]] = False
    left[np.where(left, -np.inf, scores.ravel()).argsort(kind="stable")[len(left) - count :]] = True
    return left.reshape(kept.shape)


def blocks(array):
    """The means of blocks of four inputs."""
    return array.reshape(2, 4, 3).mean(axis=1)


@pytest.mark.parametrize(
    ("schedule", "units", "pool"), [(RigL, "weight", np.asarray), (SET, "weight", np.asarray), (RigL, "4x1", blocks)]
)
def test_masks_are_those_of_the_papers(schedule, units, pool):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 8)).astype(np.float32), rng.normal(size=(16, 3)).astype(np.float32)
    changing = schedule(end=9, every=2, drop_fraction=0.9)
    model, steps = prune(linear(), 0.5, criterion="random", schedule=changing, units=units, seed=5), Masks()

    model.fit(x, y, 16, 12, shuffle=False, verbose=0, callbacks=[steps])

    for date, ((before, old), (after, mask)) in enumerate(pairwise(steps.seen), start=1):
        gradient = 2 * x.T @ (x @ before - y) / y.size
        scores = np.abs(gradient) if schedule is RigL else np.random.default_rng([5, date]).random((8, 3))
        share = 0.45 * (1 + np.cos(np.pi * date / 9)) if date in (2, 4, 6, 8) else 0
        weights, kept = np.abs(before - 0.1 * gradient) * old, pool(old) == 1
        wanted = by_hand(pool(weights), kept, pool(scores), int(share * kept.sum()))
        np.testing.assert_array_equal(pool(mask) == 1, wanted)
        np.testing.assert_allclose(after, np.where(old & mask, before - 0.1 * gradient, 0), atol=1e-6)
    assert sum((one != other).any() for (_, one), (_, other) in pairwise(steps.seen)) >= 1


@pytest.mark.parametrize("units", ["weight", "4x1"])
@BOTH
def test_what_was_pruned_before_does_not_grow(schedule, units):
    model = prune(network(), 0.5)
    within = masks(model)

    begun = masks(prune(model, 0.8, schedule=schedule(end=12, every=1), units=units))
    fit(model, 4)

    assert all((masks(model)[path] <= bits).all() for path, bits in within.items())
    assert (masks(model)["dense/kernel"] != begun["dense/kernel"]).any()


def test_a_gradient_that_is_not_finite_leaves_the_mask():
    model = grown(network(), RigL)
    fit(model, epochs=1)
    optimizer, before = pruned(model), masks(model)
    optimizer._iterations.assign(6)
    optimizer._gradients[0].assign(np.full((3, 3, 1, 4), np.inf))

    update(model)

    assert all(np.array_equal(masks(model)[path], bits) for path, bits in before.items())
    assert optimizer.next_change == 9


@BOTH
def test_a_layer_that_is_frozen_in_between_keeps_its_mask(schedule):
    model = prune(network(), 0.8, schedule=schedule(end=12, every=3), units="4x1", **RANDOM)
    fit(model)
    before = masks(model)
    model.get_layer("conv").trainable = False
    model.compile("sgd", LOSS)

    fit(model, 3, 1)

    assert [np.array_equal(masks(model)[path], bits) for path, bits in before.items()] == [True, False]


@ON_TENSORFLOW
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"], indirect=True)
def test_replicas_grow_by_the_gradient_of_the_whole_batch(policy, tensorflow):
    alone = grown(network(), RigL)
    with tensorflow.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = grown(network(), RigL)

    fit(alone, 2)
    fit(model, 2)

    assert is_exact(model)
    differ = [np.count_nonzero(bits != masks(model)[path]) for path, bits in masks(alone).items()]
    assert differ == [0, 0] or (policy == "mixed_float16" and max(differ) <= 2)


@pytest.mark.parametrize(
    ("schedule", "given", "message"),
    [
        (RigL(12, 3), {"units": "channel"}, "a channel that is gone has no gradient, and would stay zero: not RigL"),
        (SET(12, 3), {"units": "2:4", "sparsity": 0.5}, "units = 2:4 are pruned at once: give Constant"),
    ],
)
def test_units_that_cannot_grow_are_refused(schedule, given, message):
    with pytest.raises(InputError, match=message):
        prune(network(), **{"sparsity": 0.8} | given, schedule=schedule)


def test_a_schedule_of_an_unknown_kind_is_refused_by_name():
    config = pruned(grown(network(), RigL)).plan.config()

    with pytest.raises(InputError, match="of an unknown kind, 'GraNet'; known are Constant, Cubic, RigL, SET"):
        Plan.of(config | {"schedule": config["schedule"] | {"kind": "GraNet"}})


@pytest.mark.parametrize("given", [{"end": 100}, {"end": 12, "every": 0}, {"end": 12, "every": 3, "drop_fraction": 30}])
def test_a_schedule_that_cannot_be_is_refused(given):
    with pytest.raises(InputError, match=next(reversed(given))):
        RigL(**given)
