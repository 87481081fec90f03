"""Trainings of which the accuracy counts too, in the process that is their own: rows of `imp bench scaling` and `grid`."""

import time
from functools import partial
from pathlib import Path
from typing import Any

from data_prep.records import read_manifest
from lottery import seeds
from lottery.engine import assembly, devices
from lottery.engine.loop import Diverged, Trainer
from lottery.recipe import Recipe, resolve


def measure_epochs(recipe: dict[str, Any], records: str, repeats: int) -> dict[str, Any]:
    """Seconds of each of `repeats` epochs after one to warm up (`epoch_s`), how many `images` it has in whole batches, and the
    validation `accuracy` after the last."""
    trainer, settled = make_trainer(recipe, records)
    begin(trainer, settled, 0)
    seconds = []
    for epoch in range(1 + repeats):
        began = time.perf_counter()
        _advance(trainer, epoch, 0)
        seconds.append(time.perf_counter() - began)
    images = trainer.steps_per_epoch * settled.train.batch
    return {"epoch_s": seconds[1:], "images": images, "accuracy": trainer.evaluate("validation").accuracy}


def measure_rates(recipe: dict[str, Any], records: str, rates: list[float], count: int) -> list[dict[str, Any]]:
    """The validation accuracy (None where it diverged) of a training of the recipe's epochs at each learning rate with each of
    `count` seeds."""
    trainer, settled = make_trainer(recipe, records)
    found = []
    for rate in rates:
        trainer.train = settled.train.model_copy(update={"learning_rate": rate})
        for seed in range(count):
            begin(trainer, settled, seed)
            try:
                for epoch in range(settled.train.epochs):
                    _advance(trainer, epoch, seed)
                accuracy = trainer.evaluate("validation").accuracy
            except Diverged:
                accuracy = None
            found.append({"learning_rate": rate, "seed": seed, "accuracy": accuracy})
    return found


def make_trainer(recipe: dict[str, Any], records: str) -> tuple[Trainer, Recipe]:
    """The trainer of a recipe on the prepared set in the folder `records`, and the recipe."""
    settled = resolve(recipe)
    names = devices.set_up_tensorflow(settled.train)
    folder = Path(records)
    feed = partial(assembly.make_feed, folder, read_manifest(folder), settled.data, devices=names)
    return Trainer(settled, names, feed), settled


def begin(trainer: Trainer, recipe: Recipe, seed: int) -> None:
    """Put the freshly drawn network of one of the seeds (from 0) in."""
    trainer.load(trainer.drawn(seeds.derive(recipe.seed, seed + 1, "initialisation")))


def _advance(trainer: Trainer, epoch: int, seed: int) -> None:
    first = epoch * trainer.steps_per_epoch
    trainer.advance(first, first + trainer.steps_per_epoch, order_seed=seed)
