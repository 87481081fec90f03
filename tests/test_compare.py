"""Comparing the masks of a run: which with which, what is marked, and the command."""

import csv
import json
import tracemalloc

import numpy as np
import pytest
from handmade import write_mask
from helpers import imp_here, kept, refused

from lottery.base import files
from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.experiment import reading
from lottery.pruning import densities
from lottery.pruning.alignment import Alignment
from lottery.pruning.connectivity import Node, Topology
from lottery.pruning.state import State
from lottery.results import compare
from lottery.rundir.run import Run

QUIET = Reporter(quiet=True)
TWO_LAYERS = Topology(
    (
        Node("images", "input", 40),
        Node("a", "linear", 30, ("images",), {"a/kernel": (40, 30)}),
        Node("out", "linear", 3, ("a",), {"out/kernel": (30, 3)}),
    ),
    ("out",),
)


FAMILIES = {
    "oneshot": {"quantiles": "50", "rewind": "0"},
    "weights": {"rounds": 2, "rewind": "0,10it"},
    "lr": {"rounds": 2, "rewind": "0,10it", "method": "lr"},
    "scratch": {"rounds": 2, "rewind": "0"},
}


@pytest.fixture
def make_run(tmp_path):
    """A function that makes a run of so many replicates in `runs/NAME`."""

    def make(replicates=1, name="made", **pruning):
        recipe = reading.resolve({"name": name, "replicates": replicates, "families": FAMILIES, "pruning": pruning})
        files.write_text(tmp_path / "runs" / name / "recipe.toml", reading.sealed(recipe))
        return Run(tmp_path / "runs" / name, recipe)

    return make


def one_shot(run, number, by_quantile, topology=None, **more):
    """Masks of a replicate: of the variable `a`, or by path; its network has a `topology` or is a subclassed model's."""
    replicate = run.replicate(number)
    for quantile, mask in by_quantile.items():
        mask = mask if isinstance(mask, dict) else {"a": np.array(mask, bool)}
        write_mask(replicate, "oneshot", f"q{quantile}", mask, **more)
    if topology:
        replicate.write_topology(topology)


def random_mask(seed, density=0.4):
    """A mask of `TWO_LAYERS` of which some inputs and some hidden units keep more than others."""
    rng = np.random.default_rng(seed)
    scores = {
        path: rng.random(shape) + rng.random(shape[0])[:, None] + rng.random(shape[1])
        for path, shape in TWO_LAYERS.kernels.items()
    }
    cut = np.quantile(np.concatenate([score.ravel() for score in scores.values()]), 1 - density)
    return {path: score > cut for path, score in scores.items()}


def chain(run, number, family, step, *rounds, **more):
    """Rounds of a replicate, of the variable `a`."""
    for count, mask in enumerate(rounds, 1):
        mask = {"a": np.array(mask, bool)}
        write_mask(run.replicate(number), family, f"round-{count:02d}", mask, rewind_step=step, **more)


def as_they_are(one, other):
    """The alignment of networks whose hidden units have one order."""
    return Alignment(np.arange(0), {}, 0.5)


def compared(run, align=as_they_are):
    return compare.compare(run, QUIET, align)


def names(groups, kind):
    return [(group["first"], group["second"]) for group in groups if group["kind"] == kind]


def test_replicates_are_compared_mask_by_mask(make_run):
    run = make_run(3)
    for number in (1, 2, 3):
        one_shot(run, number, {50: kept(10, *range(5)), 90: kept(10, number)})
        chain(run, number, "weights", 10, kept(10, *range(5)))

    groups = compared(run)

    assert names(groups, "aligned") == [(name, name) for name in ("oneshot/q50", "oneshot/q90", "weights-step-000010/round-01")]
    assert [len(group["pairs"]) for group in groups if group["kind"] == "aligned"] == [3, 3, 3]
    replicates = [(pair["replicate_first"], pair["replicate_second"]) for pair in groups[0]["pairs"]]
    assert replicates == [(1, 2), (1, 3), (2, 3)]


