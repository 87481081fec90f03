"""A network before its training: compiled for a set that need not be there, and timed on made-up examples."""

import itertools
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_prep import records
from data_prep.records import Manifest
from lottery.engine import devices
from lottery.engine.bundle.sizes import seconds_of_step, still
from lottery.engine.feed import MemoryFeed
from lottery.engine.loop import Trainer
from lottery.experiment.recipe import Recipe

MOST_BYTES = 1 << 26  # of training examples
EVALUATED = 1024  # examples, which are to tell how long one takes


def make_trainer(recipe: Recipe, expected: Manifest, cores: int) -> Trainer:
    """The recipe's network with made-up examples like those of the `expected` set, and so many `cores`. Raises InputError where
    there is no such network, or not for such a set."""
    recipe = still(recipe)
    names = devices.set_up_tensorflow(recipe.train, cores)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        manifest = _made_up(folder, expected, recipe.train.batch)
        on_host = devices.on_cpu(names)
        return Trainer(recipe, names, lambda held: MemoryFeed(folder, manifest, recipe.data, held, on_host), recipe.covers)


def seconds_of_epoch(trainer: Trainer, expected: Manifest, evaluations: float) -> float:
    """How long an epoch of the `expected` set takes, with so many evaluations in each: measured in a few seconds."""
    step = seconds_of_step(lambda count: trainer.advance(0, count, order_seed=0))
    trainer.evaluate("validation")  # which compiles it
    began = time.perf_counter()
    trainer.evaluate("validation")
    example = (time.perf_counter() - began) / trainer.feed.counts["validation"]
    evaluated = expected.count("validation") + expected.count("test")
    return expected.count("train") // trainer.train.batch * step + evaluations * evaluated * example


def _made_up(folder: Path, expected: Manifest, batch: int) -> Manifest:
    """A set in `folder` with the shape and classes of the `expected` one, and as many examples or fewer: again and again an
    image of noise, or texts of the first token."""
    most = {"train": max(batch, MOST_BYTES // math.prod(expected.shape)), "validation": EVALUATED, "test": 1}

    def examples(count: int) -> Iterator[records.Example]:
        values = np.random.default_rng(0).integers(0, 1 if expected.fields else 256, expected.shape, np.uint8)
        return ((values, label) for label in itertools.islice(itertools.cycle(range(len(expected.classes) or 1)), count))

    counts = {split: min(most[split], max(batch, expected.count(split))) for split in records.SPLITS}
    shards = [
        records.write_shard(folder / records.shard_name(split, 0), split, examples(count)) for split, count in counts.items()
    ]
    return Manifest(expected.shape, expected.classes, shards, expected.made_with, expected.made_by, fields=expected.fields)
