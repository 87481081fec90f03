"""Training one network in its folder: whichever write it dies at, the next attempt ends with the same files."""

import json
import math
import os
from pathlib import Path

import pytest
from helpers import contents, lenet, tiny_set

from lottery import models, training
from lottery.loop import Evaluation, Trainer
from lottery.memory import MemoryFeed
from lottery.progress import Reporter
from lottery.recipe import Data, Recipe, Train
from lottery.run import Network
from lottery.stream import StreamFeed
from lottery.tracking import Tracker

pytestmark = pytest.mark.usefixtures("tensorflow")

LAST = 18
SNAPSHOTS = (0, 2, 6, 9, LAST)
TRAIN = Train(batch=8, epochs=3, warmup="0", checkpoint_seconds=0)


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    manifest = tiny_set(folder)
    data = Data(size=8, crop=1, flip=True)
    return Trainer(
        Recipe(data=data, model=lenet(), train=TRAIN),
        ["CPU:0"],
        lambda strategy: MemoryFeed(folder, manifest, data, strategy),
    )


def attempt(trainer, folder: Path, dense: bool, last: int = LAST) -> dict:
    snapshots = {step: folder / "snapshots" / f"step-{step:06d}.h5" for step in (*SNAPSHOTS, last)} if dense else {}
    task = training.Task("tiny", lambda: models.initial_weights(lenet(), 8, 3, 0), last, 5, {"epochs": 3}, {}, snapshots)
    return training.train(trainer, task, Network(folder), Reporter(quiet=True), Tracker)


@pytest.fixture
def die_at(monkeypatch):
    """A function that lets the process die at the n-th of the moments before and after each write (0: at none); it returns
    a counter of the moments passed."""
    replace, append, unlink = os.replace, training.journal.append, Path.unlink
    moments = {"passed": 0, "last": 0}

    def moment():
        moments["passed"] += 1
        if moments["passed"] == moments["last"]:
            raise Killed

    def around(call):
        def wrapped(*arguments, **options):
            moment()
            call(*arguments, **options)
            moment()

        return wrapped

    def unlink_checkpoints(path, missing_ok=False):
        return (around(unlink) if path.name == "checkpoint.h5" else unlink)(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "replace", around(replace))
    monkeypatch.setattr(training.journal, "append", around(append))
    monkeypatch.setattr(Path, "unlink", unlink_checkpoints)

    def start(last):
        moments.update(passed=0, last=last)
        return moments

    return start


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "ticket"])
def test_whichever_write_it_dies_at_the_next_attempt_ends_with_the_same_files(trainer, tmp_path, die_at, dense):
    counter = die_at(0)
    attempt(trainer, tmp_path / "whole", dense)
    expected, count = contents(tmp_path / "whole"), counter["passed"]
    assert count > 16

    for moment in range(1, count + 1):
        folder = tmp_path / f"killed-{moment}"
        die_at(moment)
        with pytest.raises(Killed):
            attempt(trainer, folder, dense)
        die_at(0)
        if not (folder / "result.json").exists():
            attempt(trainer, folder, dense)
        assert contents(folder) == expected, f"killed at moment {moment}"
        assert not list(folder.rglob("*.tmp"))


def test_a_validation_loss_that_is_not_finite_is_divergence(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "evaluate", lambda split: Evaluation(math.nan, 0.1, 11))

    result = attempt(trainer, tmp_path, dense=False)

    assert (result["status"], result["step"]) == ("diverged", 6)
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "diverged"
    assert not (tmp_path / "final.h5").exists()


def test_the_result_says_where_validation_loss_was_least(trainer, tmp_path):
    result = attempt(trainer, tmp_path, dense=True)

    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    least = min(rows, key=lambda row: row["validation_loss"])
    assert [row["step"] for row in rows] == [6, 12, 18]
    assert result["least_validation_loss"]["step"] == least["step"]
    assert result["least_validation_loss"]["test_accuracy"] == least["test_accuracy"]
    assert result["final"]["validation_accuracy"] == rows[-1]["validation_accuracy"]


@pytest.mark.parametrize(
    "varied", [{"crop": 1, "flip": True, "cutout": 3}, {"crop": 0, "resized_crop": 0.3, "flip": True}], ids=str
)
def test_a_streamed_training_has_the_files_of_one_in_memory_also_when_it_dies(tmp_path, die_at, varied):
    folder = tmp_path / "records"
    folder.mkdir()
    manifest = tiny_set(folder, train=1100, others=300, per_shard=600)
    data = Data(size=8, shuffle=300, **varied)
    recipe = Recipe(data=data, model=lenet(), train=TRAIN.model_copy(update={"batch": 40}))
    held = Trainer(recipe, ["CPU:0"], lambda strategy: MemoryFeed(folder, manifest, data, strategy))
    streamed = Trainer(recipe, ["CPU:0"], lambda strategy: StreamFeed(folder, manifest, data, ["CPU:0"]))
    last = 3 * held.steps_per_epoch

    counter = die_at(0)
    attempt(held, tmp_path / "held", True, last)
    expected, count = contents(tmp_path / "held"), counter["passed"]
    attempt(streamed, tmp_path / "streamed", True, last)
    assert contents(tmp_path / "streamed") == expected

    for moment in range(2, count, 5):
        killed = tmp_path / f"killed-{moment}"
        die_at(moment)
        with pytest.raises(Killed):
            attempt(streamed, killed, True, last)
        die_at(0)
        attempt(streamed, killed, True, last)
        assert contents(killed) == expected, f"killed at moment {moment}"
