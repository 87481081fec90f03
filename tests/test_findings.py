"""The rows behind the report's charts."""

import numpy as np
import pytest
from handmade import all_replicates, dense, in_rounds, planned, ticket, write_mask
from helpers import kept

from lottery.results import findings, frame
from lottery.results.sections.costs import costs
from lottery.rundir import journal, store
from lottery.rundir.run import Run, open_run


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "run", planned("60,90", rounds={"rounds": 2, "rewind": "1ep", "methods": ["lr"]}))
    dense(made, 0.90, 0.91, 0.92)
    return made


@pytest.fixture
def real(retrained):
    return open_run(retrained / "runs" / "digits")


def found(run, table):
    """The rows of a table."""
    return frame.dicts(getattr(findings.Findings(run), table))


def test_accuracies_have_a_row_for_each_group_with_a_result(run):
    all_replicates(run, "60", 0.01)
    ticket(run, 1, "90", status="diverged")

    dense_row, row = found(run, "figures")

    assert dense_row["network"] == "dense"
    assert dense_row["difference"] is None
    assert (row["network"], row["mask"], row["rewind"], row["series"]) == ("ticket", "q60", "1ep", "oneshot, rewound to 1ep")
    assert (row["density"], row["runs"], row["verdict"]) == (pytest.approx(0.4), 3, "matching")
    assert [row[key] for key in ("sd_low", "validation", "sd_high", "difference")] == pytest.approx([0.91, 0.92, 0.93, 0.01])


def test_a_ticket_without_its_dense_network_has_no_difference(tmp_path):
    made = Run(tmp_path / "run", planned("60", replicates=2))
    dense(made, 0.90)
    ticket(made, 2, "60", 0.9)

    rows = found(made, "figures")

    assert [row["difference"] for row in rows] == [None, None]
    assert not any(value != value for row in rows for value in row.values())  # no NaN


def test_layers_count_what_each_mask_keeps(real):
    rows = found(real, "layers")

    replicate = real.replicate(1)
    assert {(row["masks"], row["mask"]) for row in rows} == {("oneshot", "q50"), ("oneshot", "q90")}
    for row in rows:
        mask = store.load_mask(replicate.mask_folder("oneshot") / f"{row['mask']}.h5")[f"{row['layer']}/kernel"]
        assert (row["weights"], row["kept"]) == (mask.size, np.count_nonzero(mask))
        assert row["share"] == pytest.approx(mask.mean())
        assert not row["collapsed"]
    strict = real.recipe.model_copy(update={"pruning": real.recipe.pruning.model_copy(update={"collapse": 1.0})})
    assert all(row["collapsed"] for row in found(Run(real.folder, strict), "layers"))


def test_masks_of_rounds_are_told_apart_by_their_rewind_points(tmp_path):
    made = Run(tmp_path / "run", planned("60", replicates=1, rounds={"rounds": 1, "rewind": "0,1ep"}))
    dense(made, 0.9)
    write_mask(made.replicate(1), "oneshot", "q60", {"fc1/kernel": kept(10, 1, 2, 3, 4)})
    for step in (0, 45):
        write_mask(made.replicate(1), "weights", "round-01", {"fc1/kernel": kept(10, *range(8))}, rewind_step=step)

    rows = found(made, "layers")

    assert [(row["masks"], row["mask"], row["share"]) for row in rows] == [
        ("oneshot", "q60", 0.4),
        ("weights from 0", "round-01", 0.8),
        ("weights from 1ep", "round-01", 0.8),
    ]


def test_courses_follow_each_network_from_its_rewind_point(real):
    rows = found(real, "courses")

    ticket = [row for row in rows if (row["network"], row["mask"], row["rewind"]) == ("ticket", "q90", "1ep")]
    assert [row["step"] for row in ticket] == [34, 51]
    written = journal.read(real.replicate(1).folder / "oneshot/q90-step-000017/ticket/metrics.jsonl")
    assert [row["test_accuracy"] for row in ticket] == [row["test_accuracy"] for row in written]


def test_courses_are_means_over_replicates_where_all_were_looked_at(run):
    all_replicates(run, "60", 0.0)
    for number in (1, 2, 3):
        path = run.replicate(number).folder / "oneshot/q60-step-000045/ticket/metrics.jsonl"
        seal = ""
        for step in range(1, 1000, number):
            accuracy = dict.fromkeys(("train_accuracy", "validation_accuracy", "test_accuracy"), number / 10)
            seal = journal.append(path, {"step": step, "epoch": step / 45, **accuracy}, seal)

    rows = [row for row in found(run, "courses") if row["network"] == "ticket"]

    assert len(rows) == findings.POINTS
    assert {row["step"] % 6 for row in rows} == {1}
    assert rows[-1]["step"] == 997
    assert rows[0]["test_accuracy"] == pytest.approx(0.2)


def test_costs_are_summed_by_kind(run):
    all_replicates(run, "60", 0.0)
    in_rounds(run, "lr", 1, 0.0)
    rows = frame.rows(run).assign(devices=2)

    summed = frame.dicts(costs(rows))

    assert [(row["network"], row["family"], row["networks"]) for row in summed] == [
        ("dense", "", 3),
        ("ticket", "oneshot", 3),
        ("ticket", "lr", 3),
    ]
    assert summed[0]["device_hours"] == pytest.approx(3 * 12 * 2 / 3600)
    assert summed[0]["epochs"] == pytest.approx(60)
    assert summed[0]["seconds_each"] == 12


def test_the_training_has_a_row_for_each_replicate_epoch_and_split(run):
    dense(run, 0.90, 0.91, 0.92, 0.93)  # one was added
    for number, seal in ((1, ""), (4, "")):
        for epoch in (1, 2):
            accuracies = {f"{split}_accuracy": number * epoch / 10 for split in ("train", "validation", "test")}
            seal = journal.append(run.replicate(number).dense.metrics, {"step": 45 * epoch, "epoch": epoch, **accuracies}, seal)

    rows = found(run, "training")

    assert len(rows) == 2 * 2 * 3
    assert rows[-1] == {"replicate": "replicate-4", "epoch": 2, "step": 90, "split": "test", "accuracy": 0.8}


def test_overlaps_are_means_over_replicates_of_what_two_families_share(tmp_path):
    half = {"quantiles": "50", "rewind": "0"}
    made = Run(tmp_path / "run", planned("50,75", replicates=2, second=half, third=half))
    dense(made, 0.9, 0.9)
    for replicate, other in ((1, [1, 1, 0, 0]), (2, [1, 0, 1, 0])):
        for family, bits in (("oneshot", [1, 1, 0, 0]), ("second", other), ("third", [0, 0, 1, 1])):
            write_mask(made.replicate(replicate), family, "q50", {"fc/kernel": np.array(bits, bool)})
    write_mask(made.replicate(1), "oneshot", "q75", {"fc/kernel": np.array([1, 0, 0, 0], bool)})

    rows = found(made, "overlaps")

    assert [(row["mask"], row["first"], row["second"], row["density"]) for row in rows] == [
        ("q50", "oneshot", "second", 0.5),
        ("q50", "oneshot", "third", 0.5),
        ("q50", "second", "third", 0.5),
    ]
    assert [(row["overlap"], row["chance"], row["beyond_chance"]) for row in rows] == [
        (0.75, 0.5, 0.5),
        (0.0, 0.5, -1.0),
        (0.25, 0.5, -0.5),
    ]


def test_one_family_shares_with_none(run):
    write_mask(run.replicate(1), "oneshot", "q60", {"fc/kernel": np.array([1, 0], bool)})

    assert found(run, "overlaps") == []
