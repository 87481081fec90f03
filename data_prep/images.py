"""The set of a source of images: its settings, which image goes into which shard, and each image made an example."""

import dataclasses
import importlib.metadata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import features

from data_prep import records, scores
from data_prep.pictures import Undecodable, pixels
from data_prep.shards import Job, Planned
from data_prep.sources import PATHS, Source, Split, open_source, resolved
from lottery.base import files
from lottery.base.errors import InputError


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a prepared set depends on. `validation` is the fraction of the training images held out; `test` the fraction cut off
    first where the source has no images of its own to test on. `examples` are taken of the training images that are left; 0
    takes all. All three are stratified by class and drawn with `split_seed`. `classes` keeps the first so many classes; 0 keeps
    all. `channels` is 3, or 1 for grey images. `label_noise` is that of the training labels alone, see `noisy`.
    Of the training images that are left then, `hardest` or `easiest` keeps some by their `scores`, see `scores.chosen`."""

    source: str
    size: int
    validation: float = 0.2
    test: float = 0.2
    split_seed: int = 0
    classes: int = 0
    channels: int = 3
    examples: int = 0
    label_noise: float = 0.0
    hardest: float = 0.0
    easiest: float = 0.0
    scores: str = ""

    def __post_init__(self) -> None:
        """The same files are the same source from wherever they are named. Raises InputError for any other `channels`."""
        if self.channels not in (1, 3):
            raise InputError(f"images have 3 channels or 1, not {self.channels}: change data.channels")
        object.__setattr__(self, "source", resolved(self.source))
        object.__setattr__(self, "scores", self.scores and str(Path(self.scores).expanduser().resolve()))

    @property
    def shape(self) -> records.Shape:
        return self.size, self.size, self.channels

    @property
    def values(self) -> dict[str, Any]:
        """The recipe's keys and what they are set to."""
        return {f"data.{key}": value for key, value in dataclasses.asdict(self).items()}

    def folder(self, root: Path) -> Path:
        """Where the set lies under `root`: `digits-32`, `tfds-mnist-..10pct-28-grey`, `folder-photos-64-first10`."""
        kind, colon, name = self.source.partition(":")
        if kind in PATHS:
            name = Path(name).stem if kind == "arrays" else Path(name).name
        name, _, part = name.partition("[")
        name = name.replace("/", "-").replace(":", "-")
        name += part and f"-{part.rstrip(']').replace(':', '..').replace('%', 'pct')}"
        kept = "-grey" * (self.channels == 1) + (f"-first{self.classes}" if self.classes else "")
        kept += f"-{self.examples}-examples" if self.examples else ""
        kept += f"-{100 * self.label_noise:g}pct-noise" if self.label_noise else ""
        if amount := self.hardest or self.easiest:
            kept += f"-{'hardest' if self.hardest else 'easiest'}-{f'{100 * amount:g}pct' if amount < 1 else int(amount)}"
        return root / f"{kind}{colon and '-'}{name}-{self.size}{kept}"


@dataclasses.dataclass(frozen=True)
class Images(Job):
    """A shard of images, whose `labels` are int32, [count], brought to `shape`."""

    shape: records.Shape
    labels: np.ndarray

    def examples(self) -> Iterator[records.Example | records.Bad]:
        content = self.part()
        for name, picture, label in zip(content.names, content.pictures, self.labels, strict=True):
            try:
                yield pixels(picture, self.shape[0], self.shape[2]), int(label)
            except Undecodable as error:
                yield records.Bad(self.split, name, str(error))


