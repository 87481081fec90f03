"""When masks are settled: distances on masks made by hand, the masks of each snapshot, and families that are cut there."""

from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from handmade import ORIGINS, finished
from helpers import kept, selected

from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.experiment import cutting, plan, reading
from lottery.pruning import overlap, settling
from lottery.pruning.connectivity import Node, Topology
from lottery.pruning.state import State
from lottery.results import settling as results
from lottery.results.sections.settling import section
from lottery.rundir import store
from lottery.rundir.run import Run
from lottery.stages import cut
from lottery.stages.probing import Probes
from lottery.stages.thresholds import thresholds

STEPS = 0, 30, 60, 90
TOPOLOGY = Topology(
    (
        Node("images", "input", 4),
        Node("a", "linear", 6, ("images",), kernels={"a/kernel": (4, 6)}, positions=3),
        Node("b", "linear", 2, ("a",), kernels={"b/kernel": (6, 2)}, positions=1),
    ),
    ("b",),
)


def distance(first, second, size=8):
    return settling.distance(*(overlap.pack({"a": kept(size, *places)}) for places in (first, second)))


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ((0, 1), (0, 1), (0, 3 / 8, 0, 3 / 4)),
        ((0, 1), (1, 2), (2 / 8, 3 / 8, 1 / 2, 3 / 4)),
        (range(6), range(1, 7), (2 / 8, 3 / 8, 1 / 2, 3 / 4)),
        (range(4), range(1, 5), (2 / 8, 1 / 2, 2 / 8, 1 / 2)),
        (range(4), range(4, 8), (1, 1 / 2, 1, 1 / 2)),
        (range(8), range(8), (0, 0, 0, 0)),
    ],
    ids=["same", "sparse", "dense", "half", "opposite", "whole"],
)
def test_the_distance_of_two_masks_by_hand_and_by_chance(first, second, found):
    assert distance(first, second) == pytest.approx(found)


def test_chance_knows_how_many_weights_of_each_layer_are_kept():
    first, second = ({"a": kept(4, 0, 1, 2, 3), "b": kept(4, place)} for place in (0, 1))

    found = settling.distance(overlap.pack(first), overlap.pack(second))

    assert found == pytest.approx((2 / 8, 1.5 / 8, 2 / 6, 1.5 / 6))


@pytest.mark.parametrize(
    ("distances", "place"),
    [([], 0), ([0.09, 0.0], 0), ([0.3, 0.1, 0.0999], 2), ([0.0, 0.2, 0.0], 2), ([0.0, 0.2], 2), ([float("nan"), 0.0], 1)],
)
def test_a_mask_is_settled_from_where_all_that_follows_stays_under_a_tenth(distances, place):
    assert settling.settled(distances) == place


def recipe_of(**family):
    return reading.resolve(
        {
            "replicates": 2,
            "train": {"steps": STEPS[-1], "snapshots": "0,30it,60it", "warmup": "0"},
            "pruning": {"exclude": []},
            "families": {"f": {"quantiles": "50,75", "controls": [], **family}},
        }
    )


def trained(folder, courses, **family):
    """A run whose dense networks had the weights `courses` (a replicate's by snapshot) as their kernel `a`."""
    run = Run(folder / "run", recipe_of(**family))
    for number, course in enumerate(courses, 1):
        for step, weights in zip(STEPS, course, strict=True):
            variables = {"a/kernel": np.float32(weights).reshape(2, -1), "a/bias": np.zeros(4, np.float32)}
            store.save_state(run.replicate(number).snapshot(step), State(step, variables, {}, {}))
        finished(run.replicate(number), STEPS[-1], origins=ORIGINS)
    return run


# Of eight weights: the four largest are the same from step 30 on, the two largest from 60 on.
EARLY = [1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 1, 2, 3, 4], [8, 5, 7, 6, 4, 3, 2, 1], [8, 5, 7, 6, 1, 2, 3, 4]
# Both change until the end.
LATE = [1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 1, 2, 3, 4], [8, 7, 6, 5, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8]


