"""Tickets trained one at a time, by ranks, and in bundles, by one rank and by all: `python benchmarks/bundle.py`."""

import statistics
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated

import turns
import typer
from harness import MOBILENET, STILL, Bench, Recipe, duration, measurement, size_of, with_training

from lottery import cli
from lottery.base.errors import InputError
from lottery.base.progress import count_of
from lottery.bench import timing
from lottery.bench.process import Process
from lottery.bench.sheet import Column, bars

COLUMNS = (
    Column("title", ""),
    *duration("ms_per_step", "ms a ticket's step", ",.3f"),
    Column("tickets_per_hour", "tickets/h of 50,000 steps", ",.1f"),
    Column("ratio", "of one at a time", ".2f"),
    Column("mb", "MB", ",.0f"),
)
STEPS = 50_000  # of a training
ALONE = "one at a time"


@measurement(repeats=7, network=MOBILENET)
def bundle(
    bench: Bench,
    tickets: Annotated[str, typer.Option(help="Sizes of bundles, such as 1,4,20.")] = "1,4,20",
    ranks: Annotated[int, typer.Option(min=0, help="Ranks at the same time, beside one; 0: one for each core.")] = 0,
) -> None:
    """Steps of tickets one at a time and in bundles, by one process and by several."""
    try:
        sizes = [int(size) for size in tickets.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise InputError(f"--tickets {tickets!r} is not a list of sizes: write 1,4,20")
    recipe = with_training(bench.recipe(), **STILL)
    counts = [1] if bench.quick else sorted({1, ranks or timing.cores()})
    for count in counts:
        for size in sizes[:2] if bench.quick else sizes:
            title = _title(count, size)
            with bench.row(title):
                measured = _at_once(recipe, count, size, bench.repeats)
                each = [1000 * seconds / (count * size) for seconds in measured[0]]
                hourly = 3.6e6 / statistics.median(each) / STEPS
                row = {"title": title, **timing.spread("ms_per_step", each), "tickets_per_hour": hourly}
                bench.rows.append(row | {"mb": measured[1] / 1e6})
    slowest = next((row["ms_per_step"] for row in bench.rows if row["title"] == ALONE), None)
    for row in bench.rows:
        row["ratio"] = slowest and slowest / row["ms_per_step"]
    bench.sheet(
        f"Tickets in bundles: {recipe.model.name}, {size_of(recipe)}, batch {recipe.train.batch}",
        COLUMNS,
        bars(bench.rows, "title", "ms_per_step", "ms a ticket's step", spread=True),
        "a random half of each kernel is pruned; images of noise, in memory; MB: what all processes took more in training",
        f"medians of {count_of(bench.repeats, 'run')} of each, one after another",
    )


def _title(ranks: int, size: int) -> str:
    each = ALONE if size == 1 else f"bundles of {size}"
    return each if ranks == 1 else f"{count_of(ranks, 'rank')}, {each}"


def _at_once(recipe: Recipe, ranks: int, size: int, repeats: int) -> tuple[list[float], float]:
    """By so many processes at the same time: seconds of a step, of each run, and the bytes that all take."""

    def measured(rank: int) -> tuple[list[float], int]:
        with Process() as process:
            return process.call(time_bundle, recipe=recipe, tickets=size, cores=cores, repeats=repeats)

    cores = max(1, timing.cores() // ranks)
    with ThreadPoolExecutor(ranks) as pool:
        walls, taken = zip(*pool.map(measured, range(ranks)), strict=True)
    return [statistics.fmean(of_all) for of_all in zip(*walls, strict=True)], sum(taken)


def time_bundle(recipe: Recipe, tickets: int, cores: int, repeats: int) -> tuple[list[float], int]:
    """Seconds of a step of so many tickets in one bundle, of each run, and the bytes that training takes."""
    import loops

    from lottery.engine import devices
    from lottery.engine.bundle import sizes

    names = devices.set_up_tensorflow(recipe.train, cores)
    trainer = loops.on_noise(recipe, names, images=32 * recipe.train.batch)(masked=True)
    with timing.peak_memory(names[0]) as taken:
        if tickets > 1 and (obstacle := sizes.obstacle(trainer)):
            raise InputError(f"{recipe.model.name} cannot train in a bundle: {obstacle}")
        take = loops.stepping(trainer) if tickets == 1 else sizes.stepping(trainer, tickets)
        count = turns.lasting(take, turns.RUN_SECONDS, most=trainer.steps_per_epoch)
        return [seconds / count for seconds in turns.runs(partial(take, count), repeats)], taken()


if __name__ == "__main__":
    cli.main(bundle)
