"""Prepared sets of noise, for measurements that look at no picture and read no text."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from data_prep import records, tokens
from data_prep.prepare import AnySettings, TextSettings

CLASSES = 10


def examples(settings: AnySettings, count: int, classes: int = CLASSES) -> Iterator[records.Example]:
    """So many images (uint8, of the shape in `settings`), or texts (uint8, [bytes]), with their labels."""
    if isinstance(settings, TextSettings):
        yield from _texts(settings, count)
        return
    rng = np.random.default_rng(0)
    for index in range(count):
        yield rng.integers(0, 256, settings.shape, np.uint8), index % classes


def manifest(settings: AnySettings, classes: int = CLASSES, shards: Sequence[records.Shard] = ()) -> records.Manifest:
    """That of a set of noise as `settings` have it: images of so many classes, or texts."""
    described = settings.shape, [str(label) for label in range(classes)], list(shards), dataclasses.asdict(settings)
    if isinstance(settings, TextSettings):
        return records.Manifest(*described, {"ids": str(_ids(settings))}, fields=settings.fields)
    return records.Manifest(*described)


def make_noise(folder: Path, count: int, settings: AnySettings, classes: int = CLASSES, held: int = 1) -> records.Manifest:
    """`count` training examples in `folder`, and `held` in each of the other splits."""
    folder.mkdir(exist_ok=True)
    step = records.examples_per_shard(settings.shape)
    parts = [("train", min(step, count - first)) for first in range(0, count, step)]
    shards = [
        records.write_shard(folder / records.shard_name(split, number), split, examples(settings, size, classes))
        for number, (split, size) in [*enumerate(parts), (0, ("validation", held)), (0, ("test", held))]
    ]
    made = manifest(settings, classes, shards)
    records.write_manifest(folder, made)
    return made


def _texts(settings: TextSettings, count: int) -> Iterator[records.Example]:
    """Texts without an end or padding, and any ROUGE."""
    rng = np.random.default_rng(0)
    first, last = len(tokens.SPECIAL), _ids(settings)
    arrays = {
        name: rng.random((count, *field.shape)) if field.dtype == "<f4" else rng.integers(first, last, (count, *field.shape))
        for name, field in settings.fields.items()
    }
    best = arrays["rouge"][:, 1:].mean(axis=2).argmax(axis=1)
    return zip(records.pack(arrays, settings.fields), best.tolist(), strict=True)


def _ids(settings: TextSettings) -> int:
    return tokens.size(tokens.read(Path(settings.tokenizer))) if settings.tokenizer else settings.vocabulary
