"""A prepared set of noise, for measurements that look at no picture."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import records


def shape_of(size: int) -> records.Shape:
    """Of images of `size` x `size`: three channels."""
    return size, size, 3


def make_noise(
    folder: Path, count: int, size: int, classes: int, held: int = 1, made_with: Mapping[str, Any] | None = None
) -> records.Manifest:
    """`count` training images of `size` x `size` in `folder`, and `held` in each of the other splits; recipes read a set only
    when `made_with`, the settings that it says it was prepared with, are theirs."""
    rng = np.random.default_rng(0)
    shape = shape_of(size)

    def examples(number: int) -> Iterator[records.Example]:
        for index in range(number):
            yield rng.integers(0, 256, shape, np.uint8), index % classes

    step = records.images_per_shard(shape)
    shards = [
        records.write_shard(folder / records.shard_name("train", number), "train", examples(min(step, count - first)))
        for number, first in enumerate(range(0, count, step))
    ]
    for split in ("validation", "test"):
        shards.append(records.write_shard(folder / records.shard_name(split, 0), split, examples(held)))
    manifest = records.Manifest(shape, [str(label) for label in range(classes)], shards, dict(made_with or {}))
    records.write_manifest(folder, manifest)
    return manifest
