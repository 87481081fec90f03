"""What outputs are made with: each output folder says so before it holds anything else, and is never gone on with otherwise."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data_prep import files
from data_prep.errors import InputError
from lottery import locks
from lottery.recipe import Recipe, Stage, depends

FILE = "made_with.json"
ORIGINS = {
    "records": "other images than those that are prepared now: name its own with --set data.path",
    "network": "another network than model.name builds now: build that one again",
}


@contextlib.contextmanager
def claimed(folder: Path, recipe: Recipe, stage: Stage, origins: Mapping[str, str]) -> Iterator[None]:
    """Hold the lock of an output folder of `stage`, which now says that it is made with `recipe` and from `origins`: the
    digests of the `records` and the `network`.

    Raises locks.Busy when another process holds it, and InputError when it was begun with other values, images or network, or
    copied from another folder.
    """
    with locks.writing(folder):
        if (folder / FILE).exists():
            read_own(folder / FILE)
            check_folder(folder, recipe)
            check_origins(folder, origins)
        else:
            made_with = {"folder": place(folder), "stage": stage, "values": depends(recipe, stage)}
            files.write_json(folder / FILE, {**made_with, "made_from": dict(origins), "made_by": []})
        yield


def signed(folder: Path, maker: Mapping[str, str]) -> list[dict[str, str]]:
    """Note in a claimed folder that `maker` (versions, device) is at work on it. Returns all that have been, in that order."""
    content = files.read_json(folder / FILE)
    if dict(maker) not in content["made_by"]:
        content["made_by"].append(dict(maker))
        files.write_json(folder / FILE, content)
    return list(content["made_by"])


def check(run: Path, recipe: Recipe) -> None:
    """Raise InputError when an output of the run directory, finished or begun, is not what `recipe` would make."""
    for path in _claims(run):
        check_folder(path.parent, recipe)


def check_all_origins(run: Path, origins: Mapping[str, str]) -> None:
    """Raise InputError when an output of the run directory, finished or begun, is made from other images or of another
    network."""
    for path in _claims(run):
        check_origins(path.parent, origins)


def check_origins(folder: Path, origins: Mapping[str, str]) -> None:
    """Raise InputError when the outputs in `folder` are made from other images, or of another network."""
    made_from = files.read_json(folder / FILE)["made_from"]
    for name, digest in origins.items():
        if not is_same(made_from.get(name, digest), digest):
            raise InputError(f"{folder} was made from {ORIGINS[name]}, or begin another run with --run")


def is_same(one: str, other: str) -> bool:
    """Whether two digests are of one thing, as far as they can tell: those of networks begin with the version of Keras that
    described them, and two versions are not compared."""
    return one == other or one.rpartition(" ")[0] != other.rpartition(" ")[0]


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Raise InputError when the outputs in `folder` are not what `recipe` would make."""
    content = files.read_json(folder / FILE)
    made_with: dict[str, Any] = content["values"]
    wanted = depends(recipe, content["stage"])
    differs = [
        f"{key} was {made_with.get(key)!r}, is {wanted.get(key)!r}"
        for key in sorted(made_with | wanted)
        if made_with.get(key) != wanted.get(key)
    ]
    if differs:
        raise InputError(
            f"{folder} was made with another recipe ({'; '.join(differs)}): use the same values, or, for an "
            "experiment of its own, another --run"
        )


def place(folder: Path) -> str:
    """What tells an output folder from others of its run, wherever that lies: `replicate-1/train`, `q90-step-000034/ticket`."""
    return "/".join(folder.absolute().parts[-2:])


def read_own(path: Path) -> dict[str, Any]:
    """A JSON file that names its `folder`. Raises InputError where it was copied from another."""
    content = files.read_json(path)
    if content["folder"] != place(path.parent):
        raise InputError(f"{path} is the copy of another folder's ({content['folder']}): remove {path.parent}")
    return content


def _claims(run: Path) -> list[Path]:
    return sorted(run.glob(f"replicate-*/**/{FILE}"))
