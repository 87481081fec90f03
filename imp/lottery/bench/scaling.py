"""`imp bench scaling`: an epoch by 1, 2 .. n devices in batches of several sizes, each in a process of its own."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import Failed, InputError
from lottery.bench import apart, measure
from lottery.bench.parts import images
from lottery.bench.sheet import Column, Lines, Sheet
from lottery.progress import Reporter
from lottery.recipe import Recipe
from lottery.tables import count_of

COLUMNS = (
    Column("devices", "devices"),
    Column("each", "batch of each"),
    Column("epoch_s", "epoch, s", ",.2f"),
    Column("low", "fastest", ",.2f"),
    Column("high", "slowest", ",.2f"),
    Column("images_per_s", "images/s"),
    Column("speed_up", "speed-up", ".2f"),
    Column("efficiency", "efficiency", ".0%"),
    Column("accuracy", "validation", ".2%"),
)


def bench_scaling(
    recipe: Recipe, records: Path | None, most: int, batches: Sequence[int], repeats: int, reporter: Reporter
) -> tuple[Sheet, list[str]]:
    """A row for each number of devices up to `most` and each batch that one of them gets, and the names of those that could not
    be measured. Speed-up and efficiency are against one device with the same batch of its own. Raises InputError where no batch
    is filled."""
    rows: list[dict[str, Any]] = []
    failed = []
    with images.at_hand(recipe, records) as (settled, folder):
        images.check_batch(min(batches), folder)
        for each in batches:
            for devices in range(1, most + 1):
                name = f"{count_of(devices, 'device')}, batch {each} each"
                reporter.say(f"measuring {name}")
                train = settled.train.model_copy(update={"devices": devices, "batch": devices * each})
                values = settled.model_copy(update={"train": train}).model_dump()
                try:
                    images.check_batch(devices * each, folder)
                    found = apart.call(
                        "lottery.bench.trials.learning:measure_epochs",
                        recipe=values,
                        records=str(folder.resolve()),
                        repeats=repeats,
                    )
                except (Failed, InputError) as error:
                    reporter.say(f"failed: {name}: {error}")
                    failed.append(name)
                    continue
                rows.append({"devices": devices, "each": each, **_figures(found)})
    _compare(rows)
    machine = measure.machine()
    notes = [
        f"medians of {repeats} epochs after one to warm up; the validation accuracy is the one after them",
        "an epoch leaves out images that do not fill a last batch, so speed-up is that of images a second",
    ]
    if not machine["gpus"]:
        notes.insert(0, "logical devices that share this machine's cores: a test of the code, not of a speed")
    title = f"Scaling over devices: {recipe.model.name}, {recipe.data.size}x{recipe.data.size}"
    figure = Lines("devices", "speed_up", "each", ("devices", "speed-up"))
    return Sheet("scaling", title, machine, COLUMNS, rows, figure, notes), failed


def _figures(found: dict[str, Any]) -> dict[str, Any]:
    seconds = found["epoch_s"]
    median = statistics.median(seconds)
    return {
        "epoch_s": median,
        "low": min(seconds),
        "high": max(seconds),
        "images_per_s": found["images"] / median,
        "accuracy": found["accuracy"],
    }


def _compare(rows: list[dict[str, Any]]) -> None:
    """Add how each row compares with that of one device."""
    alone = {row["each"]: row["images_per_s"] for row in rows if row["devices"] == 1}
    for row in rows:
        base = alone.get(row["each"])
        row["speed_up"] = None if base is None else row["images_per_s"] / base
        row["efficiency"] = None if base is None else row["speed_up"] / row["devices"]