def test_each_mask_is_cut_where_it_is_settled_in_its_replicate(tmp_path, capsys):
    run = trained(tmp_path, [EARLY, LATE], scored_at="settled")

    early, late = thresholds(run, Reporter(), selected())

    assert [mask.step for mask in (*early, *late)] == [30, 60, 90, 90]
    assert [name for name in early[0].made_from if name.startswith("train")] == ["train/snapshots/step-000030.h5"]
    assert store.load_mask(run.replicate(1).masks("f")[0].mask)["a/kernel"].ravel().tolist() == [True] * 4 + [False] * 4
    assert "settled: q50 at 30it, q75 at 60it\n" in capsys.readouterr().err


def test_controls_are_given_the_network_that_a_settled_mask_was_scored_on(tmp_path):
    run = trained(tmp_path, [EARLY, LATE], scored_at="settled")
    thresholds(run, Reporter(quiet=True), selected())
    early, *_, late = run.plan().masks([1, 2], run.recipe.families)

    assert [cut.trained(run, mask).step for mask in (early, late)] == [30, 90]
    assert cut.inverted(run, early, Probes(run))["a/kernel"].ravel().tolist() == [False] * 4 + [True] * 4


@pytest.mark.parametrize(
    "family",
    [
        {},
        {"criterion": "lamp"},
        {"allocation": "erk"},
        {"densities": ["b/k*=100"], "quantiles": "50"},
        {"units": "2x1", "unit_score": "sum"},
        {"units": "1:2", "quantiles": "50"},
        {"units": "channel", "target": "macs", "quantiles": "30,60"},
        {"target": "macs", "per_mac": True},
    ],
    ids=str,
)
def test_the_masks_of_a_snapshot_are_those_that_the_family_cuts_there(tmp_path, family):
    run = Run(tmp_path / "run", recipe_of(**family).model_copy(update={"replicates": 1}))
    rng, replicate = np.random.default_rng(0), run.replicate(1)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in TOPOLOGY.kernels.items()}
    state = State(STEPS[-1], weights | {"a/bias": np.zeros(6, np.float32), "b/bias": np.zeros(2, np.float32)}, {}, {})
    store.save_state(replicate.snapshot(STEPS[-1]), state)
    replicate.write_topology(TOPOLOGY)
    finished(replicate, STEPS[-1], origins=ORIGINS)
    thresholds(run, Reporter(quiet=True), selected())

    found = dict(cutting.at_once(run.recipe.pruning, run.recipe.families["f"], state, TOPOLOGY))

    files = {one.name: store.load_mask(one.mask) for one in replicate.masks("f")}
    assert found.keys() == files.keys()
    for label, mask in found.items():
        assert all((bits == files[label][path]).all() for path, bits in mask.items())
        assert mask.keys() == TOPOLOGY.kernels.keys()


def test_the_report_says_how_far_masks_are_apart_and_where_they_are_settled(tmp_path):
    run = trained(tmp_path, [EARLY, LATE])

    rows = results.rows(run, [1, 2])

    early = rows[(rows["replicate"] == 1) & (rows["mask"] == "q75")]
    assert early["step"].tolist() == [*STEPS]
    assert early["epoch"].tolist() == pytest.approx([step / 45 for step in STEPS])
    assert early["density"].tolist() == [0.25] * 4
    assert early["hamming"].isna().tolist() == [True, False, False, False]
    assert early["hamming"].tolist()[1:] == [4 / 8, 2 / 8, 0]
    assert early["replaced"].tolist()[1:] == [1, 1 / 2, 0]
    assert early["replaced_to_final"].tolist() == [1, 1 / 2, 0, 0]
    assert early["hamming_by_chance"].tolist()[1:] == pytest.approx([3 / 8] * 3)
    assert [line[:6] for line in results.cells(results.groups(rows))] == [
        ("f", "q50", "50.00%", "2", "0.667 .. the end", "0.00%"),
        ("f", "q75", "25.00%", "2", "1.33 .. the end", "0.00%"),
    ]


