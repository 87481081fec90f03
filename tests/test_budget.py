"""What tickets cost in dense trainings, by hand, and families with a budget of so many."""

import dataclasses
import re

import pytest
from handmade import TOPOLOGY
from helpers import contents, imp_here, refused, settings

from lottery.base import files
from lottery.base.errors import InputError
from lottery.experiment import graph, plan, reading
from lottery.experiment.expected_macs import expected_share
from lottery.experiment.family import Family
from lottery.experiment.grids import Quantile
from lottery.experiment.recipe import Pruning
from lottery.pruning.connectivity import Topology
from lottery.rundir.run import open_run

TRAIN = {"epochs": 20, "batch": 64, "snapshots": "0,1ep,10ep", "warmup": "0"}  # 900 steps; 10ep is half of them
SHOT = {"quantiles": "80,90", "controls": []}
ROUNDS = {"rounds": 3, "controls": []}
STATIC = {**SHOT, "criterion": "random", "scored_at": "0"}
GMP = {**SHOT, "updates": "gmp", "update_every": "10it"}
RIGL = {**STATIC, "updates": "rigl", "update_every": "10it"}
SET = {**RIGL, "updates": "set"}


def made(share=plan.by_weights, images=2900, classes=None, **families):
    """The plan of these families; 2,900 images are 45 whole batches."""
    recipe = reading.resolve({"families": families, "train": TRAIN})
    return dataclasses.replace(plan.make(recipe, images, classes=classes), share=share)


def tickets(planned):
    return planned.tickets([1], planned.recipe.families)


def costs(variant="ticket", **family):
    """What the networks of a family cost, in their order."""
    planned = made(own=family)
    return [planned.cost(one) for one in tickets(planned) if one.variant == variant]


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (SHOT, [1 + 0.2, 1 + 0.1]),
        ({**SHOT, "rewind": "0,10ep"}, [1 + 0.2, 1 + 0.1, 1 + 0.2 / 2, 1 + 0.1 / 2]),
        ({**SHOT, "scored_at": "10ep"}, [0.5 + 0.2, 0.5 + 0.1]),
        ({**SHOT, "scored_at": "1ep", "rewind": "10ep"}, [0.5 + 0.2 / 2, 0.5 + 0.1 / 2]),  # both lie on one training
        ({**SHOT, "scored_at": "0", "criterion": "snip"}, [0.2, 0.1]),
        ({**SHOT, "scored_at": "0", "length": 2.5}, [0.5, 0.25]),
        (STATIC, [0.2, 0.1]),
        ({**STATIC, "scored_at": "end"}, [0.2, 0.1]),  # random numbers need no weights
        ({**STATIC, "rewind": "10ep"}, [0.5 + 0.2 / 2, 0.5 + 0.1 / 2]),
        ({**SHOT, "method": "lr"}, [1 + 0.2, 1 + 0.1]),
        ({**SHOT, "method": "llr", "length": 0.5}, [1 + 0.1, 1 + 0.05]),
        (ROUNDS, [1 + 0.8, 1 + 0.8 + 0.64, 1 + 0.8 + 0.64 + 0.512]),
        ({**ROUNDS, "rate": 50.0, "rewind": "10ep"}, [1 + 0.5 / 2, 1 + 0.75 / 2, 1 + 0.875 / 2]),
        ({**ROUNDS, "rate": 50.0, "method": "lr", "scored_at": "10ep"}, [0.5 + 0.5, 0.5 + 0.75, 0.5 + 0.875]),
        ({**ROUNDS, "rate": 50.0, "method": "allr", "length": 0.1}, [1 + 0.05, 1 + 0.075, 1 + 0.0875]),
        (GMP, [1 - 0.8 * 0.8125, 1 - 0.9 * 0.8125]),  # up to 3/4 it prunes 3/4 of the last sparsity in the mean, and then all
        ({**GMP, "update_from": 0.25}, [1 - 0.8 * 0.625, 1 - 0.9 * 0.625]),
        (RIGL, [0.2 + 0.075 * 0.8 / 3, 0.1 + 0.075 * 0.9 / 3]),  # looks in three quarters of each tenth step
        (SET, [0.2, 0.1]),
        ({**STATIC, "method": "llr", "length": 0.5}, [0.1, 0.05]),  # from the start
        ({**STATIC, "method": "llr", "length": 0.5, "scored_at": "10ep"}, [0.5 + 0.1, 0.5 + 0.05]),
    ],
)
def test_a_ticket_costs_what_it_takes_to_find_and_to_train(family, expected):
    assert costs(**family) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("variant", "family", "expected"),
    [
        ("reinit", {**SHOT, "rewind": "10ep", "controls_at": "90"}, [1 + 0.1]),
        ("reinit", {**ROUNDS, "rate": 50.0, "controls_at": "2"}, [1 + 0.5 + 0.25]),
        ("reinit", {**ROUNDS, "rate": 50.0, "controls_at": "2", "method": "llr", "length": 0.1}, [1 + 0.05 + 0.25]),
        ("extended", {**ROUNDS, "rate": 50.0, "method": "lr"}, [2, 3, 4]),
        ("rewound", {**RIGL, "controls_at": "90"}, [0.1225 + 0.1]),
        ("reinit", {**RIGL, "controls_at": "90", "length": 2.0}, [2 * (0.1225 + 0.1)]),
        ("rewound", {**GMP, "controls_at": "90"}, [0.26875 + 0.1]),
    ],
)
def test_a_control_costs_what_it_takes_to_find_its_mask_and_to_train(variant, family, expected):
    asked = [variant] if variant != "extended" else []
    assert costs(variant, **{**family, "controls": asked}) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("family", "lengths"),
    [
        (STATIC, [2 / 0.2, 2 / 0.1]),
        ({**STATIC, "scored_at": "end"}, [2 / 0.2, 2 / 0.1]),
        ({**SHOT, "scored_at": "end"}, [1 / 0.2, 1 / 0.1]),
        ({**SHOT, "scored_at": "10ep"}, [1.5 / 0.2, 1.5 / 0.1]),
        ({**SHOT, "scored_at": "0", "criterion": "snip"}, [2 / 0.2, 2 / 0.1]),
        (GMP, [2 / 0.35, 2 / 0.26875]),
        (RIGL, [2 / 0.22, 2 / 0.1225]),
        (SET, [2 / 0.2, 2 / 0.1]),
        ({**STATIC, "quantiles": "0"}, [2]),
    ],
)
def test_with_a_budget_a_ticket_trains_until_it_has_cost_that(family, lengths):
    planned = made(own={**family, "budget": 2.0})
    found = tickets(planned)

    assert [planned.last_step(one) for one in found] == [round(900 * length) for length in lengths]
    assert [planned.length(one) for one in found] == pytest.approx(lengths)
    for one in found:
        assert planned.cost(one) == pytest.approx(2, abs=0.51 / 900)  # half a step


