"""What a mask that changes in training adds to the time of its steps: `python benchmarks/updates.py`."""

import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import turns
import typer
from harness import MOBILENET, STILL, Bench, Recipe, duration, measurement, size_of, with_training

from lottery import cli
from lottery.base.progress import Reporter
from lottery.bench import timing
from lottery.bench.sheet import Column, bars

if TYPE_CHECKING:
    from lottery.engine.loop import Trainer
    from lottery.pruning.updates import Updates

LONG = 1 << 40  # steps, so that as much is replaced as at first
STATIC = "a mask that stays"
METHODS: "dict[Updates, str]" = {"none": STATIC, "set": "SET", "rigl": "RigL", "gmp": "GMP"}
COLUMNS = (
    Column("name", ""),
    *duration("ms_per_step", "ms/step", ",.2f"),
    Column("overhead", "more than static", "+.1%"),
)


@measurement(repeats=15, network=MOBILENET)
def updates(
    bench: Bench, every: Annotated[int, typer.Option(min=2, metavar="STEPS", help="Steps between two changes.")] = 100
) -> None:
    """Steps under a mask that stays, and under one that SET, RigL or GMP changes."""
    recipe = with_training(bench.recipe(), **STILL)
    every = bench.pick(None, every, 4)
    with bench.row(recipe.model.name):
        walls = bench.call(time_updates, recipe=recipe, every=every, repeats=bench.repeats)
        for name, seconds in walls.items():
            row = {"name": name, **timing.spread("ms_per_step", [1000 * wall / every for wall in seconds])}
            ratios = [wall / static for wall, static in zip(seconds, walls[STATIC], strict=True)]
            bench.rows.append({**row, "overhead": None if name == STATIC else statistics.median(ratios) - 1})
    bench.sheet(
        f"A mask that changes every {every} steps: {recipe.model.name}, {size_of(recipe)}",
        COLUMNS,
        bars(bench.rows, "name", "ms_per_step", "ms a step", spread=True),
        "half of each kernel is kept; the largest share that the default replaces; all in turn, medians of ratios to static",
        bench.medians,
    )


def time_updates(recipe: Recipe, every: int, repeats: int) -> turns.Walls:
    """Seconds of `every` steps, the change before the first of them included, by name, of each run."""
    import loops

    from lottery.engine import devices

    names = devices.set_up_tensorflow(recipe.train)
    trainer = loops.on_noise(recipe, names, images=2 * every * recipe.train.batch)(masked=True)
    stretches = itertools.count(step=every)
    work = {name: _stretch(trainer, stretches, every, method) for method, name in METHODS.items()}
    return turns.in_turn(work, repeats, Reporter(quiet=True))


def _stretch(trainer: "Trainer", stretches: Iterator[int], every: int, method: "Updates") -> Callable[[], None]:
    """A function that takes the next `every` steps, with the change of the mask that comes before them."""
    from lottery.engine.updates import MaskUpdates
    from lottery.pruning.criteria import magnitude
    from lottery.pruning.cut import Method
    from lottery.pruning.updates import Schedule

    until = 10 * every if method == "gmp" else LONG
    schedule = Schedule(method, every, 0, until, drop_fraction=0.3)
    total = sum(kept.size for kept in trainer.mask().values())
    change = MaskUpdates(schedule, 0, total // 2, Method(magnitude), seed=0, macs=lambda mask: None)

    def take() -> None:
        first = next(stretches)
        taken = 0
        if method != "none":
            taken = len(change.change(trainer, until if method == "gmp" else first, order_seed=0))
        trainer.advance(first + taken, first + every, order_seed=0)

    return take


if __name__ == "__main__":
    cli.main(updates)