def test_aligned_masks_are_compared_by_position_with_chance_among_all_weights(make_run):
    run, mask = make_run(2), random_mask(0)
    order = np.random.default_rng(1).permutation(30)
    one_shot(run, 1, {60: mask}, TWO_LAYERS)
    one_shot(run, 2, {60: {"a/kernel": mask["a/kernel"][:, order], "out/kernel": mask["out/kernel"][order]}}, TWO_LAYERS)
    axes = {"a/kernel": {-1: np.arange(30)}, "out/kernel": {-2: np.arange(30)}}
    asked = []

    def align(one, other):
        asked.append((one, other))
        return Alignment(np.argsort(order), axes, 0.75)

    (aligned,) = compared(run, align)

    assert set(asked) == {(1, 2)}
    assert (aligned["kind"], aligned["units"]) == ("aligned", "weight")
    (pair,) = aligned["pairs"]
    assert pair["overlap"] == 1
    assert pair["pool"] == pair["size"] == 40 * 30 + 30 * 3
    counts = [(int(kept.sum()), kept.size) for kept in mask.values()]
    expected = sum(count**2 / size for count, size in counts) / sum(count for count, _ in counts)
    assert pair["overlap_by_chance"] == pytest.approx(expected)
    ((title, (row,), explained),) = compare.tables(run, [aligned])
    assert title == "the same mask in different replicates, hidden units aligned"
    assert row[3] == "100.00"
    assert "correlate at 0.75 on average" in explained


def test_replicates_that_cannot_be_aligned_are_left_out_with_one_line(make_run, capsys):
    run = make_run(2)
    for number in (1, 2):
        one_shot(run, number, {50: kept(10, *range(5))})

    def refuse(one, other):
        raise InputError("there are no examples")

    with pytest.raises(InputError, match="masks of different replicates are not compared: there are no examples"):
        compare.compare(run, Reporter(), refuse)
    chain(run, 1, "weights", 10, kept(10, *range(5)))
    assert [group["kind"] for group in compare.compare(run, Reporter(), refuse)] == ["densities"]
    assert capsys.readouterr().err == "masks of different replicates are not compared: there are no examples\n"


def test_one_replicate_that_cannot_be_aligned_does_not_keep_the_others_from_it(make_run, capsys):
    run = make_run(3)
    for number in (1, 2, 3):
        one_shot(run, number, {50: kept(10, *range(5))})

    def align(one, other):
        if 3 in (one, other):
            raise InputError("the end of 3 is damaged")
        return as_they_are(one, other)

    (group,) = compare.compare(run, Reporter(), align)
    assert len(group["pairs"]) == 1
    assert capsys.readouterr().err == "masks of replicates 1 and 3, 2 and 3 are not compared: the end of 3 is damaged\n"


def test_chains_are_compared_round_by_round(make_run):
    run = make_run()
    full, half = np.ones(10, bool), kept(10, 0, 1, 2, 3, 4)
    for family, step in (("weights", 0), ("weights", 10), ("lr", 10), ("scratch", 0)):
        chain(run, 1, family, step, full, half)

    groups = compared(run)

    assert names(groups, "rewinds") == [
        (f"weights-step-000000/{label}", f"weights-step-000010/{label}") for label in ("round-01", "round-02")
    ]
    assert set(names(groups, "families")) == {
        (f"{one}/{label}", f"{other}/{label}")
        for label in ("round-01", "round-02")
        for one, other in (
            ("weights-step-000000", "lr-step-000010"),
            ("weights-step-000000", "scratch-step-000000"),
            ("weights-step-000010", "lr-step-000010"),
            ("weights-step-000010", "scratch-step-000000"),
            ("lr-step-000010", "scratch-step-000000"),
        )
    }


