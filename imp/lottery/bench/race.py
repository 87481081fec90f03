"""`imp bench race`: how long a training takes to a test accuracy."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import Failed, InputError
from lottery.bench import apart, measure
from lottery.bench.parts import images
from lottery.bench.sheet import Column, Lines, Sheet
from lottery.progress import Reporter, duration
from lottery.recipe import Recipe
from lottery.tables import count_of

Training = Sequence[Mapping[str, Any]]  # a row an epoch, as `trials.race` says

COLUMNS = (
    Column("seed", "seed"),
    Column("epoch", "epoch"),
    Column("train_loss", "train loss", ".4f"),
    Column("train_accuracy", "train, %", ".2f"),
    Column("test_loss", "test loss", ".4f"),
    Column("test_accuracy", "test, %", ".2f"),
    Column("averaged_accuracy", "test of the average, %", ".2f"),
    Column("seconds", "s", ",.1f"),
    Column("total_s", "s in all", ",.1f"),
)
CLOCK = "seconds are those of training: neither of compiling nor of looking at the test images"


def bench_race(
    recipe: Recipe, records: Path | None, target: float, seeds: int, quiet: bool, reporter: Reporter
) -> tuple[Sheet, list[str]]:
    """A row for each epoch of each of `seeds` trainings, which end when their test accuracy (per cent) is `target` or when
    their epochs are over; and, where they could not be measured, a name for that."""
    check_target(target)
    images.check_epochs(recipe)
    with images.at_hand(recipe, records) as (settled, folder):
        images.check_batch(settled.train.batch, folder)
        reporter.say(f"racing for {target:g} % on {subject(settled)}")
        try:
            trainings, failed = run("race", settled, folder, target, seeds, quiet), []
        except Failed as error:
            reporter.say(f"failed: {error}")
            trainings, failed = [], ["race"]
    rows = []
    for seed, training in enumerate(trainings, 1):
        total = 0.0
        for row in training:
            total += row["seconds"]
            rows.append({"seed": seed, **row, "total_s": total})
    figure = Lines("total_s", "accuracy", "seed", ("seconds of training", "test accuracy, %"), target)
    notes = [_outcome(settled, trainings, target), CLOCK]
    return Sheet("race", f"Race: {subject(settled)}", measure.machine(), COLUMNS, rows, figure, notes), failed


def check_target(target: float) -> None:
    """Raises InputError unless `target` is an accuracy in per cent."""
    if not 0 < target <= 100:
        raise InputError(f"--target {target:g} is no accuracy: write per cent, such as 94")


def subject(recipe: Recipe) -> str:
    """What is trained, and on what."""
    return f"{recipe.model.name}, {recipe.data.source} at {recipe.data.size}x{recipe.data.size}"


def run(
    name: str, recipe: Recipe, folder: Path, target: float | None, seeds: int, quiet: bool, call: apart.Call = apart.call
) -> list[Training]:
    """Trainings of `recipe` in the process that `call` asks, to their end where `target` is None. Raises Failed."""
    train = recipe.train.model_copy(update={"devices": 1})
    found = call(
        "lottery.bench.trials.race:measure_race",
        recipe=recipe.model_copy(update={"train": train}).model_dump(),
        records=str(folder.resolve()),
        name=name,
        target=target,
        seeds=seeds,
        quiet=quiet,
    )
    return list(found)


def reached(training: Training, target: float) -> tuple[int, float] | None:
    """The first epoch at whose end the accuracy was `target`, and the seconds until then; None where it never was."""
    seconds = 0.0
    for row in training:
        seconds += row["seconds"]
        if row["accuracy"] >= target:
            return row["epoch"], seconds
    return None


def _outcome(recipe: Recipe, trainings: Sequence[Training], target: float) -> str:
    there = [found for found in (reached(training, target) for training in trainings) if found]
    if not there:
        best = max((row["accuracy"] for training in trainings for row in training), default=None)
        came = "every training diverged" if best is None else f"the best came to {best:.2f} %"
        return f"{target:g} % was not reached within {count_of(recipe.train.epochs, 'epoch')}: {came}"
    epochs, seconds = (statistics.median(values) for values in zip(*there, strict=True))
    of = f" (medians of {len(there)} trainings, of {len(trainings)})" if len(trainings) > 1 else ""
    return f"{target:g} % reached in epoch {epochs:g}, after {duration(seconds)} of training{of}"