STEPS = 3 * 64 * 900  # passes of a dense training


@pytest.mark.parametrize(
    ("family", "passes"),
    [
        ({"criterion": "magnitude"}, 0),
        ({"criterion": "random"}, 0),
        ({"criterion": "snip"}, 3 * 100),  # of ten images of each of ten classes
        ({"criterion": "snip", "scored_on": "64"}, 3 * 64),
        ({"criterion": "snip", "iterations": 100}, 100 * 3 * 100),
        ({"criterion": "grasp"}, 9 * 100),
        ({"criterion": "grasp_abs", "iterations": 2}, 2 * 9 * 100),
        ({"criterion": "synflow"}, 100 * 3),  # of one image of ones
        ({"criterion": "own_costs:told"}, 6 * 100),
        ({"criterion": "own_costs:free"}, 0),
    ],
)
def test_scoring_is_a_part_of_what_a_ticket_costs_and_of_a_budget(own_costs, family, passes):
    family, scoring = {**SHOT, "scored_at": "0", **family}, passes / STEPS
    rounds = {"rounds": 3, "quantiles": "", "method": "lr"}
    once, thrice = (made(classes=10, own={**family, **grid}) for grid in ({}, rounds))

    assert [once.cost(one) for one in tickets(once)] == pytest.approx([0.2 + scoring, 0.1 + scoring], rel=1e-12)
    expected = [0.8 + scoring, 0.8 + 0.64 + 2 * scoring, 0.8 + 0.64 + 0.512 + 3 * scoring]
    assert [thrice.cost(one) for one in tickets(thrice) if one.variant == "ticket"] == pytest.approx(expected, rel=1e-12)
    within = made(classes=10, own={**family, "budget": 1.5})
    assert [within.length(one) for one in tickets(within)] == pytest.approx([(1.5 - scoring) / 0.2, (1.5 - scoring) / 0.1])


