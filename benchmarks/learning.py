"""Real examples, and trainings on them, for the measurements in which something is learnt."""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from harness import Bench, Recipe, size_of, with_training

from lottery.base.errors import InputError
from lottery.base.progress import Reporter, duration

if TYPE_CHECKING:
    from lottery.engine.loop import Trainer

RecordsOption = Annotated[
    Path | None, typer.Option("--records", metavar="DIR", help="Prepared set to train on; else the recipe's, or the digits.")
]
Training = Sequence[Mapping[str, Any]]  # a row an epoch, as `_epoch` says

CLOCK = "seconds are those of training: neither of compiling nor of looking at the test images"


@contextlib.contextmanager
def at_hand(recipe: Recipe, records: Path | None, batch: int) -> Iterator[tuple[Recipe, Path]]:
    """The recipe and the folder of its prepared set: `records`, whose settings the recipe then takes, or where the recipe looks
    for it. The digits are prepared for the moment where they are not there. Raises InputError where others are not, where they
    do not fill a `batch`, and for a recipe that counts its length in steps."""
    from data_prep.prepare import existing, prepare, settings_of
    from data_prep.records import read_manifest
    from lottery.experiment.reading import resolve
    from lottery.rundir.run import default_records

    if recipe.train.steps:
        raise InputError("train.steps is not heeded here: set it to 0, and train.epochs to the length that you want")
    with tempfile.TemporaryDirectory() as place:
        if records:
            folder, settings = records, settings_of(read_manifest(records))
            values = [f"{key}={value}" for key, value in settings.values.items()]
            recipe = resolve(recipe.model_dump(), values, setter="--records")
        else:
            settings = recipe.records()
            folder = Path(recipe.data.path) if recipe.data.path else default_records(settings)
            if settings.source == "digits" and not (folder / "manifest.json").exists():
                folder = Path(place, "digits")
                prepare(settings, folder)
            existing(settings, folder)
        check_batch(batch, folder)
        yield recipe, folder.resolve()


def check_batch(batch: int, folder: Path) -> None:
    """Raise InputError where the training examples of a prepared set do not fill one batch."""
    from data_prep.records import read_manifest

    manifest = read_manifest(folder)
    count, noun = manifest.count("train"), "examples" if manifest.fields else "images"
    if batch > count:
        raise InputError(f"a batch of {batch:,} is more than the {count:,} training {noun}: take a smaller one")


def subject(recipe: Recipe) -> str:
    """What is trained, on what, and what is measured unless it is accuracy."""
    by = "" if metric(recipe) == "accuracy" else f", by {metric(recipe)}"
    return f"{recipe.model.name}, {recipe.data.source} at {size_of(recipe)}{by}"


def metric(recipe: Recipe) -> str:
    """The name of what is called accuracy in rows: of the metric by which networks are compared."""
    from lottery.experiment import tasks
    from lottery.rundir import wording

    return wording.title(tasks.deciding(recipe.task))


def run(bench: Bench, name: str, recipe: Recipe, folder: Path, alone: bool = False, **how: Any) -> list[Training]:
    """As `train_all`, in a process. Raises Failed, and InputError where no batch is filled."""
    check_batch(recipe.train.batch, folder)
    return bench.call(train_all, alone, recipe=recipe, folder=folder, name=name, quiet=bench.as_json, **how)


def train_all(
    recipe: Recipe, folder: Path, name: str, quiet: bool, seeds: int = 1, split: str = "test", target: float | None = None
) -> list[Training]:
    """Train the recipe's network with each of `seeds` seeds, its epochs or until the metric of `split` that decides is `target`
    per cent; a line for each epoch unless `quiet`. One that diverged ends with the epoch before."""
    from data_prep.records import read_manifest
    from lottery.engine import assembly, devices, events
    from lottery.engine.loop import Diverged, Trainer
    from lottery.experiment.seeds import derive

    recipe = with_training(recipe, evaluate="1ep", checkpoint_seconds=1e9, checkpoint_steps=0)
    reporter = Reporter(quiet=quiet)
    names = devices.set_up_tensorflow(recipe.train)
    trainer = Trainer(recipe, names, partial(assembly.make_feed, folder, read_manifest(folder), recipe.data, devices=names))
    began = time.perf_counter()
    trainer.load(trainer.begun(derive(recipe.seed, 1, "initialisation")))
    trainer.advance(0, 1, 0)
    reporter.say(f"{name}: compiled in {duration(time.perf_counter() - began)}")
    trainings: list[Training] = []
    for seed in range(seeds):
        trainer.load(trainer.begun(derive(recipe.seed, seed + 1, "initialisation")))
        rows: list[dict[str, Any]] = []
        try:
            for reached in events.run(trainer, 0, recipe.train.epochs * trainer.steps_per_epoch, seed):
                if not reached.evaluated:
                    continue
                rows.append(_epoch(trainer, reached.evaluated[0], split))
                spent, accuracy = duration(sum(row["seconds"] for row in rows)), rows[-1]["accuracy"]
                reporter.say(f"{name}, seed {seed + 1}: epoch {len(rows)}: {split} {accuracy:.2f} %, {spent} of training")
                if target and accuracy >= target:
                    break
        except Diverged as divergence:
            reporter.say(f"{name}, seed {seed + 1}: {divergence}")
        trainings.append(rows)
    return trainings


def _epoch(trainer: "Trainer", row: Mapping[str, Any], split: str) -> dict[str, Any]:
    """The row of one epoch. Accuracies are the deciding metric, in per cent; `accuracy` is the one that counts: the averaged
    weights', where there are any."""
    deciding = trainer.task.metrics[0]
    images, accuracy = trainer.steps_per_epoch * trainer.train.batch, 100 * row[f"{split}_{deciding}"]
    raw = trainer.evaluate(split, averaged=False) if trainer.train.ema else None
    return {
        "epoch": round(row["epoch"]),
        "seconds": images / row["timing"]["images_per_second"],
        "images": images,
        "train_loss": row["train_loss"],
        "train_accuracy": 100 * row[f"train_{deciding}"],
        "test_loss": raw.loss if raw else row[f"{split}_loss"],
        "test_accuracy": 100 * raw.deciding if raw else accuracy,
        "averaged_accuracy": accuracy if raw else None,
        "accuracy": accuracy,
    }


def ends(trainings: Sequence[Training], epochs: int) -> dict[str, Any]:
    """Columns of the accuracies at the end, in the mean, and of how many trainings diverged."""
    last = [training[-1]["accuracy"] for training in trainings if len(training) == epochs]
    mean = sum(last) / len(last) if last else None
    spread = {"low": min(last, default=None), "high": max(last, default=None)}
    return {"accuracy": mean, **spread, "diverged": len(trainings) - len(last)}


def reached(trainings: Sequence[Training], target: float) -> dict[str, Any]:
    """Columns of how many trainings came to the accuracy `target`, and in the median of those, after how many epochs and
    seconds."""
    winners = []
    for training in trainings:
        epoch = next((index for index, row in enumerate(training, 1) if row["accuracy"] >= target), None)
        if epoch:
            winners.append((epoch, sum(row["seconds"] for row in training[:epoch])))
    epochs, seconds = (map(statistics.median, zip(*winners, strict=True))) if winners else (None, None)
    return {"reached": len(winners), "epochs": epochs, "seconds": seconds}
