"""Prepare a set: plan splits and shards from the labels, have an engine make what is missing, write the manifest."""

import dataclasses
import importlib.metadata
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import features

from data_prep import files, records, shards, spark
from data_prep.errors import InputError
from data_prep.shards import Made, Task
from data_prep.sources import PATHS, Source, Split, open_source

_BEGUN = ".begun.json"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a prepared set depends on. `validation` is the fraction of the training images held out; `test` the fraction cut off
    first where the source has no images of its own to test on. Both are stratified by class and drawn with `split_seed`.
    `classes` keeps the first so many classes; 0 keeps all. `channels` is 3, or 1 for grey images."""

    source: str
    size: int
    validation: float = 0.2
    test: float = 0.2
    split_seed: int = 0
    classes: int = 0
    channels: int = 3

    def __post_init__(self) -> None:
        """The same files are the same source from wherever they are named. Raises InputError for any other `channels`."""
        if self.channels not in (1, 3):
            raise InputError(f"images have 3 channels or 1, not {self.channels}: change data.channels")
        kind, _, name = self.source.partition(":")
        if kind in PATHS:
            object.__setattr__(self, "source", f"{kind}:{Path(name).expanduser().resolve()}")

    @property
    def shape(self) -> records.Shape:
        return self.size, self.size, self.channels

    def folder(self, root: Path) -> Path:
        """Where the set lies under `root`: `digits-32`, `tfds-mnist-28-grey`, `folder-photos-64-first10`."""
        kind, colon, name = self.source.partition(":")
        if kind in PATHS:
            name = Path(name).stem if kind == "arrays" else Path(name).name
        kept = "-grey" * (self.channels == 1) + (f"-first{self.classes}" if self.classes else "")
        return root / f"{kind}{colon and '-'}{name.replace('/', '-').replace(':', '-')}-{self.size}{kept}"


@dataclasses.dataclass(frozen=True)
class Means:
    """How a set is prepared, which changes nothing of what it holds. `workers` is the number of local processes (0: one per
    core); `master` the Spark master URL; `max_bad` the share of images that may be undecodable; `data_dir` where TensorFlow
    Datasets keeps its files."""

    engine: Literal["local", "spark"] = "local"
    workers: int = 0
    master: str = "local[*]"
    max_bad: float = 0.001
    data_dir: Path | None = None


LOCALLY = Means()
Begin = Callable[[int], Callable[[int], None]]


def prepare(
    settings: Settings, folder: Path, means: Means = LOCALLY, begin: Begin = lambda total: lambda count: None
) -> records.Manifest:
    """Write the prepared set to `folder`, whose lock the caller holds; what is there already is not made again.

    `begin` is told the number of images to decode and returns a function to call with those just done. Raises InputError
    when the set there was made with other settings, when a split would be empty, or when too many images are bad.
    """
    before = existing(settings, folder) if (folder / records.MANIFEST).exists() else None
    if before and before.is_whole(folder):
        return before
    if means.engine == "spark":
        spark.check(means.master)
    planned, tasks = plan(settings, open_source(settings.source, means.data_dir), folder.resolve())
    if before and before.source != planned.source:
        raise InputError(
            f"shards of {folder} are missing, and other images lie in {settings.source} now: "
            "bring the old ones back, or remove that folder and prepare the set anew"
        )
    for name in sorted(path.name for path in folder.glob("[!.]*")):
        if name != records.MANIFEST and not name.endswith(".tfrecord"):  # such as the images themselves
            raise InputError(f"{folder} holds other things ({name}): name a new or empty folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    files.remove_stale(folder)
    _begin(folder, planned)
    manifest = _with_shards(planned, folder, _make(tasks, before, means, begin))
    if before:
        _check_mended(folder, manifest, before)
    else:
        records.write_manifest(folder, manifest)
    shards.forget(folder)
    (folder / _BEGUN).unlink()
    return before or manifest


def existing(settings: Settings, folder: Path) -> records.Manifest:
    """The manifest of the set in `folder`, which must have been made with `settings`; else InputError says how it differs."""
    manifest = records.read_manifest(folder)
    _check_settings(folder, manifest.made_with, dataclasses.asdict(settings))
    return manifest


def settings_of(manifest: records.Manifest) -> Settings:
    """The settings that a set was made with. Raises InputError where its manifest does not say."""
    try:
        return Settings(**manifest.made_with)
    except TypeError:
        raise InputError("the manifest of these records does not say what they were made from: prepare them anew") from None


def plan(settings: Settings, source: Source, folder: Path) -> tuple[records.Manifest, list[Task]]:
    """The set without its shards, and which image goes into which shard: a function of `settings` and the source alone.
    Raises InputError for a split without images, and for training images without a class."""
    classes = source.classes[: settings.classes or None]
    if settings.classes > len(source.classes):
        raise InputError(f"{settings.source} has {len(source.classes)} classes, not {settings.classes}: lower --classes")
    if len(classes) < 2:
        raise InputError(f"{settings.source} gives a single class, {classes[0]}: a network needs two to tell apart")
    tasks: list[Task] = []
    for name, (split, indices) in _splits(source, settings).items():
        if not len(indices):
            raise InputError(
                f"the {name} split of {settings.source} would be empty: change --val or --test (data.validation, data.test)"
            )
        if not split.mixed:
            indices = np.random.default_rng([settings.split_seed, 2]).permutation(indices)
        step = records.images_per_shard(settings.shape)
        for number, start in enumerate(range(0, len(indices), step)):
            part = indices[start : start + step]
            shard = records.shard_name(name, number)
            tasks.append(Task(folder, shard, name, settings.shape, split.part(part), split.labels[part]))
    fingerprints = [split.fingerprint for split in (source.train, source.test) if split]
    made_with = dataclasses.asdict(settings)
    return records.Manifest(settings.shape, classes, [], made_with, _versions(), source=fingerprints), tasks


def stratified(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """A boolean array that marks round(fraction x count) examples of each class, drawn with `seed`."""
    marked = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = np.random.default_rng([seed, int(label)]).permutation(members)
        marked[order[: round(fraction * len(members))]] = True
    return marked


def _splits(source: Source, settings: Settings) -> dict[str, tuple[Split, np.ndarray]]:
    """The indices of each split's images, ascending, of the classes that are kept."""
    train, test = source.train, source.test
    if (train.labels < 0).any():
        raise InputError(f"the train split of {settings.source} has images without a class: choose another set")
    indices, tested = (np.flatnonzero(split.labels < (settings.classes or np.inf)) for split in (train, test or train))
    if test is None:
        cut = stratified(train.labels[indices], settings.test, settings.split_seed)
        test, tested, indices = train, indices[cut], indices[~cut]
    held_out = stratified(train.labels[indices], settings.validation, settings.split_seed + 1)
    return {"train": (train, indices[~held_out]), "validation": (train, indices[held_out]), "test": (test, tested)}


