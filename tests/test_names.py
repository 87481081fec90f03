"""Names of a run's files, and what is read back from them."""

from pathlib import Path

import pytest

from lottery.experiment import graph, reading
from lottery.experiment.family import Family
from lottery.experiment.graph import Snapshot, Ticket
from lottery.experiment.grids import Quantile
from lottery.rundir.names import MaskFiles, NetworkFiles, Replicate, replicate_numbers
from lottery.rundir.records import Result
from lottery.rundir.run import Run

SHOT = graph.one_shot(2, "own", Quantile("97.5"), 900)
*_, LAST = graph.tickets(2, "chained", Family(rounds=3, controls=[]), 900, (45,))
OTHERS = ("replicate-2.bak", "replicate-0", "replicate-x", "replicate-²", "replicates", "train")  # are no replicates


def test_every_file_has_a_readable_name():
    run = Run(Path("runs/digits"), reading.resolve({}))
    replicate, shuffle = run.replicate(2), run.network(Ticket(SHOT, 45, "shuffle", 45, Snapshot(2, 45)))

    names = {
        replicate.dense.result: "replicate-2/train/result.json",
        replicate.dense.metrics: "replicate-2/train/metrics.jsonl",
        replicate.topology: "replicate-2/train/topology.json",
        replicate.snapshot(45): "replicate-2/train/snapshots/step-000045.h5",
        replicate.snapshot(1_234_567): "replicate-2/train/snapshots/step-1234567.h5",
        run.mask(SHOT).mask: "replicate-2/own/masks/q97.5.h5",
        run.mask(SHOT).table: "replicate-2/own/masks/q97.5.json",
        replicate.thresholds("own"): "replicate-2/own/thresholds.csv",
        run.mask(LAST.mask).mask: "replicate-2/chained/masks/round-03-step-000045.h5",
        shuffle.folder: "replicate-2/own/q97.5-step-000045/shuffle",
        shuffle.final: "replicate-2/own/q97.5-step-000045/shuffle/final.h5",
        shuffle.mask: "replicate-2/own/q97.5-step-000045/shuffle/mask.h5",
        shuffle.checkpoint: "replicate-2/own/q97.5-step-000045/shuffle/checkpoint.h5",
        shuffle.attempt: "replicate-2/own/q97.5-step-000045/shuffle/attempt.json",
        run.network(LAST).folder: "replicate-2/chained/round-03-step-000045/ticket",
        run.report: "report",
    }
    assert {path.as_posix(): f"runs/digits/{name}" for path, name in names.items()} == {
        f"runs/digits/{name}": f"runs/digits/{name}" for name in names.values()
    }


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_replicates_are_counted_by_their_names(tmp_path):
    touch(tmp_path, *(f"{name}/train/result.json" for name in ("replicate-2", "replicate-10", "replicate-1", *OTHERS)))

    assert replicate_numbers(tmp_path) == [1, 2, 10]
    assert replicate_numbers(tmp_path / "nowhere") == []
    assert Run(tmp_path, reading.resolve({"replicates": 3})).known_numbers() == [1, 2, 3, 10]


def test_snapshots_are_listed_by_their_steps(tmp_path):
    replicate = Replicate(tmp_path)
    names = ("step-000010.h5", "step-000002.h5", "step-1234567.h5", "step-000003.bak.h5", "step-².h5", "step-3.h5")
    touch(replicate.snapshot(0).parent, *names)

    assert replicate.snapshot_steps() == [2, 10, 1_234_567]


def test_masks_are_listed_from_dense_to_sparse_and_copies_beside_them_are_none(tmp_path):
    shot = ("q50", "q9", "q97.5", "q97")
    rounds = ("round-02-step-000000", "round-10-step-000000", "round-01-step-000045", "round-01-step-000000")
    touch(tmp_path, *(f"b/masks/{name}.json" for name in shot), *(f"a/masks/{name}.json" for name in rounds))
    touch(
        tmp_path, *(f"b/masks/{name}.json" for name in ("made_with", "q90.bak", "round-01", "copy of q90", "q90-step-000000"))
    )
    touch(tmp_path, "b/q90-step-000000/masks/q90.json", "b/masks/q20.h5", "b/masks/q50.h5")  # one has lost its table

    found = Replicate(tmp_path).masks()

    in_order = ["round-01-step-000000", "round-02-step-000000", "round-10-step-000000", "round-01-step-000045"]
    assert [mask.name for mask in found] == [*in_order, "q9", "q20", "q50", "q97", "q97.5"]
    assert Replicate(tmp_path).quantiles("b", is_gradual=False) == {9, 20, 50, 97, Quantile("97.5")}
    assert Replicate(tmp_path).masks("b") == found[4:]


