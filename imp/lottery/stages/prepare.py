"""Stage 1: the records of a run, or a set of records on its own."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from data_prep import prepare as preparing
from data_prep.prepare import LOCALLY, Means, Settings
from data_prep.records import MANIFEST, SPLITS, Manifest
from lottery.engine.start import start_tensorflow
from lottery.experiment import plan
from lottery.progress import Reporter
from lottery.rundir import locks
from lottery.rundir.run import Run

SHOWN_BAD = 3


def prepare(run: Run, reporter: Reporter, means: Means = LOCALLY) -> Manifest:
    """Write the records of the run's recipe unless they exist. Raises InputError if others are in their place, or if the
    recipe cannot train on them."""
    manifest = prepare_set(run.recipe.records(), run.records(), reporter, means)
    plan.make(run.recipe, manifest.count("train"))
    run.adopt()
    return manifest


def prepare_set(settings: Settings, folder: Path, reporter: Reporter, means: Means = LOCALLY) -> Manifest:
    """Write a set to `folder`, or what it lacks, and say what it holds. Raises InputError as `data_prep.prepare` does."""
    there = preparing.existing(settings, folder) if (folder / MANIFEST).exists() else None
    if there is None or not preparing.is_complete(folder, there):
        there = _prepare(settings, folder, reporter, means)
    counts = ", ".join(f"{there.count(split)} {split}" for split in SPLITS)
    kind = "grey images" if settings.channels == 1 else "images"
    reporter.say(f"records in {folder}: {counts} {kind} of {settings.size}x{settings.size}, {len(there.classes)} classes")
    for bad in there.bad[:SHOWN_BAD]:
        reporter.say(f"left out, cannot be decoded: {bad.name} ({bad.reason})")
    if len(there.bad) > SHOWN_BAD:
        reporter.say(f"and {len(there.bad) - SHOWN_BAD} more, all listed in {folder / MANIFEST}")
    return there


def _prepare(settings: Settings, folder: Path, reporter: Reporter, means: Means) -> Manifest:
    if settings.source.startswith("tfds:"):
        start_tensorflow()
    with locks.writing(folder), contextlib.ExitStack() as bar:

        def begin(total: int) -> Callable[[int], None]:
            return bar.enter_context(reporter.counting(f"preparing {settings.source}", total, "images"))

        return preparing.prepare(settings, folder, means, begin)
