"""What outputs are made with. Each output folder notes this before it holds anything else, and is never continued with anything
else."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import pydantic

from data_prep import files
from data_prep.errors import InputError
from lottery.experiment.reading import FORMAT
from lottery.experiment.recipe import Output, Recipe, decisive
from lottery.rundir import locks

FILE = "made_with.json"
_PLACE = re.compile(
    r".*/(replicate-\d+/(?:train|[^/]+/masks|[^/]+/[^/]+/[^/]+))", re.DOTALL
)  # dense, masks, one mask or network
ORIGINS = {
    "records": "other images than those that are prepared now: name its images with --set data.path",
    "network": "another network than model.name builds now: build that one again",
}


class Table(pydantic.BaseModel):
    """A JSON file of a run directory, which names the folder that it lies in."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    format: Literal[2] = 2
    folder: str = ""


class MadeWith(Table):
    """What the outputs of a folder are made with: the recipe's `values` that decide them, images and network (`made_from`);
    and all versions and devices that worked on them (`made_by`)."""

    output: Output
    family: str
    values: dict[str, Any]
    made_from: dict[str, str]
    made_by: list[dict[str, str]] = []


OneTable = TypeVar("OneTable", bound=Table)


def write(path: Path, table: OneTable) -> OneTable:
    """Write `table` with the name of its folder, and return it so."""
    placed = table.model_copy(update={"folder": own_place(path)})
    files.write_json(path, placed.model_dump(mode="json"))
    return placed


def read(path: Path, kind: type[OneTable]) -> OneTable:
    """The table in `path`. Raises InputError if it is damaged, has another format, or was copied from another folder."""
    content = files.read_json(path)
    try:
        table = kind.model_validate(content)
    except pydantic.ValidationError as error:
        raise InputError(f"{path} {_problem(error, content)}: remove it and run its stage again") from None
    if table.folder != own_place(path):
        raise InputError(f"{path} was copied from another folder ({table.folder}): remove {path.parent}")
    return table


def _problem(error: pydantic.ValidationError, content: dict[str, Any]) -> str:
    if content.get("format") != FORMAT:
        return f"has format {content.get('format', 1)}, but this version of imp reads format {FORMAT}"
    first = error.errors()[0]
    return f"is not as it should be ({'.'.join(map(str, first['loc']))}: {first['msg']})"


def made_with(folder: Path) -> MadeWith:
    """What the outputs in a claimed folder are made with. Raises InputError as `read` does."""
    return read(folder / FILE, MadeWith)


@contextlib.contextmanager
def claimed(
    folder: Path,
    recipe: Recipe,
    output: Output,
    origins: Mapping[str, str],
    family: str = "",
    patience: float = locks.GLANCE_SECONDS,
) -> Iterator[None]:
    """Hold the lock of an output folder, which now says that it is made with `recipe` and from `origins`: the digests of the
    `records` and the `network`.

    Raises locks.Busy when another process holds it, and InputError when it was begun with other values, images or network, or
    copied from another folder.
    """
    with locks.writing(folder, patience):
        if (folder / FILE).exists():
            check_folder(folder, recipe)
            check_origins(folder, origins)
        else:
            values = decisive(recipe, output, family)
            write(folder / FILE, MadeWith(output=output, family=family, values=values, made_from=dict(origins)))
        yield


def signed(folder: Path, maker: Mapping[str, str]) -> list[dict[str, str]]:
    """Note in a claimed folder that `maker` (versions, device) works on it. Returns all makers so far, in order of time."""
    known = made_with(folder)
    if dict(maker) not in known.made_by:
        known = known.model_copy(update={"made_by": [*known.made_by, dict(maker)]})
        write(folder / FILE, known)
    return known.made_by


def check_origins(folder: Path, origins: Mapping[str, str]) -> None:
    """Raise InputError if the outputs in `folder` were made from other images, or of another network."""
    made_from = made_with(folder).made_from
    for name, digest in origins.items():
        if not is_same(made_from.get(name, digest), digest):
            raise InputError(f"{folder} was made from {ORIGINS[name]}, or start a new run with --run")


def is_same(one: str, other: str) -> bool:
    """Whether two digests are of the same thing, as far as they can tell. Digests of networks start with the version of
    Keras that described them; those of two versions are not compared."""
    return one == other or one.rpartition(" ")[0] != other.rpartition(" ")[0]


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Raise InputError if the outputs in `folder` are not what `recipe` would make. A family that the recipe no longer has
    is left alone, and the others continue without it."""
    known = made_with(folder)
    if known.family and known.family not in recipe.families:
        return
    before, now = known.values, decisive(recipe, known.output, known.family)
    differs = [
        f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in sorted(before | now) if before.get(key) != now.get(key)
    ]
    if differs:
        raise InputError(
            f"{folder} was made with another recipe ({'; '.join(differs)}): use the same values, or start a new run with --run"
        )


def place(path: Path) -> str:
    """What tells an output from the others of its run, wherever that lies: `replicate-1/train`, or of a folder outside of
    replicates its name and that of the one above."""
    absolute = path.absolute()
    replicate = _PLACE.fullmatch(absolute.as_posix())
    return replicate[1] if replicate else "/".join(absolute.parts[-2:])


def own_place(table: Path) -> str:
    """What a table calls its folder: where that lies in the run, or of a mask's table the mask."""
    is_masks = table.parent.name == "masks" and table.name != FILE
    return place(table.with_suffix("") if is_masks else table.parent)
