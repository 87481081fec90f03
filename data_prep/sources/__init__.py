"""Where images come from: labelled images of one or two splits, found but not yet read. Reading labels and naming images is a
source's job; decoding, resizing and splitting is not."""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lottery.base.errors import InputError

TEXTS = ("docstrings", "deb-descriptions", "candidates")  # kinds whose examples are no images
ALONE = ("digits", "docstrings", "deb-descriptions")  # kinds that need no name
PATHS = ("folder", "arrays", "candidates", "deb-descriptions")  # kinds whose name is a path
KINDS = "`digits`, `tfds:NAME` (such as `tfds:cifar10`), `folder:DIR` or `arrays:FILE.npz`"
KINDS += "; of texts `docstrings`, `deb-descriptions` or `candidates:FILE.jsonl`"

Picture = Path | bytes | np.ndarray
"""An image file, an encoded image, or pixels (uint8 or uint16, [height, width] or [height, width, 1 to 4])."""


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Images at hand, and what each is called in messages. Files are opened by whoever decodes them."""

    names: Sequence[str]
    pictures: Sequence[Picture]

    def __call__(self) -> "Pictures":
        return self


Part = Callable[[], Pictures]
"""Some images of a split. It pickles small: it says where they are, and reads them when it is called."""


@dataclasses.dataclass(frozen=True)
class Split:
    """One split: `labels` (int32, [n], -1 where there is none) and `part`, which gives some images by their indices. `mixed`
    says that neighbours are unrelated already (they are not in a folder sorted by class). `fingerprint` changes when images
    come or go. `held` is in memory for as long as the split is in use."""

    labels: np.ndarray
    fingerprint: str
    part: Callable[[np.ndarray], Part]
    mixed: bool
    held: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Source:
    """A labelled image set: the names of its classes, `train`, and the images kept for testing where it has some. `passed_over`
    counts what else lies there, in words."""

    classes: list[str]
    train: Split
    test: Split | None
    passed_over: str = ""

    @property
    def fingerprints(self) -> list[str]:
        return [split.fingerprint for split in (self.train, self.test) if split]


_MEANT = {".npz": "arrays", ".jsonl": "candidates"}


def is_of_texts(name: str) -> bool:
    """Whether the source called `name` has texts, not images."""
    return name.partition(":")[0] in TEXTS


def resolved(name: str) -> str:
    """`name` with its path in full: the same files are the same source from wherever they are named."""
    kind, colon, path = name.partition(":")
    return f"{kind}:{Path(path).expanduser().resolve()}" if kind in PATHS and colon else name


def is_alike(one: str, other: str) -> bool:
    """Whether the sources of these names may be the same: a file or folder may have been moved, but keeps its own name."""
    (kind, _, path), (other_kind, _, other_path) = one.partition(":"), other.partition(":")
    is_moved = kind in PATHS and Path(path).name == Path(other_path).name
    return kind == other_kind and (is_moved or resolved(one) == resolved(other))


def check_name(name: str) -> None:
    """Raise InputError for what cannot be a source, with what was perhaps meant."""
    kind, _, rest = name.partition(":")
    if name not in ALONE and not (kind in ("tfds", *PATHS) and rest):
        meant = "folder" if name and Path(name).is_dir() else _MEANT.get(Path(name).suffix)
        raise InputError(f"unknown data source {name!r}: " + (f"did you mean {meant}:{name}?" if meant else f"write {KINDS}"))


def open_source(name: str, data_dir: Path | None = None) -> Source:
    """The source called `name`, one of `KINDS`: what `source` of the module of its kind returns. `data_dir` is where TensorFlow
    Datasets keeps its files. Raises InputError when there is no such source, or when its images have no classes."""
    check_name(name)
    kind, _, rest = name.partition(":")
    where: tuple[Any, ...] = (Path(rest).expanduser(),) if kind in PATHS else (rest, data_dir) if rest else ()
    opened: Source = importlib.import_module(f"data_prep.sources.{kind}").source(*where)
    return opened
