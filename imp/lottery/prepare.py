"""Stage 1 as a command: the recipe's data set prepared where the run looks for it."""

from data_prep.prepare import prepare as prepare_records
from data_prep.records import Manifest
from lottery import locks, plan
from lottery.progress import Reporter
from lottery.run import Run
from lottery.start import start_tensorflow


def prepare(run: Run, reporter: Reporter) -> Manifest:
    """Write the records of the run's recipe unless they are there. Raises InputError when others are in their place,
    or when the recipe cannot train on them."""
    folder = run.records()
    if (folder / "manifest.json").exists():
        manifest = run.manifest()
    else:
        if run.recipe.data.source.startswith("tfds:"):
            start_tensorflow()
        with locks.writing(folder):
            manifest = prepare_records(run.recipe.records(), folder)
    plan.make(run.recipe, manifest.count("train"))
    run.adopt()
    counts = ", ".join(f"{manifest.count(split)} {split}" for split in ("train", "validation", "test"))
    reporter.say(
        f"records in {folder}: {counts} images of {run.recipe.data.size}x{run.recipe.data.size}, "
        f"{len(manifest.classes)} classes"
    )
    return manifest
