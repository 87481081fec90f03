"""What a source is: labelled images of one or two splits, found but not yet read."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

Picture = Path | bytes | np.ndarray
"""An image file, an encoded image, or pixels (uint8 or uint16, [height, width] or [height, width, 1 to 4])."""


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Images at hand, and what each is called in messages. Files are opened by whoever decodes them."""

    names: Sequence[str]
    pictures: Sequence[Picture]

    def load(self) -> "Pictures":
        return self


class Part(Protocol):
    """Some images of a split. It pickles small: it says where they are, and reads them when it is `load`ed."""

    def load(self) -> Pictures: ...


@dataclasses.dataclass(frozen=True)
class Split:
    """One split: `labels` (int32, [n], -1 where there is none) and `part`, which gives some images by their indices.

    `mixed` says that neighbours are unrelated already (they are not in a folder sorted by class). `fingerprint` changes
    when images come or go. `held` is in memory for as long as the split is in use.
    """

    labels: np.ndarray
    fingerprint: str
    part: Callable[[np.ndarray], Part]
    mixed: bool
    held: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Source:
    """A labelled image set: the names of its classes, `train`, and the images kept for testing where it has some."""

    classes: list[str]
    train: Split
    test: Split | None
