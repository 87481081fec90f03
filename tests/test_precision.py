"""Every precision learns and saves whole numbers; float16's loss scale, and an overflow that one replica alone has."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny import CPUS, STEPS, advance, half_masks, initial

from lottery.engine import models, optimizers
from lottery.engine.loop import Diverged
from lottery.engine.step import Step
from lottery.experiment.recipe import Model
from lottery.rundir import store

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.parametrize("name", ["tf32", "mixed_bfloat16", "mixed_float16", "float64"])
def test_a_half_of_the_network_learns_and_is_saved_in_the_width_of_its_weights(make_trainer, tmp_path, name):
    model, pruned = Model(name="tiny:local"), ("conv2/kernel", "conv3/kernel")
    trainer = make_trainer(model, maskable=pruned, precision=name, ema=0.9, learning_rate=0.02)
    trainer.load(initial(model=model), half_masks(initial(model=model), pruned))

    losses = advance(trainer, 0, 4 * STEPS)[:, 0]

    assert losses[-STEPS:].mean() < 0.7 * losses[:STEPS].mean()
    store.save_state(tmp_path / "snapshot.h5", trainer.state(4 * STEPS))
    saved = store.load_state(tmp_path / "snapshot.h5")
    arrays = [*saved.weights.values(), *saved.statistics.values(), *(array for array in saved.optimizer.values() if array.ndim)]
    assert {array.dtype.name for array in arrays} == {"float64" if name == "float64" else "float32"}
    assert np.isfinite(trainer.evaluate("validation").loss)


def test_the_policy_holds_within_and_is_put_back():
    def fail():
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
        raise KeyError

    with pytest.raises(KeyError), models.policy("mixed_bfloat16"):
        fail()

    assert keras.config.dtype_policy().name == "float32"


def scaled(scale, finite):
    """What a loss scale says at each step, and what it is after it."""
    found = []
    for value in finite:
        said = float(scale.update(tf.constant(value)))
        found.append((said, float(scale.state["loss_scale"]), int(scale.state["steps_since_overflow"])))
    return found


@pytest.mark.parametrize(
    ("begun", "growth", "finite", "found"),
    [
        (32, 3, [True, False, *[True] * 4], [(0, 32, 1), (1, 16, 0), (0, 16, 1), (0, 16, 2), (0, 32, 0), (0, 32, 1)]),
        (2, 3, [False, False], [(1, 1, 0), (math.inf, 1, 0)]),  # where it is 1 an overflow is hopeless
        (2**23, 1, [True] * 3, [(0, 2**24, 0)] * 3),
    ],
)
def test_the_loss_scale_halves_at_an_overflow_and_doubles_after_a_calm_between_1_and_its_highest(
    monkeypatch, begun, growth, finite, found
):
    monkeypatch.setattr(optimizers, "GROWTH_STEPS", growth)
    scale = optimizers.LossScale()
    scale.state["loss_scale"].assign(begun)

    assert scaled(scale, finite) == found


@pytest.fixture
def overflow(monkeypatch):
    """A variable that says on which replica (-1: on none) a step's gradient holds an infinity."""
    where, begin = tf.Variable(-1), Step.__init__

    def begun(step, *arguments):
        begin(step, *arguments)
        gradients_of = step._gradients

        def spoilt(batch):
            loss, right, (first, *others) = gradients_of(batch)
            here = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, where)
            return loss, right, [tf.where(here, np.float32(math.inf), first), *others]

        step._gradients = spoilt

    monkeypatch.setattr(Step, "__init__", begun)
    return where


def copies(trainer):
    """Weights and optimizer state as each replica has them: by name, one array a replica."""
    variables = {variable.path: variable.value for variable in trainer.model.trainable_variables} | trainer._optimizer
    return {
        name: [np.array(copy) for copy in trainer.strategy.experimental_local_results(variable)]
        for name, variable in variables.items()
    }


@pytest.mark.parametrize(
    ("name", "count", "replica", "xla"),
    [
        ("lenet_300_100", 1, 0, "off"),
        ("tiny:local", 2, 1, "off"),  # with BatchNorm, whose averages stand still too
        ("tiny:local", 2, 1, "on"),
    ],
)
def test_an_overflow_on_one_replica_lets_all_stand_still_and_training_goes_on(
    make_trainer, overflow, name, count, replica, xla
):
    start = initial(model=Model(name=name))
    mask = half_masks(start, [path for path in start.weights if path.endswith("kernel")][:2])
    trainer = make_trainer(
        Model(name=name), maskable=tuple(mask), devices=CPUS[:count], precision="mixed_float16", ema=0.9, xla=xla
    )
    trainer.load(start, mask)
    trainer.advance(0, 2, order_seed=0)
    before = copies(trainer)

    overflow.assign(replica)
    found = trainer.advance(2, 3, order_seed=0)
    after = copies(trainer)
    overflow.assign(-1)
    more = trainer.advance(3, STEPS, order_seed=0)
    last = copies(trainer)

    assert found[:, 2].tolist() == [1]
    assert np.isfinite(found).all()
    assert more[:, 2].tolist() == [0] * 3
    assert all(len(arrays) == count for arrays in after.values())
    for name in before.keys() - {"loss_scale", "steps_since_overflow"}:
        for one, other, later in zip(before[name], after[name], last[name], strict=True):
            np.testing.assert_array_equal(other, one)
            assert (later != one).any()
            np.testing.assert_array_equal(later, last[name][0])
    assert before["loss_scale"] == [2.0**15] * count
    assert after["loss_scale"] == last["loss_scale"] == [2.0**14] * count
    assert [values["steps_since_overflow"] for values in (before, after, last)] == [[2] * count, [0] * count, [3] * count]


def test_an_overflow_that_no_scale_can_help_is_divergence(make_trainer, overflow):
    trainer = make_trainer(devices=CPUS[:2], precision="mixed_float16")
    trainer.load(initial())
    trainer.advance(0, 2, order_seed=0)
    state = trainer.state(2)
    state.optimizer["loss_scale"] = np.float32(1)
    trainer.load(state)
    overflow.assign(0)

    with pytest.raises(Diverged) as caught:
        trainer.advance(2, STEPS, order_seed=0)

    assert caught.value.step == 2
