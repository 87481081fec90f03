"""Folders of image files, one per class, as ImageNet and torchvision's ImageFolder lay them out."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from data_prep.errors import InputError
from data_prep.sources import Part, Pictures, Source, Split

TRAIN, HELD_OUT = "train", ("test", "val", "validation")
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}


def source(root: Path) -> Source:
    """`root/CLASS/.../image.jpg`, or the same below `root/train` and one of `root/test`, `root/val`, `root/validation`. Classes
    are numbered in the order of their names; within one, subfolders count as part of it. Hidden files and files that are no
    images by their name are passed over. Raises InputError for a folder without class folders, a class without an image, and a
    class to test on that is not trained on."""
    if not root.is_dir():
        raise InputError(f"folder:{root} is not a folder: name one with a folder of images per class")
    train = root / TRAIN if (root / TRAIN).is_dir() else root
    held_out = next((name for name in HELD_OUT if (root / name).is_dir()), None)
    classes = _class_folders(train)
    if train == root and held_out and all(name in HELD_OUT for name in classes):
        raise InputError(f"{root} has {held_out}/ but no {TRAIN}/: put the training images there")
    split = _split(root, train, classes, classes)
    if train == root or not held_out:
        return Source(classes, split, None)
    tested = _class_folders(root / held_out)
    if unknown := sorted(set(tested) - set(classes)):
        raise InputError(f"{root / held_out} has the class {unknown[0]}, which {train} has not: name them alike")
    return Source(classes, split, _split(root, root / held_out, tested, classes))


def image_files(root: Path, names: Sequence[str]) -> Pictures:
    """The files of these names below `root`."""
    return Pictures(names, [root / name for name in names])


def _class_folders(folder: Path) -> list[str]:
    found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not found:
        raise InputError(f"{folder} has no class folders: sort its images into one folder per class")
    return found


def _split(root: Path, folder: Path, present: Sequence[str], classes: Sequence[str]) -> Split:
    """The files of one split, sorted by class, then by name relative to `root`."""
    names: list[str] = []
    labels: list[int] = []
    for name in present:
        images = sorted(_images(folder / name))
        if not images:
            raise InputError(f"the class {folder / name} has no image: add some, or remove that folder")
        names += [os.path.relpath(image, root) for image in images]
        labels += [classes.index(name)] * len(images)
    fingerprint = hashlib.sha256("\n".join(names).encode("utf-8", "surrogateescape")).hexdigest()
    place = root.resolve()

    def part(indices: np.ndarray) -> Part:
        return partial(image_files, place, [names[index] for index in indices])

    return Split(np.array(labels, np.int32), fingerprint, part, mixed=False)


def _images(folder: Path) -> Iterator[str]:
    seen = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:  # a link back
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES:
                yield os.path.join(place, name)
