"""One shard at a time: decode its images, write it, then the note that says that it is done. Every engine runs this."""

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_prep import files, records
from data_prep.pictures import Undecodable, pixels
from data_prep.sources import Part


@dataclasses.dataclass(frozen=True)
class Task:
    """A shard to make in `folder`: its images (`part`, whose `labels` are int32, [n]), brought to `shape`."""

    folder: Path
    name: str
    split: str
    shape: records.Shape
    part: Part
    labels: np.ndarray

    def loaded(self) -> "Task":
        """The same with its images read, for a process that cannot read them itself."""
        return dataclasses.replace(self, part=self.part.load())


@dataclasses.dataclass(frozen=True)
class Made:
    """A shard that was made, and the images that it lacks because they could not be decoded."""

    shard: records.Shard
    bad: list[records.Bad]

    @property
    def images(self) -> int:
        """How many were tried."""
        return self.shard.count + len(self.bad)


def make(task: Task) -> Made:
    """Write the shard of `task`, and then its note. Images that cannot be decoded are left out."""
    bad: list[records.Bad] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")  # an image with odd metadata is no news
        shard = records.write_shard(task.folder / task.name, task.split, _examples(task, bad))
    made = Made(shard, bad)
    files.write_json(_note(task.folder, task.name), dataclasses.asdict(made))
    return made


def made_before(task: Task) -> Made | None:
    """What the note in the folder says of the shard of `task`; None unless the shard is there, whole.

    A shard that lacks images is made again: they may have been mended.
    """
    try:
        content = files.read_json(_note(task.folder, task.name))
        made = Made(records.Shard(**content["shard"]), [records.Bad(**bad) for bad in content["bad"]])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return made if is_whole(task.folder, made.shard) and not made.bad else None


def is_whole(folder: Path, shard: records.Shard) -> bool:
    """Whether the shard is there at its full length: it is written under another name, and renamed when complete."""
    path = folder / shard.name
    return path.exists() and path.stat().st_size == shard.bytes


def forget(folder: Path) -> None:
    """Remove every note: the manifest has taken their place, or they are of other images."""
    for note in folder.glob(_note(Path(), "*").name):
        note.unlink()


def _note(folder: Path, name: str) -> Path:
    return folder / f".{name}.done"


def _examples(task: Task, bad: list[records.Bad]) -> Iterator[records.Example]:
    """The images of `task` that can be decoded, with their labels; the others are added to `bad`."""
    content = task.part.load()
    for name, picture, label in zip(content.names, content.pictures, task.labels, strict=True):
        try:
            yield pixels(picture, task.shape[0], task.shape[2]), int(label)
        except Undecodable as error:
            bad.append(records.Bad(task.split, name, str(error)))
