"""Folders of image files, one per class, as ImageNet and torchvision's ImageFolder lay them out."""

import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from data_prep.sources import Part, Pictures, Source, Split
from lottery.base.errors import InputError

TRAIN, HELD_OUT = "train", ("test", "val", "validation")
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"}

_SPLIT = re.compile(r"(train(ing)?|test(ing)?|val(id(ation)?)?|dev|eval(uation)?)[\W\d_]*", re.IGNORECASE)
_NAMED = "splits are called train/ and test/, val/ or validation/"
_TOLD = 8  # kinds of files that were passed over


def source(root: Path) -> Source:
    """`root/CLASS/.../image.jpg`, or the same below `root/train` and one of `root/test`, `root/val`, `root/validation`. Classes
    are numbered in the order of their names; within one, subfolders count as part of it. Hidden files are passed over; files
    that are no images by their name, or lie beside classes, are counted too. Raises InputError for a folder without class
    folders, a class without an image, a class to test on that is not trained on, a folder that cannot be read, a link that
    leads nowhere, and a folder that looks like a split where none is expected."""
    if not root.is_dir():
        raise InputError(f"folder:{root} is not a folder: name one with a folder of images per class")
    passed: Counter[str] = Counter()
    train = root / TRAIN if (root / TRAIN).is_dir() else root
    held_out = None if train == root else _held_out(root, passed)
    classes = _class_folders(train, passed)
    split = _split(root, train, classes, classes, passed)
    tested = _class_folders(root / held_out, passed) if held_out else []
    if unknown := sorted(set(tested) - set(classes)):
        raise InputError(f"{root / str(held_out)} has the class {unknown[0]}, which {train} has not: name them alike")
    test = _split(root, root / held_out, tested, classes, passed) if held_out else None
    return Source(classes, split, test, _counted(passed))


def image_files(root: Path, names: Sequence[str]) -> Pictures:
    """The files of these names below `root`."""
    return Pictures(names, [root / name for name in names])


def _held_out(root: Path, passed: Counter[str]) -> str | None:
    """Which folder beside `root/train` has the images to test on. Those in another split are counted."""
    folders, files = _entries(root)
    passed["beside train/"] += len(files)
    held_out = next((name for name in HELD_OUT if name in folders), None)
    for name in sorted(set(folders) - {TRAIN, held_out}):
        images = sum(1 for _ in _images(root / name, passed))
        if name not in HELD_OUT and (images or _SPLIT.fullmatch(name)):
            raise InputError(
                f"{root} has {name}/ beside train/: {_NAMED}; move {name}/ away, or put all classes into train/ if train is one"
            )
        passed[f"images in {name}/"] += images
    return held_out


def _class_folders(folder: Path, passed: Counter[str]) -> list[str]:
    found, files = _entries(folder)
    if not found:
        raise InputError(f"{folder} has no class folders: sort its images into one folder per class")
    like_splits = [name for name in found if _SPLIT.fullmatch(name)]
    nested = [name for name in like_splits if _entries(folder / name)[0]]
    if nested or like_splits == found:
        raise InputError(f"{folder} has {(nested or found)[0]}/ but no train/: {_NAMED}; rename it if it is a class")
    passed["beside classes"] += len(files)
    return found


def _split(root: Path, folder: Path, present: Sequence[str], classes: Sequence[str], passed: Counter[str]) -> Split:
    """The files of one split, sorted by class, then by name relative to `root`."""
    names: list[str] = []
    labels: list[int] = []
    for name in present:
        images = sorted(_images(folder / name, passed))
        if not images:
            raise InputError(f"the class {folder / name} has no image: add some, or remove that folder")
        names += [os.path.relpath(image, root) for image in images]
        labels += [classes.index(name)] * len(images)
    fingerprint = hashlib.sha256("\n".join(names).encode("utf-8", "surrogateescape")).hexdigest()
    place = root.resolve()

    def part(indices: np.ndarray) -> Part:
        return partial(image_files, place, [names[index] for index in indices])

    return Split(np.array(labels, np.int32), fingerprint, part, mixed=False)


def _images(folder: Path, passed: Counter[str]) -> Iterator[str]:
    """Every image below `folder`, once; other files are counted by their endings."""
    seen = set()
    waiting = [str(folder)]
    while waiting:
        place = waiting.pop()
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:  # a link back
            continue
        seen.add((status.st_dev, status.st_ino))
        folders, files = _entries(place)
        waiting += [os.path.join(place, name) for name in reversed(folders)]
        for name in files:
            if _is_image(name):
                yield os.path.join(place, name)
            else:
                passed[os.path.splitext(name)[1].lower() or "no ending"] += 1


def _entries(folder: str | Path) -> tuple[list[str], list[str]]:
    """The names of the folders and of the files in `folder`, without hidden ones."""
    folders: list[str] = []
    files: list[str] = []
    try:
        for entry in os.scandir(folder):
            if not entry.name.startswith("."):
                (folders if _is_folder(entry) else files).append(entry.name)
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read ({error.strerror}): mend or remove it") from None
    return sorted(folders), files


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Raises OSError for a link that leads nowhere, which may stand for a folder, unless it is an image by its name."""
    if not entry.is_symlink():
        return entry.is_dir()
    return os.path.isdir(entry) if _is_image(entry.name) else stat.S_ISDIR(entry.stat().st_mode)


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def _counted(passed: Counter[str]) -> str:
    """Such as `.txt (3), beside classes (1)`, the most frequent first."""
    kinds = sorted(passed.items(), key=lambda kind: (-kind[1], kind[0]))
    others = sum(count for _, count in kinds[_TOLD:])
    return ", ".join(f"{kind} ({count:,})" for kind, count in [*kinds[:_TOLD], ("others", others)] if count)
