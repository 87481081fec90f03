"""What outputs are made with. Each output folder notes this before anything else, and is never continued otherwise."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lottery.base import locks
from lottery.base.errors import InputError
from lottery.base.locks import GLANCE_SECONDS
from lottery.experiment.decisive import decisive, differences
from lottery.experiment.keys import Output
from lottery.experiment.recipe import Recipe
from lottery.rundir import records

FILE = "made_with.json"
ORIGINS = {
    "records": "other examples than those that are prepared now: name its records with --set data.path",
    "network": "another network than model.name builds now: build that one again",
    "weights": "other weights than those in the file of model.weights: name their file",
}


class MadeWith(records.Table):
    """What outputs are made with: the recipe's `values` that decide them, examples and network (`made_from`), and all versions
    and devices that worked on them (`made_by`)."""

    output: Output
    family: str
    values: dict[str, Any]
    made_from: dict[str, str]
    made_by: list[dict[str, str]]


def made_with(folder: Path) -> MadeWith:
    """What the outputs in a claimed folder are made with. Raises InputError as `records.read` does."""
    return records.read(folder / FILE, MadeWith)


@contextlib.contextmanager
def claimed(
    folder: Path, recipe: Recipe, output: Output, origins: Mapping[str, str], family: str = "", patience: float = GLANCE_SECONDS
) -> Iterator[None]:
    """Hold the lock of an output folder, which now says that it is made with `recipe` and from `origins`: the digests of the
    `records` and the `network`. One in which an exception leaves nothing else may be begun again with other values. Raises
    locks.Busy when another process holds it, and InputError when it was begun with other values, examples or network, or copied
    from another folder."""
    with locks.writing(folder, patience):
        if (folder / FILE).exists():
            check_folder(folder, recipe)
            check_origins(folder, origins)
        else:
            values = decisive(recipe, output, family)
            made = {"output": output, "family": family, "values": values, "made_from": origins, "made_by": []}
            records.write(folder / FILE, MadeWith.model_validate(made))
        try:
            yield
        except BaseException:
            if {path.name for path in folder.iterdir()} == {FILE, ".lock"}:
                (folder / FILE).unlink()
            raise


def signed(folder: Path, maker: Mapping[str, str]) -> list[dict[str, str]]:
    """Note in a claimed folder that `maker` (versions, device) works on it. Returns all so far, in order of time."""
    known = made_with(folder)
    if dict(maker) not in known.made_by:
        known = known.model_copy(update={"made_by": [*known.made_by, dict(maker)]})
        records.write(folder / FILE, known)
    return known.made_by


def check_origins(folder: Path, origins: Mapping[str, str]) -> None:
    """Raise InputError if the outputs in `folder` were made from other examples, or of another network."""
    made_from = made_with(folder).made_from
    for name, digest in origins.items():
        if not is_same(made_from.get(name, digest), digest):
            raise InputError(f"{folder} was made from {ORIGINS[name]}, or start a new run with --run")


def is_same(one: str, other: str) -> bool:
    """Whether two digests are of the same thing, as far as they can tell: those of networks start with the version of Keras
    that described them, and those of two versions are not compared."""
    return one == other or one.rpartition(" ")[0] != other.rpartition(" ")[0]


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Raise InputError if the outputs in `folder`, of a family that `recipe` has, are not what it would make."""
    known = made_with(folder)
    if known.family and known.family not in recipe.families:
        return
    if differing := differences(known.values, decisive(recipe, known.output, known.family)):
        way_out = "use the same values, or start a new run with --run"
        raise InputError(f"{folder} was made with another recipe ({'; '.join(differing)}): {way_out}")
