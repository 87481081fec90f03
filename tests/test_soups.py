"""Soups: the average of several trainings of one mask, with statistics of its own."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from helpers import contents, imp_here, settings
from tiny import CPUS, STEPS, Model, advance, initial

from lottery.base import files
from lottery.base.errors import InputError
from lottery.experiment import controls, graph
from lottery.experiment.family import Family
from lottery.experiment.graph import Snapshot
from lottery.experiment.plan import Plan
from lottery.experiment.recipe import Recipe
from lottery.pruning.state import State, mean
from lottery.rundir import store

NORMED = Model(name="tiny:local")
ONE_SHOT = ("quantiles=90", "rewind=1ep", 'controls=["soup3"]', "controls_at=90")
SOUPS = settings(*(f"families.oneshot.{value}" for value in ONE_SHOT))


def asked(**family):
    return graph.tickets(1, "own", Family(**{"quantiles": "80", "controls_at": "80", **family}), 900, [45])


def test_the_mean_of_networks_is_that_of_each_array_and_keeps_dtypes_and_zeros():
    first = State(9, {"a": np.array([0, 1, 3], np.float32)}, {"b": np.array([2.0])}, {"momentum/a": np.ones(3)})
    second = State(9, {"a": np.array([0, 2, 5], np.float32)}, {"b": np.array([4.0])}, {})

    found = mean([first, second])

    assert (found.step, found.weights["a"].tolist(), found.statistics["b"].tolist(), found.optimizer) == (
        9,
        [0, 1.5, 4],
        [3],
        {},
    )
    assert found.weights["a"].dtype == np.float32


def test_the_mean_is_that_of_running_averages_where_there_are_any():
    first = State(9, {"a": np.zeros(1)}, {"b": np.zeros(1)}, {"ema/a": np.full(1, 4.0), "ema/b": np.full(1, 6.0)})
    second = State(9, {"a": np.zeros(1)}, {"b": np.zeros(1)}, {"ema/a": np.full(1, 2.0), "ema/b": np.full(1, 8.0)})

    found = mean([first, second])

    assert (found.weights["a"].item(), found.statistics["b"].item()) == (3, 7)


def test_a_soup_needs_its_ticket_and_the_trainings_that_differ_in_the_order_of_images():
    found = {one.variant: one for one in asked(controls=["soup3", "reinit", "soup2"])}
    ticket = found["ticket"]

    assert found.keys() == {"ticket", "again2", "again3", "soup3", "soup2", "reinit"}
    assert [one.variant for one in found["soup3"].averaged] == ["ticket", "again2", "again3"]
    assert found["soup2"].averaged == (ticket, found["again2"])
    assert set(found["soup3"].needs) == {ticket, found["again2"], found["again3"]}
    assert (found["again2"].start, found["again2"].needs) == (Snapshot(1, 45), [])
    assert {found[name].chain for name in ("soup3", "soup2", "again2", "again3")} == {ticket.chain} == {ticket}


def test_a_soup_of_a_round_starts_each_training_where_its_ticket_starts():
    found = graph.tickets(1, "own", Family(rounds=2, method="llr", controls=["soup2"], controls_at="2"), 900, [0])
    first, second, again, soup = found

    assert (again.start, again.mask) == (second.start, second.mask) == (first, second.mask)
    assert len({one.chain for one in found}) == 1
    assert soup.lineage == [first, second, again]


def test_a_soup_costs_its_trainings_and_a_pass_over_the_images():
    recipe = Recipe(families={"own": Family(quantiles="80", rewind="0", controls=["soup3"], controls_at="80")})
    planned = Plan(recipe, 45)
    found = {one.variant: one for one in planned.tickets([1], recipe.families)}

    assert planned.epochs(found["soup3"]) == pytest.approx(1 / 3)
    assert planned.cost(found["again2"]) == pytest.approx(1 + 0.2)
    assert planned.cost(found["soup3"]) == pytest.approx(1 + 0.2 * (3 + 1 / 3 / 20))


@pytest.mark.parametrize("name", ["soup", "soup1", "soup03", "soup\u0663", "again2", "module:soup3"])
def test_other_names_are_not_those_of_soups(name):
    with pytest.raises(InputError, match=r"unknown control|cannot be called"):
        controls.check_name(name)


@pytest.mark.parametrize(("devices", "calls"), [(CPUS[:1], 4), (CPUS[:2], 1)])
def test_settling_makes_statistics_the_means_of_those_of_all_batches(make_trainer, devices, calls):
    """The reference steps through the same batches at momentum 0, each of which leaves the statistics of its own."""
    trainer, single = make_trainer(model=NORMED, devices=devices), make_trainer(model=NORMED, devices=devices)
    state = initial(model=NORMED)
    trainer.load(state)
    trainer._steps_per_call = calls
    for layer in single.model._flatten_layers():
        if hasattr(layer, "moving_variance"):
            layer.momentum = 0.0
    batches = []
    for step in range(STEPS):
        single.load(replace(state, step=step))
        advance(single, step, step + 1)
        batches.append(single.state(step).statistics)

    figures = np.concatenate(list(trainer.settle(order_seed=0)))

    settled = trainer.state(0)
    assert figures.shape == (STEPS, 3)
    for path, array in settled.statistics.items():
        expected = np.mean([one[path] for one in batches], axis=0)
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-5, err_msg=path)
    assert all(array.tobytes() == state.weights[path].tobytes() for path, array in settled.weights.items())


@pytest.fixture(scope="module")
def finished(trained, tmp_path_factory):
    """A run of lenet with a soup of three."""
    folder = tmp_path_factory.mktemp("soup") / "work"
    shutil.copytree(trained, folder, symlinks=True)
    imp_here("retrain", *SOUPS, cwd=folder)
    return folder


def network(folder, variant):
    return folder / f"runs/digits/replicate-1/oneshot/q90-step-000017/{variant}"


def test_a_soup_is_the_average_of_its_networks_with_exact_zeros_and_says_what_it_cost(finished):
    parts = [store.load_state(network(finished, variant) / "final.h5") for variant in ("ticket", "again2", "again3")]
    soup = store.load_state(network(finished, "soup3") / "final.h5")
    mask = store.load_mask(finished / "runs/digits/replicate-1/oneshot/masks/q90.h5")
    results = {one: files.read_json(network(finished, one) / "result.json") for one in ("ticket", "again2", "soup3")}

    assert all((first.weights["fc1/kernel"] != parts[0].weights["fc1/kernel"]).any() for first in parts[1:])
    expected = mean(parts)
    assert all(array.tobytes() == expected.weights[path].tobytes() for path, array in soup.weights.items())
    assert not any(soup.weights[path][~kept].any() for path, kept in mask.items())
    trained, found = (results["ticket"][name] for name in ("training_macs", "finding_macs"))
    soup_result = results["soup3"]
    assert soup_result["finding_macs"] == found + 3 * trained
    assert soup_result["training_macs"] == trained * 17 // (3 * (51 - 17))
    assert (soup_result["first_step"], soup_result["step"], soup_result["epochs"]) == (51, 51, pytest.approx(1 / 3))
    assert results["again2"]["finding_macs"] == found


def test_a_soup_that_is_made_again_has_the_same_bytes(finished):
    before = contents(network(finished, "soup3"))
    shutil.rmtree(network(finished, "soup3"))

    imp_here("retrain", *SOUPS, cwd=finished)

    assert contents(network(finished, "soup3")) == before
