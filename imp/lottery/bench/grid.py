"""`imp bench grid`: accuracy over batch size and learning rate, each batch size in a process of its own."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import Failed, InputError
from lottery.bench import apart, measure
from lottery.bench.parts import images
from lottery.bench.sheet import Column, Heat, Sheet
from lottery.progress import Reporter
from lottery.recipe import Recipe
from lottery.tables import count_of

COLUMNS = (
    Column("batch", "batch"),
    Column("learning_rate", "learning rate", "g"),
    Column("accuracy", "validation, %", ".2f"),
    Column("low", "lowest", ".2f"),
    Column("high", "highest", ".2f"),
    Column("diverged", "diverged"),
)


def bench_grid(
    recipe: Recipe,
    records: Path | None,
    batches: Sequence[int],
    rates: Sequence[float],
    seeds: int,
    quick: bool,
    reporter: Reporter,
) -> tuple[Sheet, list[str]]:
    """A row for each batch and learning rate, the mean over those seeds that did not diverge, and the names of the batches that
    could not be measured. Raises InputError for what is no learning rate, and where no batch is filled."""
    images.check_epochs(recipe)
    for rate in rates:
        if not 0 < rate < math.inf:
            raise InputError(f"--rate {rate:g} is no learning rate: give a number above 0, such as 0.05")
    rows: list[dict[str, Any]] = []
    failed = []
    with images.at_hand(recipe, records) as (settled, folder), apart.calling(together=quick) as call:
        images.check_batch(min(batches), folder)
        for batch in batches:
            name = f"batch {batch}"
            reporter.say(f"measuring {name}, {len(rates)} learning rates, {count_of(seeds, 'seed')}")
            train = settled.train.model_copy(update={"batch": batch, "devices": 1})
            values = settled.model_copy(update={"train": train}).model_dump()
            try:
                images.check_batch(batch, folder)
                found = call(
                    "lottery.bench.trials.learning:measure_rates",
                    recipe=values,
                    records=str(folder.resolve()),
                    rates=list(rates),
                    count=seeds,
                )
            except (Failed, InputError) as error:
                reporter.say(f"failed: {name}: {error}")
                failed.append(name)
                continue
            rows += [_row(batch, rate, [one["accuracy"] for one in found if one["learning_rate"] == rate]) for rate in rates]
    epochs = count_of(recipe.train.epochs, "epoch")
    title = f"Accuracy after {epochs}: {recipe.model.name}, {recipe.data.source} at {recipe.data.size}x{recipe.data.size}"
    notes = [f"means over {count_of(seeds, 'seed')}, of those trainings that did not diverge; the last epoch's, not the best"]
    figure = Heat("learning_rate", "batch", "accuracy", ("learning rate", "batch", "validation accuracy, %"))
    return Sheet("grid", title, measure.machine(), COLUMNS, rows, figure, notes), failed


def _row(batch: int, rate: float, accuracies: Sequence[float | None]) -> dict[str, Any]:
    reached = [100 * accuracy for accuracy in accuracies if accuracy is not None]
    return {
        "batch": batch,
        "learning_rate": rate,
        "accuracy": statistics.fmean(reached) if reached else None,
        "low": min(reached, default=None),
        "high": max(reached, default=None),
        "diverged": len(accuracies) - len(reached),
    }