def test_networks_are_listed_by_their_folders_and_copies_beside_them_are_none(tmp_path):
    ours = ["a/round-03-step-000034/reinit", "b/q90-step-1234567/é", "b/q97.5-step-000034/ticket"]
    others = ["b/q97.5-step-000034.bak/ticket", "b/q97.5-step-000034/ticket.old", "b/q97.5-step-34/ticket", "b/masks/q90"]
    others += ["train/snapshots/ticket", "b/round-3-step-000034/ticket", "b/copy of q90-step-000034/ticket"]
    touch(tmp_path, *(f"{name}/result.json" for name in (*ours, *others)), "b/q50-step-000034/file")
    replicate = Replicate(tmp_path)

    found = replicate.networks()

    assert [network.folder for network in found] == [tmp_path / name for name in ours]
    assert [replicate.family_of(network) for network in found] == ["a", "b", "b"]
    assert [replicate.ticket_name(network) for network in found] == [
        "a/round-03-step-000034 reinit",
        "b/q90-step-1234567 é",
        "b/q97.5-step-000034",
    ]
    assert replicate.tables() == [network.result for network in found]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("train/snapshots/step-000034.h5", "train/result.json"),
        ("train/result.json", "train/result.json"),
        ("own/masks/q97.5.h5", "own/masks/q97.5.json"),
        ("own/q97.5-step-000034/ticket/final.h5", "own/q97.5-step-000034/ticket/result.json"),
        # Whatever a user calls a control or a family:
        ("own/q97.5-step-000034/masks/final.h5", "own/q97.5-step-000034/masks/result.json"),
        ("masks/q90-step-000034/ticket/final.h5", "masks/q90-step-000034/ticket/result.json"),
        ("masks/masks/q90.h5", "masks/masks/q90.json"),
    ],
)
def test_every_output_has_the_table_that_stands_for_it(name, table):
    replicate = Replicate(Path("run/replicate-1"))

    assert replicate.table_of(replicate.folder / name) == replicate.folder / table
    assert replicate.name_of(replicate.folder / name) == name


@pytest.mark.parametrize(
    ("outputs", "made_from", "mask"),
    [
        (["own/q90-step-000000/ticket/final.h5"], ["own/masks/q90.h5", "train/snapshots/step-000000.h5"], "own/masks/q90.h5"),
        (["own/q90-step-000000/ticket/mask.h5"], ["own/masks/q90.h5"], "own/q90-step-000000/ticket/mask.h5"),
        (["own/q90-step-000000/masks/final.h5"], ["own/q90-step-000000/masks/final.h5"], None),
        (
            [],
            ["own/masks/round-03-step-000034.h5", "own/round-02-step-000034/ticket/final.h5"],
            "own/masks/round-03-step-000034.h5",
        ),
        (["train/snapshots/step-000000.h5"], ["records", "network"], None),
    ],
)
def test_a_result_says_under_which_mask_its_network_was_trained(outputs, made_from, mask):
    named = {"outputs": dict.fromkeys(outputs, ""), "made_from": dict.fromkeys(made_from, "")}
    result = Result.model_validate({"status": "done", "replicate": 1, "steps_per_epoch": 45, "epochs": 1.0, **named})
    replicate = Replicate(Path("run/replicate-1"))

    assert replicate.mask_of(result) == (mask and replicate.folder / mask)


def test_what_a_finished_training_leaves_over_is_cleared(tmp_path):
    network = NetworkFiles(tmp_path)
    network.clear()
    touch(tmp_path, "checkpoint.h5", "attempt.json", "result.json", "final.h5")

    network.clear()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["final.h5", "result.json"]


def test_before_there_is_a_table_nothing_is_said(tmp_path):
    assert NetworkFiles(tmp_path).read_result() is None
    assert not NetworkFiles(tmp_path).is_finished
    assert MaskFiles(tmp_path, "q90").read() is None
    assert Replicate(tmp_path).origins() == {}