def _begin(folder: Path, planned: records.Manifest) -> None:
    """Note what the shards in `folder` are made from; forget those of a preparation that was begun with other images."""
    note = folder / _BEGUN
    begun = {"made_with": planned.made_with, "made_by": planned.made_by, "source": planned.source}
    if note.exists():
        before = files.read_json(note)
        _check_settings(folder, before["made_with"], planned.made_with)
        if before == begun:
            return
    shards.forget(folder)
    files.write_json(note, begun)


def _make(tasks: Sequence[Task], before: records.Manifest | None, means: Means, begin: Begin) -> list[Made]:
    """Every shard of the set, made now (the largest first, so that all workers end together) or before: left by an interrupted
    preparation, or listed in a manifest that lacks others. Raises InputError as soon as too many images are bad."""
    folder = tasks[0].folder
    listed = {shard.name: Made(shard, []) for shard in (before.shards if before else []) if shard.is_whole(folder)}
    made = {task.name: one for task in tasks if (one := listed.get(task.name) or shards.made_before(task))}
    missing = sorted((task for task in tasks if task.name not in made), key=lambda task: -len(task.labels))
    progress, images = begin(sum(len(task.labels) for task in missing)), sum(len(task.labels) for task in tasks)
    on_spark = means.engine == "spark" and missing
    workers = means.workers or len(os.sched_getaffinity(0))
    for one in spark.run(missing, means.master) if on_spark else shards.run(missing, workers):
        made[one.shard.name] = one
        bad = [bad for each in made.values() for bad in each.bad]
        if not before and len(bad) > means.max_bad * images:
            raise InputError(
                f"{len(bad)} of {images} images cannot be decoded so far, more than --max-bad {means.max_bad:g} allows "
                f"({bad[0].name}: {bad[0].reason}): mend or remove them, or raise --max-bad"
            )
        progress(one.images)
    return [made[task.name] for task in tasks]


def _with_shards(planned: records.Manifest, folder: Path, made: Sequence[Made]) -> records.Manifest:
    """The whole set; a shard in which nothing is left is removed."""
    for one in made:
        if not one.shard.count:
            (folder / one.shard.name).unlink()
    kept = [one.shard for one in made if one.shard.count]
    for split in records.SPLITS:
        if not any(shard.split == split for shard in kept):
            raise InputError(f"no image of the {split} split of {planned.made_with['source']} can be decoded")
    return dataclasses.replace(planned, shards=kept, bad=[bad for one in made for bad in one.bad])


def _check_mended(folder: Path, manifest: records.Manifest, before: records.Manifest) -> None:
    """Raise InputError when shards that were made again are not those of the manifest; they are removed."""
    others = [shard.name for shard in manifest.shards if shard not in before.shards]
    for name in others:
        (folder / name).unlink()
    if others:
        versions = ", ".join(f"{name} {version}" for name, version in before.made_by.items())
        raise InputError(
            f"{others[0]} made again in {folder} is not what its manifest says: the images have changed, or what decoded "
            f"them ({versions}); remove that folder and prepare the set anew"
        )


def _check_settings(folder: Path, made_with: dict[str, Any], wanted: dict[str, Any]) -> None:
    there = {"channels": 3} | made_with
    differs = [
        f"data.{key} {there.get(key)!r} there, {wanted[key]!r} wanted" for key in wanted if there.get(key) != wanted[key]
    ]
    if differs:
        raise InputError(
            f"the records in {folder} were made with other settings ({'; '.join(differs)}): "
            "keep to those, or prepare records in another place (--out, data.path, IMP_DATA)"
        )


def _versions() -> dict[str, str]:
    """What decides how an image is decoded."""
    jpeg = features.version_feature("libjpeg_turbo") or features.version_codec("jpg")
    return {"pillow": importlib.metadata.version("pillow"), "libjpeg": str(jpeg), "numpy": np.__version__}
