"""Real images, and trainings on them, for the measurements in which something is learnt."""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.errors import InputError
from lottery.bench.harness import Bench, Recipe
from lottery.progress import Reporter, duration

if TYPE_CHECKING:
    import numpy as np

    from lottery.engine.loop import Trainer

Training = Sequence[Mapping[str, Any]]  # a row an epoch, as `_epoch` says

CLOCK = "seconds are those of training: neither of compiling nor of looking at the test images"


@contextlib.contextmanager
def at_hand(recipe: Recipe, records: Path | None) -> Iterator[tuple[Recipe, Path]]:
    """The recipe and the folder of its prepared set: `records`, whose settings the recipe then takes, or where the recipe looks
    for it. The digits are prepared for the moment where they are not there. Raises InputError where others are not, and for a
    recipe that counts its length in steps."""
    from data_prep.prepare import existing, prepare, settings_of
    from data_prep.records import read_manifest
    from lottery.experiment.reading import resolve
    from lottery.rundir.run import default_records

    if recipe.train.steps:
        raise InputError("train.steps is not heeded here: set it to 0, and train.epochs to the length that you want")
    if records:
        values, data = recipe.model_dump(), dataclasses.asdict(settings_of(read_manifest(records)))
        yield resolve(values | {"data": {**values["data"], **data}}), records.resolve()
        return
    settings = recipe.records()
    folder = Path(recipe.data.path) if recipe.data.path else default_records(settings)
    with tempfile.TemporaryDirectory() as place:
        if settings.source == "digits" and not (folder / "manifest.json").exists():
            folder = Path(place, "digits")
            prepare(settings, folder)
        existing(settings, folder)
        yield recipe, folder.resolve()


def check_batch(batch: int, folder: Path) -> None:
    """Raise InputError where the training images of a prepared set do not fill one batch."""
    from data_prep.records import read_manifest

    images = read_manifest(folder).count("train")
    if batch > images:
        raise InputError(f"a batch of {batch:,} is more than the {images:,} training images: take a smaller one")


def subject(recipe: Recipe) -> str:
    """What is trained, and on what."""
    return f"{recipe.model.name}, {recipe.data.source} at {recipe.data.size}x{recipe.data.size}"


def run(bench: Bench, name: str, recipe: Recipe, folder: Path, alone: bool = False, **how: Any) -> list[Training]:
    """As `train_all`, in a process. Raises Failed, and InputError where no batch is filled."""
    check_batch(recipe.train.batch, folder)
    return bench.call(train_all, alone, recipe=recipe, folder=folder, name=name, quiet=bench.as_json, **how)


def train_all(
    recipe: Recipe, folder: Path, name: str, quiet: bool, seeds: int = 1, split: str = "test", target: float | None = None
) -> list[Training]:
    """Train the recipe's network with each of `seeds` seeds, its epochs or until its accuracy of `split` is `target` per cent;
    a line for each epoch unless `quiet`. One that diverged ends with the epoch before."""
    from data_prep.records import read_manifest
    from lottery.engine import assembly, devices
    from lottery.engine.loop import Diverged, Trainer
    from lottery.experiment.seeds import derive

    reporter = Reporter(quiet=quiet)
    names = devices.set_up_tensorflow(recipe.train)
    feed = partial(assembly.make_feed, folder, read_manifest(folder), recipe.data, devices=names)
    trainer = Trainer(recipe, names, feed)
    began = time.perf_counter()
    trainer.load(trainer.drawn(derive(recipe.seed, 1, "initialisation")))
    trainer.advance(0, 1, 0)
    reporter.say(f"{name}: compiled in {duration(time.perf_counter() - began)}")
    trainings: list[Training] = []
    for seed in range(seeds):
        trainer.load(trainer.drawn(derive(recipe.seed, seed + 1, "initialisation")))
        rows: list[dict[str, Any]] = []
        try:
            while len(rows) < recipe.train.epochs and not (rows and target and rows[-1]["accuracy"] >= target):
                rows.append(_epoch(trainer, len(rows), seed, split))
                spent, accuracy = duration(sum(row["seconds"] for row in rows)), rows[-1]["accuracy"]
                reporter.say(f"{name}, seed {seed + 1}: epoch {len(rows)}: {split} {accuracy:.2f} %, {spent} of training")
        except Diverged as error:
            reporter.say(f"{name}, seed {seed + 1}: {error}")
        trainings.append(rows)
    return trainings


def _epoch(trainer: "Trainer", epoch: int, seed: int, split: str) -> dict[str, Any]:
    """Train for one more epoch and look at the images of `split`; `accuracy`, in per cent, is the one that counts: the averaged
    weights', where there are any."""
    began = time.perf_counter()
    losses, right, _ = train_epoch(trainer, epoch, seed).T
    seconds = time.perf_counter() - began
    images = len(right) * trainer.train.batch
    raw = trainer.evaluate(split, averaged=False)
    averaged = trainer.evaluate(split) if trainer.train.ema else None
    return {
        "epoch": epoch + 1,
        "seconds": seconds,
        "images": images,
        "train_loss": float(losses.mean()),
        "train_accuracy": 100 * float(right.sum()) / images,
        "test_loss": raw.loss,
        "test_accuracy": 100 * raw.accuracy,
        "averaged_accuracy": 100 * averaged.accuracy if averaged else None,
        "accuracy": 100 * (averaged or raw).accuracy,
    }


def train_epoch(trainer: "Trainer", epoch: int, seed: int) -> "np.ndarray":
    """What `Trainer.advance` says of the epoch's steps."""
    first = epoch * trainer.steps_per_epoch
    return trainer.advance(first, first + trainer.steps_per_epoch, order_seed=seed)


def ends(trainings: Sequence[Training], epochs: int) -> dict[str, Any]:
    """Columns of the accuracies at the end, in the mean, and of how many trainings diverged."""
    last = [training[-1]["accuracy"] for training in trainings if len(training) == epochs]
    mean = sum(last) / len(last) if last else None
    spread = {"low": min(last, default=None), "high": max(last, default=None)}
    return {"accuracy": mean, **spread, "diverged": len(trainings) - len(last)}


def reached(training: Training, target: float) -> tuple[int, float] | None:
    """The first epoch at whose end the accuracy was `target`, and the seconds until then; None where it never was."""
    seconds = 0.0
    for row in training:
        seconds += row["seconds"]
        if row["accuracy"] >= target:
            return row["epoch"], seconds
    return None
