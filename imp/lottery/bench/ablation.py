"""`imp bench race --ablate`: what each part of a race is worth, one thing changed at a time."""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import InputError
from lottery.bench import learning
from lottery.bench.harness import Bench, Recipe, with_training
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.progress import count_of

BASE = "nothing"
COLUMNS = (
    Column("name", "changed"),
    Column("accuracy", "test, %", ".2f"),
    Column("low", "lowest", ".2f"),
    Column("high", "highest", ".2f"),
    Column("difference", "difference, points", "+.2f"),
    Column("reached", "reached"),
    Column("epochs", "epochs to target", ".1f"),
    Column("seconds", "s to target", ",.1f"),
    Column("epoch_s", "s an epoch", ",.1f"),
    Column("diverged", "diverged"),
)
LEFT_OUT = (  # each a technique that is as good as not there
    *("data.crop=0", "data.flip=false", "data.cutout=0", "data.resized_crop=0.0", "model.whitening=false"),
    *("train.label_smoothing=0.0", "train.ema=0.0", "train.weight_decay=0.0", "train.nesterov=false"),
    *("train.warmup=0", "train.clip_norm=0.0"),
)
OTHERS = (
    *("model.activation=relu", "model.activation=gelu", "model.activation=silu"),
    *("model.batchnorm_momentum=0.6", "model.batchnorm_momentum=0.9", "model.batchnorm_momentum=0.99"),
    *("train.schedule=linear", "train.schedule=cosine", "train.schedule=constant"),
    *("train.momentum=0.8", "train.momentum=0.9", "train.momentum=0.95"),
)


def sheet(bench: Bench, recipe: Recipe, folder: Path, target: float, changes: Sequence[str], seeds: int) -> Sheet:
    """A row for the recipe and for each of `changes` to it (KEY=VALUE), trained to their end with each of `seeds` seeds. Raises
    InputError for a change that cannot be made."""
    rows: list[dict[str, Any]] = []
    cases = {BASE: recipe, **{change: _changed(recipe, change) for change in changes}}
    for name, case in cases.items():
        with bench.row(f"{name} changed, {count_of(seeds, 'seed')}"):
            trainings = learning.run(bench, name, with_training(case, devices=1), folder, seeds=seeds)
            rows.append(_row(name, trainings, case.train.epochs, target))
    _compare(rows)
    found = bench.sheet(
        f"What each part of a race is worth: {learning.subject(recipe)}",
        COLUMNS,
        rows,
        Bars("name", "difference", "points of test accuracy, against nothing changed"),
        f"each change alone; accuracies at the end ({count_of(recipe.train.epochs, 'epoch')}, where that is not what changed), "
        f"means over {count_of(seeds, 'seed')}; on test images, so not for choosing by",
        f"reached: trainings that came to {target:g} % on the way, and the medians over those; {learning.CLOCK}",
    )
    return dataclasses.replace(found, name="ablation")


def ablations(recipe: Recipe) -> list[str]:
    """The changes to make to `recipe`: each technique left out, and other values of batch size, activation, momentum, schedule
    and BatchNorm."""
    from lottery.experiment import networks

    sizes = (f"train.batch={size}" for size in (recipe.train.batch // 2, 2 * recipe.train.batch) if size)
    known = tuple(f"model.{key}=" for key in networks.settings(recipe.model.name))
    usable = [change for change in (*LEFT_OUT, *sizes, *OTHERS) if change.startswith(("data.", "train.", *known))]
    return [change for change in usable if _changed(recipe, change) != recipe]


def _changed(recipe: Recipe, change: str) -> Recipe:
    from lottery.experiment.reading import resolve

    changed = resolve(recipe.model_dump(), [change], setter="--vary")
    if changed.records() != recipe.records():
        raise InputError(f"--vary {change}: that is another prepared set: give its folder with --records instead")
    return changed


def _row(name: str, trainings: Sequence[learning.Training], epochs: int, target: float) -> dict[str, Any]:
    winners = [winner for training in trainings if (winner := learning.reached(training, target))]
    seconds = [row["seconds"] for training in trainings for row in training]
    return {
        "name": name,
        **learning.ends(trainings, epochs),
        "reached": len(winners),
        "epochs": statistics.median(epoch for epoch, _ in winners) if winners else None,
        "seconds": statistics.median(total for _, total in winners) if winners else None,
        "epoch_s": statistics.median(seconds) if seconds else None,
    }


def _compare(rows: Sequence[dict[str, Any]]) -> None:
    """Add to each row how much better it is than the one in which nothing was changed."""
    base = next((row["accuracy"] for row in rows if row["name"] == BASE), None)
    for row in rows:
        known = row["accuracy"] is not None and base is not None
        row["difference"] = row["accuracy"] - base if known else None
