"""The rows behind the report's charts."""

import math
import shutil

import numpy as np
import pytest
from handmade import all_replicates, dense, in_rounds, planned, relist, ticket
from helpers import changed

from data_prep import files
from lottery import journal, masks, recipe, store
from lottery.results import grouping, listing, tidy
from lottery.run import Run, open_run


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "run", planned("60,90", rounds={"levels": 2, "rewind": "1ep", "methods": ["lr"]}))
    dense(made, 0.90, 0.91, 0.92)
    return made


@pytest.fixture
def real(retrained):
    return open_run(retrained / "runs" / "digits")


def test_accuracies_have_a_row_for_each_group_with_a_result(run):
    all_replicates(run, "60", 0.01)
    ticket(run, 1, "90", status="diverged")

    dense_row, row = tidy.accuracies(grouping.groups(listing.rows(run), 0.002))

    assert dense_row["network"] == "dense"
    assert dense_row["difference"] is None
    assert (row["network"], row["mask"], row["rewind"], row["series"]) == ("ticket", "q60", "1ep", "rewound to 1ep")
    assert (row["density"], row["runs"], row["verdict"]) == (pytest.approx(0.4), 3, "matching")
    assert [row[key] for key in ("sd_low", "validation", "sd_high", "difference")] == pytest.approx([0.91, 0.92, 0.93, 0.01])


def test_a_ticket_without_its_dense_network_has_no_difference(tmp_path):
    made = Run(tmp_path / "run", planned("60", replicates=2))
    dense(made, 0.90)
    ticket(made, 2, "60", 0.9)

    rows = tidy.accuracies(grouping.groups(listing.rows(made), 0.002))

    assert [row["difference"] for row in rows] == [None, None]
    assert not any(isinstance(value, float) and math.isnan(value) for row in rows for value in row.values())


def test_layers_count_what_each_mask_keeps(real):
    rows = tidy.layers(real, 0.001)

    replicate = real.replicate(1)
    assert {(row["masks"], row["mask"]) for row in rows} == {("oneshot", "q50"), ("oneshot", "q90")}
    for row in rows:
        kept = masks.load(replicate.mask(int(row["mask"][1:])))[f"{row['layer']}/kernel"]
        assert (row["weights"], row["kept"]) == (kept.size, np.count_nonzero(kept))
        assert row["share"] == pytest.approx(kept.mean())
        assert not row["collapsed"]
    assert all(row["collapsed"] for row in tidy.layers(real, 1.0))


def test_of_a_mask_of_all_variables_only_what_is_pruned_is_shown(real, tmp_path):
    run = Run(shutil.copytree(real.folder, tmp_path / "run"), recipe.resolve({"thresholds": {"scope": "all"}}))
    replicate = run.replicate(1)
    mask = masks.load(replicate.mask(50)) | {"bn/moving_mean": np.zeros(4, bool)}
    replicate.mask(50).unlink()
    masks.save(replicate.mask(50), mask, {})
    relist(replicate, replicate.mask(50))

    rows = tidy.layers(run, 0.001)

    assert "bn/moving_mean" not in {row["layer"] for row in rows}


def test_layerwise_thresholds_are_no_lines_of_a_common_histogram(real, tmp_path):
    run = Run(shutil.copytree(real.folder, tmp_path / "run"), real.recipe)
    path = run.replicate(1).thresholds
    changed(path, quantiles=[{**row, "threshold": None} for row in files.read_json(path)["quantiles"]])

    bars, cuts = tidy.magnitudes(run)

    assert cuts == []
    assert bars


def test_a_run_without_one_shot_masks_has_its_histogram_too(real, tmp_path):
    run = Run(shutil.copytree(real.folder, tmp_path / "run"), real.recipe)
    run.replicate(1).thresholds.unlink()

    assert tidy.magnitudes(run) == (tidy.magnitudes(real)[0], [])


def test_magnitudes_count_every_weight_that_is_not_zero(real):
    bars, cuts = tidy.magnitudes(real)

    replicate = real.replicate(1)
    state = store.load_state(replicate.snapshot(51))
    prunable = masks.prunable(state, real.recipe.thresholds.scope, real.recipe.thresholds.exclude)
    assert sum(row["weights"] for row in bars) == sum(np.count_nonzero(array) for array in prunable.values())
    assert [row["log10_to"] for row in bars[:-1]] == [row["log10_from"] for row in bars[1:]]
    assert [row["mask"] for row in cuts] == ["q50", "q90"]
    assert [10 ** row["log10"] for row in cuts] == pytest.approx([row["threshold"] for row in cuts])


def test_courses_follow_each_network_from_its_rewind_point(real):
    rows = tidy.courses(real, listing.rows(real))

    ticket = [row for row in rows if (row["network"], row["mask"], row["rewind"]) == ("ticket", "q90", "1ep")]
    assert [row["step"] for row in ticket] == [34, 51]
    written = journal.read(real.replicate(1).folder / "retrain/q90-step-000017/ticket/metrics.jsonl")
    assert [row["test_accuracy"] for row in ticket] == [row["test_accuracy"] for row in written]


def test_courses_are_means_over_replicates_where_all_were_looked_at(run):
    all_replicates(run, "60", 0.0)
    for number in (1, 2, 3):
        path = run.replicate(number).folder / "retrain/q60-step-000045/ticket/metrics.jsonl"
        seal = ""
        for step in range(1, 1000, number):
            accuracy = dict.fromkeys(("train_accuracy", "validation_accuracy", "test_accuracy"), number / 10)
            seal = journal.append(path, {"step": step, "epoch": step / 45, **accuracy}, seal)

    rows = [row for row in tidy.courses(run, listing.rows(run)) if row["network"] == "ticket"]

    assert len(rows) == tidy.POINTS
    assert {row["step"] % 6 for row in rows} == {1}
    assert rows[-1]["step"] == 997
    assert rows[0]["test_accuracy"] == pytest.approx(0.2)


def test_costs_are_summed_by_kind(run):
    all_replicates(run, "60", 0.0)
    in_rounds(run, "lr", 1, 0.0)
    for row in (rows := listing.rows(run)):
        row["devices"] = 2

    costs = tidy.costs(rows)

    assert [(row["network"], row["method"], row["networks"]) for row in costs] == [
        ("dense", "", 3),
        ("ticket", "lr", 3),
        ("ticket", "oneshot", 3),
    ]
    assert costs[0]["device_hours"] == pytest.approx(3 * 12 * 2 / 3600)
    assert costs[0]["epochs"] == pytest.approx(60)
    assert costs[0]["seconds_each"] == 12
