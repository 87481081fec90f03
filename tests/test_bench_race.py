"""Races: what counts as reached, what is changed one at a time, and both run small. No test looks at a time."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from lottery import cli
from lottery.bench import learning, race
from lottery.experiment.reading import load, resolve

PIPELINES = Path(__file__).parents[1] / "pipelines"
LENET = ["--set=model.name=lenet_300_100", "--set=train.learning_rate=0.05"]
RACE = resolve({}, race.RESNET9[1])


def training(*accuracies, seconds=2.0):
    return [{"epoch": epoch, "accuracy": accuracy, "seconds": seconds} for epoch, accuracy in enumerate(accuracies, 1)]


def test_a_target_is_reached_at_the_end_of_the_first_epoch_that_has_it():
    never = training(50, 93.99)

    assert learning.reached([training(50, 94, 93), never], 94) == {"reached": 1, "epochs": 2, "seconds": 4.0}
    assert learning.reached([never, []], 94) == {"reached": 0, "epochs": None, "seconds": None}


@pytest.mark.parametrize(
    ("trainings", "said"),
    [
        ([training(50, 94)], "94 % reached in epoch 2, after 4 s of training"),
        ([training(94), training(50, 94, 95), training(1, 2)], "(medians of 2 trainings, of 3)"),
        ([training(50, 93.5)], "94 % was not reached within 10 epochs: the best came to 93.50 %"),
        ([[]], "94 % was not reached within 10 epochs: every training diverged"),
    ],
)
def test_the_outcome_is_told(trainings, said):
    assert said in race.outcome(10, trainings, 94)


def test_each_technique_is_left_out_and_others_tried_where_the_network_knows_them():
    changes = set(race.ablations(RACE))

    left_out = {"data.crop=0", "data.flip=false", "model.whitening=false", "train.ema=0.0", "train.label_smoothing=0.0"}
    assert left_out < changes
    assert {"train.batch=256", "train.batch=1024", "model.activation=relu", "train.schedule=cosine"} < changes
    assert not {"data.cutout=0", "model.activation=gelu", "train.schedule=linear"} & changes
    assert all(race.changed(RACE, change) != RACE for change in changes)
    assert not any(change.startswith("model.") for change in race.ablations(resolve({"model": {"name": "lenet_300_100"}})))


def test_ends_are_those_of_the_trainings_that_did_not_diverge():
    ends = learning.ends([training(50, 94, 92), training(60, 80, 90), training(10)], 3)

    assert ends == {"accuracy": 91, "low": 90, "high": 92, "diverged": 1}


def test_the_race_without_a_recipe_is_the_one_in_pipelines():
    assert resolve(load(PIPELINES / "race-cifar10.toml")) == RACE


def raced(capsys, *arguments):
    """What a race in this process prints, and what it says."""
    assert not cli.app(["bench", "race", "--quick", "--json", *LENET, *arguments], standalone_mode=False)
    out, said = capsys.readouterr()
    return json.loads(out), said


def test_a_race_ends_at_its_target(in_process, here, capsys):
    (row,) = raced(capsys, "--target", "20")[0]["rows"]

    assert row["accuracy"] >= 20
    assert row["averaged_accuracy"] == row["accuracy"]


def test_a_race_ends_with_its_epochs(in_process, here, monkeypatch, capsys):
    measured, _ = raced(capsys, "--target", "100", "--seeds", "2", "--out", "o")

    rows = json.loads((here / "o/race.json").read_text())["rows"]
    assert "100 % was not reached within 2 epochs: the best came to" in measured["notes"][0]
    assert [(row["seed"], row["epoch"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert rows[1]["total_s"] == rows[0]["seconds"] + rows[1]["seconds"]


def test_changes_are_raced_one_at_a_time(in_process, here, capsys):
    changes = ["--vary", "train.ema=0.0", "--vary", "train.learning_rate=1e30"]
    measured, _ = raced(capsys, "--target", "20", *changes)

    rows = {row["name"]: row for row in measured["rows"]}
    assert list(rows) == ["nothing", "train.ema=0.0", "train.learning_rate=1e30"]
    assert measured["name"] == "ablation"
    assert rows["nothing"]["difference"] == 0
    assert rows["train.ema=0.0"]["difference"] == rows["train.ema=0.0"]["accuracy"] - rows["nothing"]["accuracy"]
    diverged = rows["train.learning_rate=1e30"]
    assert [diverged[key] for key in ("accuracy", "difference", "diverged")] == [None, None, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "0"], "--target 0 is no accuracy"),
        (["--target", "nan"], "is no accuracy"),
        (["--target", "101"], "write per cent, such as 94"),
        (["--quick", "--vary", "train.emma=0"], "--vary 'train.emma=0': unknown key 'train.emma'; did you mean 'train.ema'"),
        (["--quick", "--vary", "data.size=16"], "another prepared set"),
        (["--quick", "--set", "train.steps=100"], "train.steps is not heeded here"),
        (["--quick", "--set", "train.batch=5000"], "a batch of 5,000 is more than the 1,151 training images"),
        ([], "no records in data/tfds-cifar10-32"),
    ],
)
def test_what_cannot_be_raced_is_refused(here, monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(sys, "argv", ["imp", "bench", "race", *arguments])

    with pytest.raises(SystemExit, match="2"):
        cli.main()

    assert words in capsys.readouterr().err


def test_every_race_in_pipelines_is_of_the_same_network():
    races = [resolve(load(path)) for path in PIPELINES.glob("race-*.toml")]

    assert {one.name for one in races} == {"race-cifar10", "race-cifar100", "race-imagenette"}
    assert {dataclasses.astuple(one.records())[0] for one in races} == {
        *("tfds:cifar10", "tfds:cifar100", "tfds:imagenette/160px-v2")
    }
    assert len({one.model.model_dump_json() for one in races}) == 1