def test_the_chart_has_a_row_of_panels_for_each_family_and_no_legend_of_more_densities_than_can_be_told(tmp_path):
    rows = results.rows(trained(tmp_path, [EARLY, LATE]), [1, 2])
    others = [rows[rows["mask"] == "q50"].assign(family="g", mask=f"q{place}", density=place / 20) for place in range(1, 20)]

    block, many = (section(SimpleNamespace(settling=one)) for one in (rows, pandas.concat([rows, *others])))

    assert [len(row["hconcat"]) for row in many.charts[0].specification["vconcat"]] == [2, 2]
    assert "NaN" not in block.charts[0].svg
    encoded = [
        one.charts[0].specification["vconcat"][0]["hconcat"][0]["layer"][1]["encoding"]["color"] for one in (block, many)
    ]
    assert [one["type"] for one in encoded] == ["ordinal", "quantitative"]
    assert block.table[0]["settled from epoch"] == "0.667 .. the end"
    assert section(SimpleNamespace(settling=rows[:0])) is None


def test_a_replicate_that_lacks_a_snapshot_takes_it_from_all_and_two_are_too_few(tmp_path):
    run = trained(tmp_path, [EARLY, LATE])
    run.replicate(1).snapshot(30).unlink()

    assert results.rows(run, [1, 2])["step"].unique().tolist() == [0, 60, 90]

    run.replicate(2).snapshot(60).unlink()
    assert results.rows(run, [1, 2]).empty


def test_families_that_cut_the_same_masks_are_shown_once_and_those_that_ask_more_than_weights_not():
    own = {
        "f": {"quantiles": "50"},
        "again": {"quantiles": "50", "rewind": "1ep", "scored_at": "0"},
        "denser": {"quantiles": "40"},
        "erk": {"quantiles": "50", "allocation": "erk"},
        "snip": {"quantiles": "50", "criterion": "snip"},
        "rounds": {"rounds": 2},
        "steeper": {"rounds": 2, "rate": 40.0},
        "by_path": {"rounds": 2, "rates": ["a/*=10"]},
    }

    assert [*results._distinct(reading.resolve({"families": own}).families)] == ["f", "denser", "erk", "rounds", "steeper"]


def test_masks_of_rounds_keep_as_many_weights_as_there():
    family = recipe_of(quantiles="", rounds=3, rate=30.0).families["f"]
    state = State(0, {"a/kernel": np.arange(20, dtype=np.float32)}, {}, {})

    masks = dict(cutting.at_once(recipe_of().pruning, family, state, None))

    assert list(masks) == ["round-01", "round-02", "round-03"]
    assert [int(mask["a/kernel"].sum()) for mask in masks.values()] == [14, 10, 7]  # 6 go, 4.2 and 3


@pytest.mark.parametrize(
    "family",
    [{"criterion": "snip"}, {"criterion": "random"}, {"mask": "a.npz"}, {"updates": "gmp"}, {"method": "lr"}],
    ids=str,
)
def test_only_masks_of_one_shot_that_weights_alone_decide_can_be_cut_where_they_are_settled(family):
    with pytest.raises(InputError, match="scored_at = settled is of masks of one shot, by method = weights, that magnitude or"):
        recipe_of(scored_at="settled", **family)


def test_too_few_snapshots_are_refused_with_what_to_add():
    recipe = recipe_of(scored_at="settled")
    train = recipe.train.model_copy(update={"snapshots": reading.resolve({"train": {"snapshots": "0"}}).train.snapshots})

    with pytest.raises(InputError, match=r"families\.f\.scored_at: .* from 3 or more snapshots, and there are 2 with the end"):
        plan.check_points(recipe.model_copy(update={"train": train}))