def test_families_of_one_shot_are_compared_quantile_by_quantile(tmp_path):
    shots = {"quantiles": "50", "rewind": "0"}
    run = Run(tmp_path, reading.resolve({"replicates": 1, "families": {"wide": shots, "layers": shots}}))
    for family, quantile in (("wide", 50), ("layers", 50), ("layers", 90)):
        write_mask(run.replicate(1), family, f"q{quantile}", {"a": kept(10, *range(quantile // 10))})

    (group,) = compared(run)

    assert names([group], "families") == [("wide/q50", "layers/q50")]
    assert group["spread"]["overlap"]["mean"] == 1


def test_chance_draws_from_the_first_round_where_both_masks_were_cut_from_it(make_run):
    run = make_run(2)
    first = kept(10, *range(8))
    for number in (1, 2):
        chain(run, number, "weights", 0, first, kept(10, 0, 1, 2, 3))
        chain(run, number, "weights", 10, first, kept(10, 0, 1, 4, 5))
    one_shot(run, 1, {60: kept(10, 0, 1, 2, 4)})
    one_shot(run, 2, {60: kept(10, 0, 1, 2, 9)})  # cut from other weights: chance draws from all

    groups = compared(run)

    chance = {
        (group["kind"], group["first"], group["second"]): [(pair["pool"], pair["overlap_by_chance"]) for pair in group["pairs"]]
        for group in groups
        if group["kind"] in ("rewinds", "densities")
    }
    names = ("weights-step-000000", "weights-step-000010")
    assert chance[("rewinds", *(f"{name}/round-01" for name in names))] == [(8, 1.0)] * 2
    assert chance[("rewinds", *(f"{name}/round-02" for name in names))] == [(8, 0.5)] * 2
    assert chance[("densities", "oneshot/q60", f"{names[0]}/round-02")] == [(8, 0.5), (10, 0.4)]


def test_a_collapsed_layer_is_marked(make_run):
    run = make_run(2, collapse=0.6)
    for number, last in ((1, True), (2, False)):
        for quantile, kernel in ((50, [True, True]), (90, [True, False]), (95, [last, False])):
            one_shot(run, number, {quantile: {"a/kernel": np.array(kernel), "a/bias": np.zeros(3, bool)}})

    ((_, rows, _),) = compare.tables(run, compared(run))

    assert [cells[1] for cells in rows] == ["40.00", "20.00 !", "20.00 !\n0.00 !"]


def test_a_pair_of_families_has_one_line(make_run):
    run = make_run()
    for family in ("weights", "lr"):
        write_mask(run.replicate(1), family, "round-01", {"a": np.array([True, False])}, rewind_step=10)

    _, rows, _ = next(compare.tables(run, compared(run)))

    assert [cells[:3] for cells in rows] == [("round-01: weights-step-000010, lr-step-000010", "50.00", "1")]


def test_a_mask_that_leaves_no_path_is_marked_though_every_layer_keeps_enough(make_run):
    run = make_run(2, collapse=0.1)
    for number in (1, 2):
        one_shot(run, number, {50: kept(10, *range(5))}, disconnected=number == 2)

    _, rows, _ = next(compare.tables(run, compared(run)))

    assert [cells[:2] for cells in rows] == [("oneshot/q50", "50.00\n50.00 !")]


def test_a_one_shot_mask_is_compared_with_the_round_nearest_in_density(make_run):
    run = make_run()
    one_shot(run, 1, {50: kept(100, *range(50)), 80: kept(100, *range(20)), 97: kept(100, 0, 1, 2)})
    chain(run, 1, "lr", 0, *(kept(100, *range(count)) for count in (80, 53, 45, 30, 21, 4)))
    chain(run, 1, "weights", 0, kept(100, *range(53)))

    groups = compared(run)

    assert names(groups, "densities") == [
        ("oneshot/q50", "weights-step-000000/round-01"),
        ("oneshot/q50", "lr-step-000000/round-02"),
        ("oneshot/q80", "lr-step-000000/round-05"),
    ]


def test_masks_of_a_family_that_the_recipe_has_not_and_other_folders_are_left_alone(make_run):
    run = make_run(2)
    for number in (1, 2):
        chain(run, number, "lr", 0, kept(4, 0))
        chain(run, number, "gone", 0, kept(4, 0))
        files.write_text(run.replicate(number).mask_folder("lr") / "notes.json", "{}")
        (run.replicate(number).folder / "weights/round-01-step-000000").mkdir(parents=True)

    assert {source.name for source in compare.sources(run)} == {"lr-step-000000/round-01"}


def test_what_only_one_of_two_masks_covers_does_not_count(make_run):
    run = make_run(2)
    for number, paths in enumerate([("a", "b"), ("a", "c")], 1):
        one_shot(run, number, {90: {path: kept(10, 0, number) for path in paths}})

    (group,) = compared(run)

    assert [pair["size"] for pair in group["pairs"]] == [10]


def test_statistics_that_no_training_prunes_do_not_count(make_run):
    run = make_run(2, scope="all")
    for number in (1, 2):
        mask = {"a": kept(10, number), "moving_mean": np.ones(90, bool)}
        left = densities.kept(mask, State(9, {"a": np.zeros(10)}, {"moving_mean": np.zeros(90)}, {}), None)
        one_shot(run, number, {90: mask}, kept=left)

    (group,) = compared(run)

    assert [(pair["size"], list(pair["layers"])) for pair in group["pairs"]] == [(10, ["a"])]


def test_masks_are_compared_in_less_than_four_bytes_a_weight(make_run):
    shape, weights = (1500, 2000), 3_000_000
    run = make_run(2)
    layers = (Node("images", "input", 1500), Node("a", "linear", 2000, ("images",), {"a": shape}))
    for number in (1, 2):
        one_shot(run, number, {90: np.random.default_rng(number).random(shape, np.float32) < 0.1}, Topology(layers, ()))
    for step in range(compare.HELD + 2):
        chain(run, 1, "weights", step, np.random.default_rng(step).random(shape, np.float32) < 0.1)

    tracemalloc.start()
    compared(run)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 4 * weights


@pytest.fixture
def two(make_run):
    """A run of two replicates with one-shot masks, and a chain in the first."""
    run = make_run(2)
    one_shot(run, 1, {50: kept(10, 0, 1, 2, 3, 4), 90: kept(10, 0)})
    one_shot(run, 2, {50: kept(10, 3, 4, 5, 6), 90: kept(10, 1)})
    chain(run, 1, "weights", 10, kept(10, *range(8)), kept(10, *range(1, 6)))
    return run


def test_the_command_prints_tables_and_writes_every_layer(two, tmp_path):
    done = imp_here("compare", "--run", "runs/made", cwd=tmp_path)

    for words in ("like density", "weights-step-000010/round-02"):
        assert words in done.stdout
    assert "masks of different replicates are not compared: " in done.stderr
    with open(two.report / "compare.csv") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == compare.COLUMNS
    assert [(row["kind"], row["layer"]) for row in rows] == [("densities", ""), ("densities", "a")]
    assert (float(rows[0]["overlap"]), float(rows[0]["overlap_by_chance"]), rows[0]["correlation"]) == (0.8, 5 / 8, "")


def test_the_command_prints_json(two, tmp_path):
    (group,) = json.loads(imp_here("compare", "--json", "--run", "runs/made", cwd=tmp_path).stdout)

    names = ("densities", "oneshot/q50", "weights-step-000010/round-02")
    assert (group["kind"], group["first"], group["second"]) == names
    assert group["spread"]["overlap"] == dict.fromkeys(("mean", "least", "most"), 0.8)
    assert group["pairs"][0]["layers"]["a"]["shared"] == 4


def test_with_nothing_to_compare_or_masks_of_two_networks_there_is_one_line(make_run, tmp_path):
    def asked(name="made"):
        return imp_here("compare", "--run", f"runs/{name}", cwd=tmp_path, check=False)

    run = make_run(2)
    refused(asked(), "has no masks yet", "imp thresholds")
    one_shot(run, 1, {50: [True, False], 90: [True, False]})
    refused(asked(), "nothing to compare", "--set replicates=3")
    chain(make_run(name="rounds"), 1, "lr", 0, [True, True], [True, False])
    refused(asked("rounds"), "nothing to compare")
    one_shot(run, 2, {90: [True, False, True]})
    refused(asked(), "masks of different replicates are not compared: ")
    with pytest.raises(InputError, match=r"replicate-1/oneshot/masks/q90\.h5 and .* a is 2 and 3 in the two masks"):
        compared(run)
    assert not run.report.exists()
