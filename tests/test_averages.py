"""Averages of weights and statistics: what they follow, what is evaluated with them, and what is saved."""

import dataclasses

import numpy as np
import pytest
from helpers import lenet
from tiny import CPUS, STEPS, initial, same

from lottery.base.errors import InputError
from lottery.experiment.recipe import Model

pytestmark = pytest.mark.usefixtures("tensorflow")

NORMED = Model(name="tiny:local")


@pytest.mark.parametrize(("model", "devices"), [(lenet(), CPUS[:1]), (lenet(), CPUS[:2]), (NORMED, CPUS[:2])])
def test_an_average_begins_at_the_weights_and_the_statistics_and_follows_them(make_trainer, model, devices):
    trainer = make_trainer(model, devices=devices, ema=0.3, precision="float64")
    state = initial(model=model)
    trainer.load(state)
    expected = {path: array.astype(np.float64) for path, array in (state.weights | state.statistics).items()}

    for step in range(STEPS):
        found = trainer.state(step)
        for path, average in expected.items():
            np.testing.assert_allclose(found.optimizer[f"ema/{path}"], average, rtol=1e-12, atol=1e-12)
        trainer.advance(step, step + 1, order_seed=0)
        after = trainer.state(step + 1)
        now = after.weights | after.statistics
        kept = min(0.3, (2 + step) / (11 + step))  # faster at first, so that the weights begun with are soon forgotten
        expected = {path: kept * average + (1 - kept) * now[path] for path, average in expected.items()}


@pytest.mark.parametrize(
    ("model", "devices", "rate", "raw"),
    [(lenet(), CPUS[:1], 0.02, "weights"), (lenet(), CPUS[:2], 0.02, "weights"), (NORMED, CPUS[:1], 0.1, "statistics")],
)
def test_accuracies_are_those_of_the_averages_and_what_is_saved_is_raw(make_trainer, model, devices, rate, raw):
    trainer, plain = make_trainer(model, devices=devices, ema=0.9, learning_rate=rate), make_trainer(model)
    trainer.load(initial(model=model))
    trainer.advance(0, STEPS, order_seed=0)
    before = trainer.state(STEPS)
    averages = {
        group: {path: before.optimizer[f"ema/{path}"] for path in getattr(before, group)} for group in ("weights", "statistics")
    }

    found = trainer.evaluate("validation")

    assert same(trainer.state(STEPS), before)
    plain.load(dataclasses.replace(before, **averages, optimizer={}))
    expected = plain.evaluate("validation")
    assert (found.loss, found.deciding) == pytest.approx((expected.loss, expected.deciding), rel=1e-6)
    plain.load(dataclasses.replace(before, **averages | {raw: getattr(before, raw)}, optimizer={}))
    assert abs(plain.evaluate("validation").loss - found.loss) > 1e-3


@pytest.mark.parametrize("path", ["fc1/kernel", "ema/fc1/kernel"])
def test_an_average_is_not_begun_where_something_is_missing(make_trainer, path):
    trainer = make_trainer(ema=0.9)
    trainer.load(initial())
    state = trainer.state(0)
    without = {
        group: {name: array for name, array in getattr(state, group).items() if name != path}
        for group in ("weights", "optimizer")
    }

    with pytest.raises(InputError, match="the saved network is not this one"):
        trainer.load(dataclasses.replace(state, **without))


def test_an_evaluation_that_fails_puts_the_raw_weights_back(make_trainer, monkeypatch):
    trainer = make_trainer(ema=0.9)
    trainer.load(initial())
    trainer.advance(0, 2, order_seed=0)
    before = trainer.state(2)
    monkeypatch.setattr(trainer._step, "evaluations", lambda rows: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        trainer.evaluate("test")

    assert same(trainer.state(2), before)
