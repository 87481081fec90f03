"""Stage 1: the records of a run, or a set of records on its own."""

import contextlib
from collections.abc import Collection
from functools import partial
from pathlib import Path

from data_prep import prepare as preparing
from data_prep.images import brightest
from data_prep.prepare import LOCALLY, AnySettings, Means, Settings
from data_prep.records import MANIFEST, SPLITS, Manifest
from lottery.base import locks
from lottery.base.progress import Reporter
from lottery.engine.start import start_tensorflow
from lottery.experiment import agreement, plan
from lottery.rundir.run import Run

SHOWN_BAD = 3
DARK = 80  # 14 bits in place of 16 end at 64; interpolation adds a few


def prepare(run: Run, reporter: Reporter, means: Means = LOCALLY) -> Manifest:
    """Write the records of the run's recipe unless they exist. Raises InputError if others are in their place, or if the
    recipe cannot train on them."""
    agreement.check(run.recipe)
    manifest = prepare_set(run.recipe.records(), run.records(), reporter, means, known=run.examples())
    plan.make(run.recipe, manifest.count("train"), classes=len(manifest.classes))
    run.adopt()
    return manifest


def prepare_set(
    settings: AnySettings,
    folder: Path,
    reporter: Reporter,
    means: Means = LOCALLY,
    patience: float = locks.GLANCE_SECONDS,
    known: Collection[str] = (),
) -> Manifest:
    """Write a set to `folder`, or what it lacks, and say what it holds; `known` are digests as `data_prep.prepare.existing`
    takes them. Raises InputError as `data_prep.prepare` does, and Busy after `patience` seconds."""
    unit = "images" if isinstance(settings, Settings) else "texts"
    there = preparing.existing(settings, folder, known) if (folder / MANIFEST).exists() else None
    is_whole = there is not None and there.is_whole(folder)
    if there is None or not is_whole:
        if settings.source.startswith("tfds:"):
            start_tensorflow()
        with locks.writing(folder, patience), contextlib.ExitStack() as bar:
            counted = partial(reporter.counting, f"preparing {settings.source}", unit=unit)
            there = preparing.prepare(settings, folder, means, lambda total: bar.enter_context(counted(total=total)), known)
    elif any(left for pattern in preparing.LEFT_BEHIND for left in folder.glob(pattern)):
        with contextlib.suppress(OSError, locks.Busy), locks.writing(folder):  # unless it is read-only, or another's
            preparing.clear(folder)
    counts = ", ".join(f"{there.count(split)} {split}" for split in SPLITS)
    reporter.say(f"records in {folder}: {counts} {_described(settings, there)}")
    if is_whole and means.compares_source and (differs := preparing.difference(settings, there)):
        reporter.say(f"{settings.source} {differs}: to prepare it as it is now, name another --out, or remove {folder}")
    if not is_whole and unit == "images" and (white := brightest(folder, there)) < DARK:
        reporter.say(
            f"the brightest value in the first training images is {white} of 255: if that is too dark, scale the images of "
            f"{settings.source} so that white is 255, or 65535 in 16 bits"
        )
    if there.passed_over:
        reporter.say(f"passed over in {settings.source}: {there.passed_over}")
    for bad in there.bad[:SHOWN_BAD]:
        reporter.say(f"left out, cannot be {'decoded' if unit == 'images' else 'read'}: {bad.name} ({bad.reason})")
    if len(there.bad) > SHOWN_BAD:
        reporter.say(f"and {len(there.bad) - SHOWN_BAD} more, all listed in {folder / MANIFEST}")
    return there


def expected(run: Run) -> Manifest:
    """The manifest of the run's records; where they are not prepared, as `data_prep.prepare.expected` gives it."""
    if (run.records() / MANIFEST).exists():
        return run.manifest()
    settings = run.recipe.records()
    if settings.source.startswith("tfds:"):
        start_tensorflow()
    return preparing.expected(settings)


def _described(settings: AnySettings, manifest: Manifest) -> str:
    if isinstance(settings, Settings):
        kind = "grey images" if settings.channels == 1 else "images"
        return f"{kind} of {settings.size}x{settings.size}, {len(manifest.classes)} classes"
    return f"documents of {settings.document} tokens, with {settings.candidates} candidates of {settings.candidate} each"
