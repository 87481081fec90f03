"""Images and labels in one NumPy archive (.npz)."""

import weakref
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

from data_prep.sources import Pictures, Source, Split
from lottery.base.errors import InputError, first_line

# Each pair names the arrays of one split: ours, those of Keras's mnist.npz, and those of MedMNIST (Yang et al. 2023).
TRAIN = (("images", "labels"), ("x_train", "y_train"), ("train_images", "train_labels"))
HELD_OUT = (("test_images", "test_labels"), ("x_test", "y_test"), ("val_images", "val_labels"), ("x_val", "y_val"))

_held: weakref.WeakValueDictionary[tuple[Path, str], np.ndarray] = weakref.WeakValueDictionary()


def source(file: Path) -> Source:
    """`images` (uint8 or uint16, [n, height, width] or [n, height, width, 1, 3 or 4]) and `labels` (integers, [n] or [n, 1])
    of an .npz file, or its `x_train`, `y_train`, `x_test`, `y_test`, or its `train_images` and so on; perhaps `classes`
    (strings): names, else the labels are. Raises InputError where that is not what the file holds."""
    keys = _keys(file)
    train = next((pair for pair in TRAIN if keys.issuperset(pair)), None)
    if train is None:
        listed = " or ".join(f"`{images}` and `{labels}`" for images, labels in TRAIN)
        raise InputError(f"{file} has {', '.join(sorted(keys)) or 'no arrays'}: it needs {listed}")
    held_out = next((pair for pair in HELD_OUT if pair != train and keys.issuperset(pair)), None)
    splits = [_split(file, *pair) for pair in (train, held_out) if pair]
    classes = _classes(file, keys, splits[0].labels)
    if held_out and splits[1].labels.max(initial=-1) >= len(classes):
        raise InputError(f"{file}: {held_out[1]} has classes that {train[1]} has not: there are {len(classes)}, from 0 on")
    used = {*train, *(held_out or ()), "classes"}
    return Source(classes, splits[0], splits[1] if held_out else None, ", ".join(sorted(keys - used)))


def _keys(file: Path) -> set[str]:
    if not file.is_file():  # to open a pipe would wait for somebody who writes to it
        raise InputError(f"there is no file {file}: name an .npz file")
    with open(file, "rb") as content:
        try:
            archive = np.load(content, allow_pickle=False)
        except Exception:  # whatever zipfile and NumPy raise for what they cannot read
            raise InputError(f"{file} is no .npz file: make one with numpy.savez") from None
        return set(archive.files) if isinstance(archive, np.lib.npyio.NpzFile) else set()


def _array(file: Path, key: str) -> np.ndarray:
    """One array of `file`, read once for as long as a split of it is in use."""
    if (file, key) in _held:
        return _held[file, key]
    try:
        with np.load(file, allow_pickle=False) as archive:
            array = np.asarray(archive[key])
    except Exception as error:  # such as for an archive that is damaged or encrypted
        raise InputError(f"{file}: {key} cannot be read ({first_line(error)}): make it anew with numpy.savez") from None
    _held[file, key] = array
    return array


def _split(file: Path, images_key: str, labels_key: str) -> Split:
    images, labels = _array(file, images_key), _array(file, labels_key)
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3, 4)):
        raise InputError(
            f"{file}: {images_key} has shape {images.shape}: it must be [n, height, width] or with 1, 3 or 4 channels"
        )
    if 0 in images.shape:
        raise InputError(f"{file}: {images_key} has shape {images.shape}: there is no image in it")
    if images.dtype not in (np.uint8, np.uint16):
        raise InputError(f"{file}: {images_key} is {images.dtype}: give uint8 of 0 .. 255 (or uint16)")
    if not np.issubdtype(labels.dtype, np.integer) or labels.size != len(images):
        raise InputError(
            f"{file}: {labels_key} is {labels.dtype} {labels.shape}: give one integer for each of the {len(images)} images"
        )
    if labels.min() < 0 or labels.max() > np.iinfo(np.int32).max:
        raise InputError(f"{file}: {labels_key} goes from {labels.min()} to {labels.max()}: number the classes from 0")
    stat, place = file.stat(), file.resolve()
    fingerprint = f"{images_key} {stat.st_size} {stat.st_mtime_ns}"
    rows = labels.reshape(-1).astype(np.int32)
    return Split(rows, fingerprint, lambda indices: partial(_rows, place, images_key, indices), mixed=False, held=images)


def _rows(file: Path, key: str, indices: np.ndarray) -> Pictures:
    return Pictures([f"{key}[{index}]" for index in indices], _array(file, key)[indices])


def _classes(file: Path, keys: set[str], labels: np.ndarray) -> list[str]:
    """The names of the classes, each of which has a training image."""
    present = np.unique(labels).tolist()
    given = _array(file, "classes").reshape(-1) if "classes" in keys else np.arange(len(present))
    try:
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in given]
    except UnicodeDecodeError:
        raise InputError(f"{file}: `classes` are bytes that are no UTF-8: give strings") from None
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"{file}: `classes` names {twice[0]!r} twice: give each class a name of its own")
    if missing := sorted(set(range(len(names))) - set(present)):
        raise InputError(f"{file}: the class {names[missing[0]]} has no training image: number the classes without gaps")
    if len(present) > len(names):
        raise InputError(f"{file}: the labels go to {present[-1]}, but `classes` names {len(names)}: name them all")
    return names
