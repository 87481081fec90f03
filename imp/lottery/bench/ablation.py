"""`imp bench race --ablate`: what each part of a race is worth, one thing changed at a time."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import Failed, InputError
from lottery import networks
from lottery.bench import apart, measure, race
from lottery.bench.parts import images
from lottery.bench.race import Training
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.progress import Reporter
from lottery.recipe import Recipe, flat, resolve
from lottery.tables import count_of

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
OFF: dict[str, Any] = {  # with which a technique is as good as not there
    "data.crop": 0,
    "data.flip": False,
    "data.cutout": 0,
    "data.resized_crop": 0.0,
    "model.whitening": False,
    "train.label_smoothing": 0.0,
    "train.ema": 0.0,
    "train.weight_decay": 0.0,
    "train.nesterov": False,
    "train.warmup": "0",
    "train.clip_norm": 0.0,
}
OTHERS: dict[str, tuple[Any, ...]] = {
    "model.activation": ("relu", "gelu", "silu"),
    "model.batchnorm_momentum": (0.6, 0.9, 0.99),
    "train.schedule": ("linear", "cosine", "constant"),
    "train.momentum": (0.8, 0.9, 0.95),
}


def bench_ablation(
    recipe: Recipe,
    records: Path | None,
    target: float,
    changes: Sequence[str],
    seeds: int,
    quick: bool,
    quiet: bool,
    reporter: Reporter,
) -> tuple[Sheet, list[str]]:
    """A row for the recipe and for each of `changes` to it (KEY=VALUE), trained to their end with each of `seeds` seeds; and
    the names of those that could not be measured. Raises InputError for a change that cannot be made."""
    race.check_target(target)
    images.check_epochs(recipe)
    rows: list[dict[str, Any]] = []
    failed = []
    with images.at_hand(recipe, records) as (settled, folder), apart.calling(together=quick) as call:
        cases = {BASE: settled, **{change: _changed(settled, change) for change in changes}}
        for name, case in cases.items():
            reporter.say(f"racing with {name} changed, {count_of(seeds, 'seed')}")
            try:
                images.check_batch(case.train.batch, folder)
                trainings = race.run(name, case, folder, None, seeds, quiet, call)
                rows.append(_row(name, trainings, case.train.epochs, target))
            except (Failed, InputError) as error:
                reporter.say(f"failed: {name}: {error}")
                failed.append(name)
    _compare(rows)
    notes = [
        f"each change alone; accuracies at the end ({count_of(recipe.train.epochs, 'epoch')}, where that is not what changed), "
        f"means over {count_of(seeds, 'seed')}; on test images, so not for choosing by",
        f"reached: trainings that came to {target:g} % on the way, and the medians over those; {race.CLOCK}",
    ]
    title = f"What each part of a race is worth: {race.subject(settled)}"
    figure = Bars("name", "difference", "points of test accuracy, against nothing changed")
    return Sheet("ablation", title, measure.machine(), COLUMNS, rows, figure, notes), failed


def ablations(recipe: Recipe) -> list[str]:
    """The changes to make to `recipe`: each technique left out, and other values of batch size, activation, momentum, schedule
    and BatchNorm."""
    values = flat(recipe.model_dump())
    other_sizes = (recipe.train.batch // 2, 2 * recipe.train.batch)
    changes = [*OFF.items(), *(("train.batch", size) for size in other_sizes if size)]
    changes += [(key, value) for key, others in OTHERS.items() for value in others]
    unused = {key for key in values if key.startswith("model.")} - {
        f"model.{key}" for key in networks.settings(recipe.model.name)
    }
    return [f"{key}={_written(value)}" for key, value in changes if values[key] != value and key not in unused]


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _changed(recipe: Recipe, change: str) -> Recipe:
    changed = resolve(recipe.model_dump(), [change], setter="--vary")
    if changed.records() != recipe.records():
        raise InputError(f"--vary {change}: that is another prepared set: give its folder with --records instead")
    return changed


def _row(name: str, trainings: Sequence[Training], epochs: int, target: float) -> dict[str, Any]:
    ends = [training[-1]["accuracy"] for training in trainings if len(training) == epochs]
    there = [found for found in (race.reached(training, target) for training in trainings) if found]
    seconds = [row["seconds"] for training in trainings for row in training]
    return {
        "name": name,
        "accuracy": statistics.fmean(ends) if ends else None,
        "low": min(ends, default=None),
        "high": max(ends, default=None),
        "reached": len(there),
        "epochs": statistics.median(epoch for epoch, _ in there) if there else None,
        "seconds": statistics.median(total for _, total in there) if there else None,
        "epoch_s": statistics.median(seconds) if seconds else None,
        "diverged": len(trainings) - len(ends),
    }


def _compare(rows: Sequence[dict[str, Any]]) -> None:
    """Add to each row how much better it is than the one in which nothing was changed."""
    base = next((row["accuracy"] for row in rows if row["name"] == BASE), None)
    for row in rows:
        known = row["accuracy"] is not None and base is not None
        row["difference"] = row["accuracy"] - base if known else None
