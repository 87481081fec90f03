"""Measurements in which something is learnt."""

from pathlib import Path
from typing import Annotated

import typer

from lottery.bench.commands.options import (
    LEARNABLE,
    JsonOption,
    OutOption,
    QuickOption,
    RecipeOption,
    SetOption,
    conclude,
    measured,
    pick,
    repeats_of,
)

RecordsOption = Annotated[
    Path | None, typer.Option("--records", metavar="DIR", help="Prepared set to train on; else the recipe's, or the digits.")
]


def grid(
    recipe: RecipeOption = None,
    set_: SetOption = None,
    records: RecordsOption = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Repeatable.", show_default="32 .. 256")] = None,
    rate: Annotated[list[float] | None, typer.Option(help="Repeatable.", show_default="0.0125 .. 0.4")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Trainings of each.", show_default="3")] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Accuracy over batch size and learning rate."""
    from lottery.bench.grid import bench_grid
    from lottery.progress import Reporter

    wanted = measured(recipe, [*(set_ or []), *(["train.epochs=1", "train.warmup=0"] if quick else [])], LEARNABLE)
    batches = batch or ([64, 128] if quick else [32, 64, 128, 256])
    rates = rate or ([0.05, 0.1] if quick else [0.0125, 0.025, 0.05, 0.1, 0.2, 0.4])
    sheet, failed = bench_grid(wanted, records, batches, rates, pick(seeds, 3, 1, quick), quick, Reporter())
    conclude(sheet, as_json, out, failed)


RACE = {
    "name": "race-cifar10",
    "data": {
        "source": "tfds:cifar10",
        "size": 32,
        "validation": 0.02,
        "crop": 4,
        "flip": True,
        "mean": [0.4914, 0.4822, 0.4465],
        "deviation": [0.247, 0.2435, 0.2616],
    },
    "model": {"name": "resnet9", "whitening": True, "activation": "gelu", "initializer": "he_normal"},
    "train": {
        "epochs": 10,
        "batch": 512,
        "learning_rate": 0.4,
        "schedule": "linear",
        "warmup": "2ep",
        "label_smoothing": 0.2,
        "ema": 0.99,
        "precision": "mixed_bfloat16",
        "threads": 2,
    },
}
SHORT_RACE = ("data.source=digits", "data.size=8", "data.crop=1", "data.validation=0.2", "train.epochs=2", "train.batch=64")


def race(
    recipe: Annotated[
        Path | None, typer.Option("--recipe", metavar="TOML", help="Network, images and training; else ResNet-9 on CIFAR-10.")
    ] = None,
    set_: SetOption = None,
    records: RecordsOption = None,
    target: Annotated[float, typer.Option(help="Test accuracy to come to, in per cent.")] = 94,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings.")] = 1,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Then again to the end, each technique left out and other values tried in turn.")
    ] = False,
    vary: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="As --ablate, with this change to the recipe; repeatable.")
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """How long a training takes to a test accuracy, and what its parts are worth."""
    from lottery.bench import ablation
    from lottery.bench.race import bench_race
    from lottery.progress import Reporter

    short = SHORT_RACE if quick and not recipe else ["train.epochs=2", "train.warmup=0"] if quick else []
    wanted = measured(recipe, [*short, *(set_ or [])], RACE)
    if ablate or vary:
        changes = vary or ablation.ablations(wanted)[: 2 if quick else None]
        sheet, failed = ablation.bench_ablation(wanted, records, target, changes, seeds, quick, as_json, Reporter())
    else:
        sheet, failed = bench_race(wanted, records, target, seeds, as_json, Reporter())
    conclude(sheet, as_json, out, failed)


def scaling(
    recipe: RecipeOption = None,
    set_: SetOption = None,
    records: RecordsOption = None,
    devices: Annotated[int, typer.Option(min=0, help="Up to so many; 0: all GPUs, or as many as there are cores.")] = 0,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Of each; repeatable.", show_default="50 .. 250")] = None,
    repeats: Annotated[int | None, repeats_of(5)] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """An epoch by 1, 2 .. n devices: seconds, speed-up, efficiency, accuracy."""
    from lottery.bench.measure import cores, machine
    from lottery.bench.scaling import bench_scaling
    from lottery.progress import Reporter

    most = devices or len(machine()["gpus"]) or cores()
    batches = batch or ([50] if quick else [50, 100, 150, 200, 250])
    sheet, failed = bench_scaling(
        measured(recipe, set_, LEARNABLE), records, most, batches, pick(repeats, 5, 1, quick), Reporter()
    )
    conclude(sheet, as_json, out, failed)
