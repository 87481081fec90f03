"""What outputs are made with: each output folder says so before it holds anything else, and is never gone on with otherwise."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep import files
from data_prep.errors import InputError
from lottery import locks
from lottery.recipe import Recipe, Stage, depends

FILE = "made_with.json"

# What outputs were made with before these keys existed.
_AS_BEFORE = {
    "averages": "weights",
    "data.channels": 3,
    "data.mean": [0.5],
    "data.deviation": [0.5],
    "train.evaluate": "1ep",
    "model.width": 0,
    "model.activation": "relu",
    "model.whitening": False,
}


@contextlib.contextmanager
def claimed(folder: Path, recipe: Recipe, stage: Stage, records: str | None = None) -> Iterator[None]:
    """Hold the lock of an output folder of `stage`, which now says that it is made with `recipe`, and, where given, from the
    `records` of this digest.

    Raises locks.Busy when another process holds it, and InputError when it was begun with other values or images.
    """
    with locks.writing(folder):
        if (folder / FILE).exists():
            check_folder(folder, recipe)
            check_records(folder, records)
        else:
            made_with = {"stage": stage, "values": depends(recipe, stage)}
            files.write_json(folder / FILE, made_with | ({"records": records} if records else {}))
        yield


def check(run: Path, recipe: Recipe) -> None:
    """Raise InputError when an output of the run directory, finished or begun, is not what `recipe` would make."""
    for path in sorted(run.glob(f"replicate-*/**/{FILE}")):
        check_folder(path.parent, recipe)


def check_records(folder: Path, records: str | None) -> None:
    """Raise InputError when the outputs in `folder` are made from other images than the `records` of this digest. What does not
    say from which, as of earlier versions, is believed."""
    made_with = files.read_json(folder / FILE) if (folder / FILE).exists() else {}
    if made_with.get("records") not in (None, records):
        raise InputError(
            f"{folder} was made from other images than those that are prepared now: name its own with --set data.path, or "
            "begin another run with --run"
        )


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Raise InputError when the outputs in `folder` are not what `recipe` would make."""
    content = files.read_json(folder / FILE)
    made_with: dict[str, Any] = content["values"]
    wanted = depends(recipe, content["stage"])
    differs = [
        f"{key} was {made_with.get(key, _AS_BEFORE.get(key))!r}, is {wanted.get(key)!r}"
        for key in sorted(made_with | wanted)
        if made_with.get(key, _AS_BEFORE.get(key)) != wanted.get(key)
    ]
    if differs:
        raise InputError(
            f"{folder} was made with another recipe ({'; '.join(differs)}): use the same values, or, for an "
            "experiment of its own, another --run"
        )
