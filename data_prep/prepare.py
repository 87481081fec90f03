"""Prepare a set: read every image once, bring it to one size, hold out a validation split, write shards and manifest."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from data_prep import files, records
from data_prep.errors import InputError
from data_prep.sources import Source, open_source


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a prepared set depends on.

    `validation` is the fraction of the training images held out; `test` the fraction cut off first where the source has
    no test split of its own. Both splits are stratified by class and drawn with `split_seed`.
    """

    source: str
    size: int
    validation: float
    test: float
    split_seed: int

    def folder(self, root: Path) -> Path:
        """Where the set lies under `root`: `digits-32`, `tfds-cifar10-32`."""
        return root / f"{self.source.replace(':', '-').replace('/', '-')}-{self.size}"


def prepare(settings: Settings, folder: Path) -> records.Manifest:
    """Write the prepared set to `folder`; a set already there with the same settings is left as it is.

    Raises InputError when the set there was made with other settings, or when a split would be empty.
    """
    if (folder / "manifest.json").exists():
        return existing(settings, folder)
    source = open_source(settings.source)
    splits = _splits(source, settings)
    for split, (images, _) in splits.items():
        if not len(images):
            raise InputError(f"the {split} split of {settings.source} would be empty: change data.validation or data.test")
    folder.mkdir(parents=True, exist_ok=True)
    files.remove_stale(folder)
    shards = [
        shard for split, (images, labels) in splits.items() for shard in records.write_split(folder, split, images, labels)
    ]
    manifest = records.Manifest((settings.size, settings.size, 3), source.classes, shards, dataclasses.asdict(settings))
    records.write_manifest(folder, manifest)
    return manifest


def existing(settings: Settings, folder: Path) -> records.Manifest:
    """The manifest of the set in `folder`, which must have been made with `settings`; else InputError says how it differs."""
    manifest = records.read_manifest(folder)
    wanted: dict[str, Any] = dataclasses.asdict(settings)
    differs = [
        f"data.{key} {manifest.made_with.get(key)!r} there, {wanted[key]!r} wanted"
        for key in wanted
        if manifest.made_with.get(key) != wanted[key]
    ]
    if differs:
        raise InputError(
            f"the records in {folder} were made with other settings ({'; '.join(differs)}): "
            "remove that folder, or set IMP_DATA to another place"
        )
    return manifest


def fit(image: np.ndarray, size: int) -> np.ndarray:
    """An image of any size (uint8, [height, width, 1 or 3]) as uint8 [size, size, 3].

    The largest centred square is kept, brought down by Pillow's box filter (each output pixel averages the input pixels
    whose centres it covers) or interpolated up (bicubic); grey is repeated.
    """
    picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    method = Image.Resampling.BOX if min(picture.size) > size else Image.Resampling.BICUBIC
    return np.asarray(ImageOps.fit(picture, (size, size), method).convert("RGB"))


def stratified(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """A boolean array that marks round(fraction x count) examples of each class, drawn with `seed`."""
    marked = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = np.random.default_rng([seed, int(label)]).permutation(members)
        marked[order[: round(fraction * len(members))]] = True
    return marked


def _splits(source: Source, settings: Settings) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    images, labels = _load(source, "train", settings)
    if "test" in source.splits:
        test_images, test_labels = _load(source, "test", settings)
    else:
        test = stratified(labels, settings.test, settings.split_seed)
        test_images, test_labels = images[test], labels[test]
        images, labels = images[~test], labels[~test]
    held_out = stratified(labels, settings.validation, settings.split_seed + 1)
    return {
        "train": (images[~held_out], labels[~held_out]),
        "validation": (images[held_out], labels[held_out]),
        "test": (test_images, test_labels),
    }


def _load(source: Source, split: str, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    images, labels = [], []
    for image, label in source.splits[split]():
        if not 0 <= label < len(source.classes):
            raise InputError(f"the {split} split of {settings.source} has images without a class: choose another set")
        images.append(fit(image, settings.size))
        labels.append(label)
    stacked = np.stack(images) if images else np.empty((0, settings.size, settings.size, 3), np.uint8)
    return stacked, np.array(labels, np.int32)
