"""Real images for the measurements in which something is to be learnt."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

from data_prep.errors import InputError
from data_prep.prepare import existing, prepare, settings_of
from data_prep.records import read_manifest
from lottery.recipe import Recipe, resolve
from lottery.run import default_records


@contextlib.contextmanager
def at_hand(recipe: Recipe, records: Path | None) -> Iterator[tuple[Recipe, Path]]:
    """The recipe and the folder of its prepared set: `records`, whose settings the recipe then takes, or where the recipe looks
    for it. The digits are prepared for the moment where they are not there. Raises InputError where others are not."""
    if records:
        settings = dataclasses.asdict(settings_of(read_manifest(records)))
        yield resolve(_with_data(recipe, settings)), records
        return
    wanted = recipe.records()
    folder = Path(recipe.data.path) if recipe.data.path else default_records(wanted)
    if wanted.source != "digits" or (folder / "manifest.json").exists():
        existing(wanted, folder)
        yield recipe, folder
        return
    with tempfile.TemporaryDirectory() as place:
        prepare(wanted, Path(place, "digits"))
        yield recipe, Path(place, "digits")


def check_epochs(recipe: Recipe) -> None:
    """Raise InputError for a recipe that counts its length in steps."""
    if recipe.train.steps:
        raise InputError("train.steps is not heeded here: set it to 0, and train.epochs to the length that you want")


def check_batch(batch: int, folder: Path) -> None:
    """Raise InputError where the training images of a prepared set do not fill one batch."""
    images = read_manifest(folder).count("train")
    if batch > images:
        raise InputError(f"a batch of {batch:,} is more than the {images:,} training images: take a smaller one")


def _with_data(recipe: Recipe, settings: dict[str, object]) -> dict[str, object]:
    values = recipe.model_dump()
    return values | {"data": {**values["data"], **settings}}