def test_where_scoring_alone_costs_more_nothing_is_left_of_a_budget():
    snip = {"criterion": "snip", "iterations": 100, "scored_on": "1000"}  # 1.74 dense trainings
    scored = {**SHOT, "scored_at": "0", "budget": 1.5, **snip}

    with pytest.raises(InputError, match=r"^families\.own\.budget: 1\.5 leaves nothing to train: raise it$"):
        made(classes=10, own=scored)
    assert made(own=scored)  # which a run that is only read makes nothing of


def test_a_criterion_that_does_not_say_what_it_costs_is_refused_in_a_budget(own_costs):
    told = (
        "families.own.criterion: own_costs:silent does not say what it costs, which a budget asks: set its attribute `passes`"
    )
    with pytest.raises(InputError, match=f"^{re.escape(told)}$"):
        made(classes=10, own={**SHOT, "budget": 1.5, "criterion": "own_costs:silent"})


@pytest.fixture
def own_costs(tmp_path, monkeypatch):
    """Criteria of a user's own that say what they cost, and one that does not."""
    functions = "".join(f"def {name}(state, mask, probe): ...\n" for name in ("silent", "told", "free", "wrong"))
    (tmp_path / "own_costs.py").write_text(f"{functions}told.passes, free.passes, wrong.passes = 6, 0, 'six'\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_what_a_criterion_costs_is_a_number(own_costs):
    told = "criterion: own_costs:wrong.passes is 'six': let it be how often images pass the network, such as 3"
    with pytest.raises(InputError, match=f"^{re.escape(told)}$"):
        made(classes=10, own={**SHOT, "criterion": "own_costs:wrong", "budget": 2.0})


def test_controls_train_as_long_as_a_ticket_with_a_budget():
    planned = made(own={**RIGL, "controls": ["reinit", "rewound"], "controls_at": "90", "budget": 2.0})

    lasts = {(one.mask.label, one.variant): planned.last_step(one) for one in tickets(planned)}
    assert {last for (label, _), last in lasts.items() if label == "q90"} == {round(900 * 2 / 0.1225)}
    assert {variant for label, variant in lasts if label == "q90"} == {"ticket", "reinit", "rewound"}


def test_masks_change_up_to_their_share_of_a_training_with_a_budget():
    planned = made(own={**GMP, "budget": 2.0, "update_from": 0.25, "update_until": 0.5})
    mask = tickets(planned)[0].mask  # costs 1 - 0.8 (1 - (0.5 + 0.75) / 4) = 0.45 of a dense step

    schedule = planned.updates(mask)
    assert (schedule.begin, schedule.until, schedule.every) == (1000, 2000, 10)


@pytest.mark.parametrize("amount", [0.5, 1.0, 1.00001])
def test_a_budget_that_leaves_no_step_beyond_finding_is_refused(amount):
    told = f"families.own.budget: {amount:g} leaves nothing to train: raise it"
    with pytest.raises(InputError, match=f"^{re.escape(told)}$"):
        made(own={**SHOT, "quantiles": "0,90", "budget": amount})


@pytest.mark.parametrize(("quantile", "problem"), [("100", "costs nothing"), ("99.99", "20,000 times as long as")])
def test_a_mask_under_which_a_budget_has_no_end_is_refused(quantile, problem):
    with pytest.raises(InputError, match=problem):
        tickets(made(own={**STATIC, "quantiles": quantile, "budget": 2}))


def test_a_budget_in_which_no_mask_would_change_is_refused():
    with pytest.raises(InputError, match=r"^families\.own: its masks never change after step 0"):
        made(own={**GMP, "update_every": "2ep", "budget": 0.01})


DENSE = 54 * 16 + 27 * 4 + 15


def expected(quantile="50", exclude=(), topology=TOPOLOGY, **family):
    mask = graph.one_shot(1, "own", Quantile(quantile), 0)
    own = Family(quantiles=quantile, **family)
    return expected_share(mask, own, Pruning(exclude=list(exclude)), topology)


@pytest.mark.parametrize(
    ("settings", "macs"),
    [
        ({}, DENSE * 48 / 96),  # of 96 weights half go, rounded up from 47.5
        ({"quantile": "0"}, DENSE),
        ({"allocation": "uniform"}, 27 * 16 + 13 * 4 + 8),  # b's remainder comes before dw's
        ({"allocation": "erk"}, 18 * 16 + 17 * 4 + 13),  # 48 / 29 times the sums of their dimensions: 11, 10 and 8
        ({"allocation": "uniform+", "quantile": "25"}, 54 * 16 + 12 * 4 + 6),  # 72 stay, 18 of them in dw and b
        ({"quantile": "25", "densities": ["a/*=100"]}, 54 * 16 + (27 * 4 + 15) * 18 / 42),
        ({"densities": ["b/*=20", "dw/*=0"]}, 45 * 16 + 3),
        ({"exclude": ["b/*"]}, (54 * 16 + 27 * 4) * 41 / 81 + 15),
        ({"exclude": ["a/*", "b/*"], "allocation": "erk"}, 54 * 16 + 14 * 4 + 15),
    ],
)
def test_the_share_of_macs_to_be_expected_is_that_of_layers_pruned_as_the_allocation_says(settings, macs):
    assert expected(**settings) == pytest.approx(macs / DENSE, rel=1e-12)


def test_a_kernel_of_two_nodes_counts_in_both():
    again = dataclasses.replace(TOPOLOGY.nodes[1], name="again", positions=9)
    shared = Topology((*TOPOLOGY.nodes, again), TOPOLOGY.outputs)

    macs = 54 * (16 + 9) + (27 * 4 + 15) * 18 / 42
    assert expected("25", densities=["a/*=100"], topology=shared) == pytest.approx(macs / (DENSE + 54 * 9))


def test_where_a_kernel_is_used_is_not_known_nothing_is_to_be_expected():
    nodes = (*TOPOLOGY.nodes[:3], dataclasses.replace(TOPOLOGY.nodes[3], positions=None))

    assert expected(topology=Topology(nodes, TOPOLOGY.outputs)) is None


ALONE = ["rewind=0", "controls=[]", "controls_at="]
FAMILIES = {
    "static": [*ALONE, "quantiles=50", "criterion=random", "scored_at=0", "allocation=erk"],
    "snip": [*ALONE, "quantiles=50", "criterion=snip", "scored_at=0", "iterations=20"],
    "gmp": [*ALONE, "quantiles=50", "updates=gmp", "update_every=5it"],
    "oneshot": ALONE,  # of which masks are there, of 50 and 90 %
}
GIVEN = settings(*(f"families.{name}.{value}" for name, values in FAMILIES.items() for value in [*values, "budget=2"]))


def test_a_run_with_a_budget_costs_it_and_is_continued_with_it(work):
    imp_here("run", *GIVEN, "--ranks", "1", cwd=work)

    def result(folder):
        return files.read_json(work / "runs/digits/replicate-1" / folder / "result.json")

    dense, steps = result("train")["training_macs"], {}
    for name, label in (("static", "q50"), ("snip", "q50"), ("gmp", "q50"), ("oneshot", "q50"), ("oneshot", "q90")):
        found = result(f"{name}/{label}-step-000000/ticket")
        assert found["training_macs"] + found["finding_macs"] == pytest.approx(2 * dense, rel=0.03)
        assert found["epochs"] == found["step"] / 17
        steps[name, label] = found["step"]
    half, tenth = ((share * 87_600 + 1000) / 88_600 for share in (0.5, 0.1))  # the last layer's 1,000 weights all stay
    scoring = 20 * 3 * 10 * 10 / (3 * 64)  # steps of the dense training
    assert steps == {
        ("snip", "q50"): pytest.approx((51 * 2 - scoring) / half, abs=1),
        ("static", "q50"): pytest.approx(51 * 2 / half, abs=1),
        ("gmp", "q50"): pytest.approx(51 * 2 / (1 - 0.8125 * (1 - half)), abs=1),
        ("oneshot", "q50"): pytest.approx(51 / half, abs=1),
        ("oneshot", "q90"): pytest.approx(51 / tenth, abs=1),
    }
    recipe = open_run(work / "runs/digits", must_exist=True).recipe
    assert {name: family.budget for name, family in recipe.families.items()} == dict.fromkeys(FAMILIES, 2)
    assert (work / "runs/digits/recipe.toml").read_text().count("budget = 2.0") == 4

    before = contents(work / "runs/digits")
    told = imp_here("run", *GIVEN, "--ranks", "1", cwd=work).stderr
    assert ", 0 to train" in told
    assert contents(work / "runs/digits") == before

    more = imp_here("run", *settings("families.gmp.budget=1.5"), "--ranks", "1", cwd=work, check=False)
    refused(more, "families.gmp.budget was 2.0, is 1.5")
    assert contents(work / "runs/digits") == before
