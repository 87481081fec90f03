"""Accuracy over batch size and learning rate: `python benchmarks/grid.py`."""

import itertools
import math
from typing import Annotated

import learning
import typer
from harness import LEARNABLE, Bench, measurement, with_training
from learning import RecordsOption

from lottery import cli
from lottery.base.errors import InputError
from lottery.base.progress import count_of
from lottery.bench.sheet import Column, bars
from lottery.rundir.wording import worded

COLUMNS = (
    Column("batch", "batch"),
    Column("learning_rate", "learning rate", "g"),
    Column("accuracy", "validation, %", ".2f"),
    Column("low", "lowest", ".2f"),
    Column("high", "highest", ".2f"),
    Column("diverged", "diverged"),
)


@measurement(network=LEARNABLE)
def grid(
    bench: Bench,
    records: RecordsOption = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Repeatable.", show_default="32 .. 256")] = None,
    rate: Annotated[list[float] | None, typer.Option(help="Repeatable.", show_default="0.0125 .. 0.4")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Trainings of each.", show_default="3")] = None,
) -> None:
    """Accuracy over batch size and learning rate."""
    recipe = bench.recipe(*(("train.epochs=1", "train.warmup=0") if bench.quick else ()))
    batches = batch or ([64, 128] if bench.quick else [32, 64, 128, 256])
    rates = rate or ([0.05, 0.1] if bench.quick else [0.0125, 0.025, 0.05, 0.1, 0.2, 0.4])
    count = bench.pick(seeds, 3, 1)
    for learning_rate in rates:
        if not 0 < learning_rate < math.inf:
            raise InputError(f"--rate {learning_rate:g} is no learning rate: give a number above 0, such as 0.05")
    with learning.at_hand(recipe, records, min(batches)) as (settled, folder):
        for size, learning_rate in itertools.product(batches, rates):
            name = f"batch {size}, learning rate {learning_rate:g}"
            with bench.row(name):
                recipe_of_cell = with_training(settled, batch=size, learning_rate=learning_rate, devices=1)
                trainings = learning.run(bench, name, recipe_of_cell, folder, seeds=count, split="validation")
                row = {"name": name, "batch": size, "learning_rate": learning_rate}
                bench.rows.append(row | learning.ends(trainings, recipe_of_cell.train.epochs))
    metric = learning.metric(recipe)
    title = f"{worded('{Metric}', metric)} after {count_of(recipe.train.epochs, 'epoch')}: {learning.subject(settled)}"
    note = f"means over {count_of(count, 'seed')}, of those trainings that did not diverge; the last epoch's, not the best"
    bench.sheet(title, COLUMNS, bars(bench.rows, "name", "accuracy", f"validation {metric}, %", spread=True), note)


if __name__ == "__main__":
    cli.main(grid)
