"""Trainings against the clock, in the process that is their own: rows of `imp bench race`."""

import time
from typing import Any

from lottery.bench.trials.learning import begin, make_trainer
from lottery.engine.loop import Diverged, Trainer
from lottery.progress import Reporter, duration


def measure_race(
    recipe: dict[str, Any], records: str, name: str, target: float | None, seeds: int, quiet: bool
) -> list[list[dict[str, Any]]]:
    """Train the recipe's network with each of `seeds` seeds, its epochs or until its test accuracy is `target`; a line for each
    epoch unless `quiet`. Returns a row an epoch, training by training; one that diverged ends with the epoch before.

    Seconds are those of training: neither of compiling nor of looking at the test images.
    """
    reporter = Reporter(quiet=quiet)
    trainer, settled = make_trainer(recipe, records)
    began = time.perf_counter()
    begin(trainer, settled, 0)
    trainer.advance(0, 1, 0)
    reporter.say(f"{name}: compiled in {duration(time.perf_counter() - began)}")
    trainings = []
    for seed in range(seeds):
        begin(trainer, settled, seed)
        rows: list[dict[str, Any]] = []
        try:
            while len(rows) < settled.train.epochs and not (rows and target and rows[-1]["accuracy"] >= target):
                rows.append(_epoch(trainer, len(rows), seed))
                reporter.say(f"{name}, seed {seed + 1}: {_line(rows)}")
        except Diverged as error:
            reporter.say(f"{name}, seed {seed + 1}: {error}")
        trainings.append(rows)
    return trainings


def _epoch(trainer: Trainer, epoch: int, seed: int) -> dict[str, Any]:
    """Train for one more epoch and look at the test images; `accuracy` is the one that counts: the averaged weights', where
    there are any."""
    first = epoch * trainer.steps_per_epoch
    began = time.perf_counter()
    found = trainer.advance(first, first + trainer.steps_per_epoch, order_seed=seed)
    seconds = time.perf_counter() - began
    losses, right, _ = found.T
    raw = trainer.evaluate("test", averaged=False)
    averaged = trainer.evaluate("test") if trainer.train.ema else None
    return {
        "epoch": epoch + 1,
        "seconds": seconds,
        "train_loss": float(losses.mean()),
        "train_accuracy": 100 * float(right.sum()) / (len(right) * trainer.train.batch),
        "test_loss": raw.loss,
        "test_accuracy": 100 * raw.accuracy,
        "averaged_accuracy": 100 * averaged.accuracy if averaged else None,
        "accuracy": 100 * (averaged or raw).accuracy,
    }


def _line(rows: list[dict[str, Any]]) -> str:
    last, seconds = rows[-1], sum(row["seconds"] for row in rows)
    return f"epoch {last['epoch']}: test {last['accuracy']:.2f} %, {duration(seconds)} of training"
