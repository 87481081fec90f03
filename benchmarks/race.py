"""How long a training takes to a test accuracy, and what each part of it is worth: `python benchmarks/race.py [--ablate]`."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import learning
import typer
from harness import Bench, Recipe, has_texts, measurement, with_training
from learning import RecordsOption

from lottery import cli
from lottery.base.errors import InputError
from lottery.base.progress import count_of, duration
from lottery.bench.sheet import Column, bars

RECIPE = Path(__file__).parents[1] / "pipelines/race-cifar10.toml"
SHORT = ("data.source=digits", "data.size=8", "data.crop=1", "data.validation=0.2", "train.epochs=2", "train.batch=64")
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
BASE = "nothing"
ABLATION_COLUMNS = (
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
CHANGES = (  # each a technique that is as good as not there, or another value
    *("data.crop=0", "data.flip=false", "data.cutout=0", "data.resized_crop=0.0", "model.whitening=false"),
    *("train.label_smoothing=0.0", "train.ema=0.0", "train.weight_decay=0.0", "train.nesterov=false", "train.warmup=0"),
    *(
        "train.clip_norm=0.0",
        "model.activation=relu",
        "model.activation=gelu",
        "train.schedule=linear",
        "train.schedule=cosine",
    ),
)


@measurement(network=("pipelines/race-cifar10.toml", ()))
def race(
    bench: Bench,
    records: RecordsOption = None,
    target: Annotated[float, typer.Option(help="Test accuracy to come to, in per cent.")] = 94,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings.")] = 1,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Then again to the end, each technique left out and other values tried in turn.")
    ] = False,
    vary: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="As --ablate, with this change to the recipe; repeatable.")
    ] = None,
) -> None:
    """How long a training takes to a test accuracy, and what its parts are worth."""
    short = ("train.epochs=2", "train.warmup=0") if bench.recipe_file else SHORT
    bench.recipe_file = bench.recipe_file or RECIPE
    recipe = bench.recipe(*(short if bench.quick else ()))
    if not 0 < target <= 100:
        raise InputError(f"--target {target:g} is no accuracy: write per cent, such as 94")
    with learning.at_hand(recipe, records, recipe.train.batch) as (settled, folder):
        subject = learning.subject(settled)
        if ablate or vary:
            changes = vary or ablations(recipe)[: 2 if bench.quick else None]
            _ablate(bench, settled, folder, target, changes, seeds)
            return
        trainings: list[learning.Training] = []
        with bench.row(f"{subject}, to {target:g} %"):
            trainings = learning.run(bench, "race", with_training(settled, devices=1), folder, seeds=seeds, target=target)
    for seed, training in enumerate(trainings, 1):
        total = 0.0
        for row in training:
            total += row["seconds"]
            bench.rows.append({"name": f"seed {seed}, epoch {row['epoch']}", "seed": seed, **row, "total_s": total})
    figure = bars(bench.rows, "name", "accuracy", f"test {learning.metric(recipe)}, %")
    bench.sheet(f"Race: {subject}", COLUMNS, figure, outcome(recipe.train.epochs, trainings, target), learning.CLOCK)


def outcome(epochs: int, trainings: Sequence[learning.Training], target: float) -> str:
    """Whether the trainings, of so many epochs at most, came to the `target`, and when."""
    winners = learning.reached(trainings, target)
    if not winners["reached"]:
        best = max((row["accuracy"] for training in trainings for row in training), default=None)
        came = "every training diverged" if best is None else f"the best came to {best:.2f} %"
        return f"{target:g} % was not reached within {count_of(epochs, 'epoch')}: {came}"
    of = f" (medians of {winners['reached']} trainings, of {len(trainings)})" if len(trainings) > 1 else ""
    return f"{target:g} % reached in epoch {winners['epochs']:g}, after {duration(winners['seconds'])} of training{of}"


def ablations(recipe: Recipe) -> list[str]:
    """The changes to make to `recipe`: each technique left out, and other batches, activations and schedules."""
    from lottery.experiment import networks

    sizes = (f"train.batch={size}" for size in (recipe.train.batch // 2, 2 * recipe.train.batch))
    known = tuple(f"model.{key}=" for key in networks.settings(recipe.model.name))
    tables = ("train.",) if has_texts(recipe) else ("data.", "train.")  # nothing but images is varied
    usable = [change for change in (*CHANGES, *sizes) if change.startswith((*tables, *known))]
    return [change for change in usable if changed(recipe, change) != recipe]


def changed(recipe: Recipe, change: str) -> Recipe:
    """`recipe` with a `change` (KEY=VALUE). Raises InputError where it cannot be made."""
    from lottery.experiment.reading import resolve

    after = resolve(recipe.model_dump(), [change], setter="--vary")
    if after.records() != recipe.records():
        raise InputError(f"--vary {change}: that is another prepared set: give its folder with --records instead")
    return after


def _ablate(bench: Bench, recipe: Recipe, folder: Path, target: float, changes: Sequence[str], seeds: int) -> None:
    """A row for the recipe and for each of `changes` to it, trained to their end with each of `seeds` seeds."""
    for name, case in {BASE: recipe, **{change: changed(recipe, change) for change in changes}}.items():
        with bench.row(f"{name} changed, {count_of(seeds, 'seed')}"):
            trainings = learning.run(bench, name, with_training(case, devices=1), folder, seeds=seeds)
            row = {"name": name, **learning.ends(trainings, case.train.epochs), **learning.reached(trainings, target)}
            seconds = [epoch["seconds"] for training in trainings for epoch in training]
            row["epoch_s"] = statistics.median(seconds) if seconds else None
            bench.rows.append(row)
    base = next((row["accuracy"] for row in bench.rows if row["name"] == BASE), None)
    for row in bench.rows:
        row["difference"] = None if None in (base, row["accuracy"]) else row["accuracy"] - base
    bench.name = "ablation"
    bench.sheet(
        f"What each part of a race is worth: {learning.subject(recipe)}",
        ABLATION_COLUMNS,
        bars(bench.rows, "name", "difference", f"points of test {learning.metric(recipe)}, against nothing changed"),
        f"each change alone; mean test {learning.metric(recipe)} over {count_of(seeds, 'seed')} at the end "
        f"({count_of(recipe.train.epochs, 'epoch')}, where that is not what changed); test results are not for choosing by",
        f"reached: trainings that came to {target:g} % on the way, and the medians over those; {learning.CLOCK}",
    )


if __name__ == "__main__":
    cli.main(race)