def plan(settings: Settings, folder: Path, data_dir: Path | None = None) -> Planned:
    """The set without its shards, and which image goes into which shard: a function of `settings` and the source alone.
    Raises InputError for a split without images, and for training images without a class."""
    source = open_source(settings.source, data_dir)
    classes = source.classes[: settings.classes or None]
    if settings.classes > len(source.classes):
        raise InputError(f"{settings.source} has {len(source.classes)} classes, not {settings.classes}: lower --classes")
    if len(classes) < 2:
        raise InputError(f"{settings.source} gives a single class, {classes[0]}: a network needs two to tell apart")
    jobs: list[Job] = []
    beside: dict[str, bytes] = {}
    for name, (split, indices) in _splits(source, settings).items():
        if not len(indices):
            raise InputError(
                f"the {name} split of {settings.source} would be empty: change --val or --test (data.validation, data.test)"
            )
        if not split.mixed:
            indices = np.random.default_rng([settings.split_seed, 2]).permutation(indices)
        if settings.scores and name == "train":
            beside = {scores.FILE: scores.read(Path(settings.scores))}
            chosen = scores.chosen(beside[scores.FILE], split.labels[indices], settings.hardest, settings.easiest)
            indices = indices[chosen]
        step = records.examples_per_shard(settings.shape)
        for number, start in enumerate(range(0, len(indices), step)):
            part = indices[start : start + step]
            shard = records.shard_name(name, number)
            jobs.append(Images(folder, shard, name, len(part), split.part(part), settings.shape, split.labels[part]))
    manifest = records.Manifest(
        settings.shape,
        classes,
        shards=[],
        made_with=dataclasses.asdict(settings),
        made_by=_versions(),
        source=source.fingerprints,
        beside={name: files.sha256(content) for name, content in beside.items()},
        passed_over=source.passed_over,
    )
    return Planned(manifest, jobs, beside)


def brightest(folder: Path, manifest: records.Manifest) -> int:
    """The largest value, 0 .. 255, in the first block of training images."""
    block = records.blocks(folder, manifest, "train")[0]
    return int(records.read_examples([block], manifest.shape, np.arange(block.count))[0].max())


def stratified(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """A boolean array that marks round(fraction x count) examples of each class, drawn with `seed`."""
    return _marked(labels, [round(fraction * size) for size in np.unique(labels, return_counts=True)[1]], seed)


def subset(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """A boolean array that marks `count` examples, each class's share of them by largest remainder, drawn with `seed`."""
    sizes = np.unique(labels, return_counts=True)[1]
    counts, remainders = np.divmod(count * sizes, len(labels))
    counts[np.argsort(-remainders, kind="stable")[: count - counts.sum()]] += 1
    return _marked(labels, counts, seed)


def noisy(labels: np.ndarray, share: float, classes: int, seed: int) -> np.ndarray:
    """`labels` (int32, [n]), each turned with the probability `share` into one of the other classes, all of which are equally
    likely: the symmetric noise of He et al. 2022 (arXiv 2206.08684), where no label is drawn that was there before. What
    becomes of a label is a function of (seed, index), and one that a small share turns, a larger one turns alike."""
    is_turned, by = np.random.default_rng([seed, 3, 1]).random((len(labels), 2)).T
    turned = (labels + 1 + (by * (classes - 1)).astype(np.int32)) % classes
    return np.where(is_turned < share, turned, labels).astype(np.int32)


def _marked(labels: np.ndarray, counts: Iterable[int], seed: int) -> np.ndarray:
    """Marks so many examples of each class, which are drawn with `seed`."""
    marked = np.zeros(len(labels), bool)
    for label, count in zip(np.unique(labels), counts, strict=True):
        order = np.random.default_rng([seed, int(label)]).permutation(np.flatnonzero(labels == label))
        marked[order[:count]] = True
    return marked


def _splits(source: Source, settings: Settings) -> dict[str, tuple[Split, np.ndarray]]:
    """The indices of each split's images, ascending, of the classes that are kept. Noise is in training labels alone."""
    train, test = source.train, source.test
    if (train.labels < 0).any():
        raise InputError(f"the train split of {settings.source} has images without a class: choose another set")
    indices, tested = (np.flatnonzero(split.labels < (settings.classes or np.inf)) for split in (train, test or train))
    if test is None:
        cut = stratified(train.labels[indices], settings.test, settings.split_seed)
        test, tested, indices = train, indices[cut], indices[~cut]
    held_out = stratified(train.labels[indices], settings.validation, settings.split_seed + 1)
    validation, indices = indices[held_out], indices[~held_out]
    if settings.examples:
        labels = train.labels[indices]
        records.check_examples(settings.examples, len(indices), len(np.unique(labels)))
        indices = indices[subset(labels, settings.examples, settings.split_seed + 2)]
    classes = settings.classes or len(source.classes)
    trained = dataclasses.replace(train, labels=noisy(train.labels, settings.label_noise, classes, settings.split_seed))
    return {"train": (trained, indices), "validation": (train, validation), "test": (test, tested)}


def _versions() -> dict[str, str]:
    """What decides how an image is decoded."""
    jpeg = features.version_feature("libjpeg_turbo") or features.version_codec("jpg")
    return {"pillow": importlib.metadata.version("pillow"), "libjpeg": str(jpeg), "numpy": np.__version__}
