"""`imp bench race`: how long a training takes to a test accuracy; with --ablate, what each part of it is worth."""

import statistics
from collections.abc import Sequence
from typing import Annotated

import typer

from data_prep.errors import InputError
from lottery.bench import ablation, learning
from lottery.bench.harness import Bench, Network, RecordsOption, measurement, with_training
from lottery.bench.sheet import Column, Lines, Sheet
from lottery.progress import count_of, duration

RESNET9: Network = (
    "ResNet-9 on CIFAR-10",
    (
        *("name=race-cifar10", "data.source=tfds:cifar10", "data.size=32", "data.validation=0.02", "data.crop=4"),
        *("data.flip=true", "data.mean=[0.4914,0.4822,0.4465]", "data.deviation=[0.247,0.2435,0.2616]"),
        *("model.name=resnet9", "model.whitening=true", "model.activation=gelu", "model.initializer=he_normal"),
        *("train.epochs=10", "train.batch=512", "train.learning_rate=0.4", "train.schedule=linear", "train.warmup=2ep"),
        *("train.label_smoothing=0.2", "train.ema=0.99", "train.precision=mixed_bfloat16", "train.threads=2"),
    ),
)
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


@measurement(network=RESNET9)
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
) -> Sheet:
    """How long a training takes to a test accuracy, and what its parts are worth."""
    short = SHORT if not bench.recipe_file else ("train.epochs=2", "train.warmup=0")
    recipe = bench.recipe(*(short if bench.quick else ()))
    if not 0 < target <= 100:
        raise InputError(f"--target {target:g} is no accuracy: write per cent, such as 94")
    with learning.at_hand(recipe, records) as (settled, folder):
        if ablate or vary:
            changes = vary or ablation.ablations(recipe)[: 2 if bench.quick else None]
            return ablation.sheet(bench, settled, folder, target, changes, seeds)
        learning.check_batch(settled.train.batch, folder)
        trainings: list[learning.Training] = []
        with bench.row(f"{learning.subject(settled)}, to {target:g} %"):
            trainings = learning.run(bench, "race", with_training(settled, devices=1), folder, seeds=seeds, target=target)
    rows = []
    for seed, training in enumerate(trainings, 1):
        total = 0.0
        for row in training:
            total += row["seconds"]
            rows.append({"seed": seed, **row, "total_s": total})
    figure = Lines("total_s", "accuracy", "seed", ("seconds of training", "test accuracy, %"), "seed", target)
    outcome = _outcome(settled.train.epochs, trainings, target)
    return bench.sheet(f"Race: {learning.subject(settled)}", COLUMNS, rows, figure, outcome, learning.CLOCK)


def _outcome(epochs: int, trainings: Sequence[learning.Training], target: float) -> str:
    winners = [winner for training in trainings if (winner := learning.reached(training, target))]
    if not winners:
        best = max((row["accuracy"] for training in trainings for row in training), default=None)
        came = "every training diverged" if best is None else f"the best came to {best:.2f} %"
        return f"{target:g} % was not reached within {count_of(epochs, 'epoch')}: {came}"
    epoch, seconds = (statistics.median(values) for values in zip(*winners, strict=True))
    of = f" (medians of {len(winners)} trainings, of {len(trainings)})" if len(trainings) > 1 else ""
    return f"{target:g} % reached in epoch {epoch:g}, after {duration(seconds)} of training{of}"
