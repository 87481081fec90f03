"""Prepared sets of noise, for measurements that look at no picture."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_prep import records
from data_prep.prepare import Settings

CLASSES = 10


def examples(count: int, size: int, classes: int = CLASSES, channels: int = 3) -> Iterator[records.Example]:
    """So many images of `size` x `size` and `channels`, uint8, with their labels."""
    rng = np.random.default_rng(0)
    for index in range(count):
        yield rng.integers(0, 256, (size, size, channels), np.uint8), index % classes


def make_noise(
    folder: Path, count: int, size: int, classes: int = CLASSES, held: int = 1, channels: int = 3
) -> records.Manifest:
    """`count` training images of `size` x `size` in `folder`, and `held` in each of the other splits."""
    folder.mkdir(exist_ok=True)
    shape = (size, size, channels)
    step = records.images_per_shard(shape)
    parts = [("train", min(step, count - first)) for first in range(0, count, step)]
    shards = [
        records.write_shard(folder / records.shard_name(split, number), split, examples(images, size, classes, channels))
        for number, (split, images) in [*enumerate(parts), (0, ("validation", held)), (0, ("test", held))]
    ]
    made_with = dataclasses.asdict(Settings("folder:noise", size))
    manifest = records.Manifest(shape, [str(label) for label in range(classes)], shards, made_with)
    records.write_manifest(folder, manifest)
    return manifest
