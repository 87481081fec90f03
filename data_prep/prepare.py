"""Prepare a set: plan its shards from its source, have an engine make what is missing, write the manifest."""

import dataclasses
import math
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from data_prep import images, records, scores, shards, spark, texts, tokens
from data_prep.articles import open_articles
from data_prep.images import Settings
from data_prep.shards import Made, Planned
from data_prep.sources import PATHS, is_alike, open_source, tfds, tfds_reading
from data_prep.texts import TextSettings
from lottery.base import files
from lottery.base.errors import InputError

_BEGUN = ".begun.json"
LEFT_BEHIND = (_BEGUN, ".*.done", ".*.tmp", ".lock")  # by a process that was killed, or is at work

AnySettings = Settings | TextSettings


@dataclasses.dataclass(frozen=True)
class Means:
    """How a set is prepared, which changes nothing of what it holds. `workers` is the number of local processes (0: one per
    core); `master` the Spark master URL; `max_bad` the share of the source that may be broken; `data_dir` where TensorFlow
    Datasets keeps its files; `compares_source` whether a set that is there already is compared with its source."""

    engine: Literal["local", "spark"] = "local"
    workers: int = 0
    master: str = "local[*]"
    max_bad: float = 0.001
    data_dir: Path | None = None
    compares_source: bool = False


LOCALLY = Means()
Begin = Callable[[int], Callable[[int], None]]


def prepare(
    settings: AnySettings,
    folder: Path,
    means: Means = LOCALLY,
    begin: Begin = lambda total: lambda count: None,
    known: Collection[str] = (),
) -> records.Manifest:
    """Write the prepared set to `folder`, whose lock the caller holds; what is there already is not made again.

    `begin` is told the number of examples to make and returns a function to call with those just done; `known` are digests as
    `existing` takes them. Raises InputError when the set there was made with other settings, when a split would be empty, or
    when too much of the source is bad."""
    before = existing(settings, folder, known) if (folder / records.MANIFEST).exists() else None
    if before and before.is_whole(folder):
        return before
    if means.engine == "spark":
        if isinstance(settings, TextSettings):
            raise InputError(f"--engine spark makes records of images, and {settings.source} has texts: use --engine local")
        spark.check(means.master)
    place, data_dir = folder.resolve(), means.data_dir
    planned = texts.plan(settings, place) if isinstance(settings, TextSettings) else images.plan(settings, place, data_dir)
    if before and before.source != planned.manifest.source:
        raise InputError(
            f"files of {folder} are missing, and {settings.source} is another now: "
            "bring the old one back, or remove that folder and prepare the set anew"
        )
    if before and before.beside != planned.manifest.beside:
        raise InputError(
            f"{', '.join(planned.beside)} would be another than that of {folder}, which was made by {_versions(before)}: "
            "install these, or remove that folder and prepare the set anew"
        )
    for name in sorted(path.name for path in folder.glob("[!.]*")):
        if name not in (records.MANIFEST, *planned.beside) and not name.endswith(".tfrecord"):  # such as the images themselves
            raise InputError(f"{folder} holds other things ({name}): name a new or empty folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    files.remove_stale(folder)
    _begin(folder, planned.manifest, settings)
    for name, content in planned.beside.items():
        files.write_bytes(folder / name, content)
    manifest = _with_shards(planned.manifest, folder, _make(planned, before, means, begin))
    tfds_reading.stop()
    if before:
        _check_mended(folder, manifest, before)
    else:
        records.write_manifest(folder, manifest)
    clear(folder)
    return before or manifest


def clear(folder: Path) -> None:
    """Remove the notes of a preparation that is over. Only for the holder of the folder's lock."""
    shards.forget(folder)
    (folder / _BEGUN).unlink(missing_ok=True)


def existing(settings: AnySettings, folder: Path, known: Collection[str] = ()) -> records.Manifest:
    """The manifest of the set in `folder`, which must have been made with `settings`; else InputError says how it differs. If
    its digest is among the `known` ones, its source may have been somewhere else."""
    manifest = records.read_manifest(folder)
    _check_settings(folder, manifest.made_with, settings, manifest.digest in known)
    if isinstance(settings, TextSettings):
        texts.check_tokenizer(settings, folder, manifest)
    else:
        scores.check(Path(settings.scores), folder, manifest.beside.get(scores.FILE))
    return manifest


def expected(settings: AnySettings) -> records.Manifest:
    """The manifest of a set that is not prepared, as far as its source tells: its shards have no checksum, and there are none
    where images are still to be downloaded, or of texts. Raises InputError as `prepare` does."""
    made_with = dataclasses.asdict(settings)
    if isinstance(settings, TextSettings):
        ids = tokens.size(tokens.read(Path(settings.tokenizer))) if settings.tokenizer else settings.vocabulary
        return records.Manifest(settings.shape, [], [], made_with, {"ids": str(ids)}, fields=settings.fields)
    kind, _, name = settings.source.partition(":")
    if kind == "tfds" and (classes := tfds.classes_to_download(name)):
        return records.Manifest(settings.shape, classes[: settings.classes or None], [], made_with)
    planned = images.plan(settings, Path())
    tfds_reading.stop()
    shards = [records.Shard(job.name, job.split, job.count, job.count * math.prod(settings.shape), "") for job in planned.jobs]
    return dataclasses.replace(planned.manifest, shards=shards)


def difference(settings: AnySettings, manifest: records.Manifest) -> str | None:
    """What has become of the files that a set was made from; None where they are the same, or not at hand."""
    kind, _, path = settings.source.partition(":")
    if kind not in PATHS or not Path(path).exists():
        return None
    try:
        if isinstance(settings, TextSettings):
            fingerprints = [open_articles(settings.source, settings.candidates).fingerprint]
        else:
            fingerprints = open_source(settings.source).fingerprints
    except InputError as error:
        return f"can no longer be read ({error})"
    return None if fingerprints == manifest.source else "has changed since"


def settings_of(manifest: records.Manifest) -> AnySettings:
    """The settings that a set was made with. Raises InputError where its manifest does not say."""
    try:
        return (TextSettings if manifest.fields else Settings)(**manifest.made_with)
    except TypeError:
        raise InputError("the manifest of these records does not say what they were made from: prepare them anew") from None


def _begin(folder: Path, planned: records.Manifest, settings: AnySettings) -> None:
    """Note what the shards in `folder` are made from; forget those of a preparation that was begun with another source."""
    note = folder / _BEGUN
    begun = {"made_with": planned.made_with, "made_by": planned.made_by, "source": planned.source, "beside": planned.beside}
    if note.exists():
        before = files.read_json(note)
        _check_settings(folder, before["made_with"], settings)
        if before == begun:
            return
    shards.forget(folder)
    files.write_json(note, begun)


def _make(planned: Planned, before: records.Manifest | None, means: Means, begin: Begin) -> list[Made]:
    """Every shard of the set, made now (the largest first, so that all workers end together) or before: left by an interrupted
    preparation, or listed in a manifest that lacks others. Raises InputError as soon as too many examples are bad."""
    jobs = planned.jobs
    folder = jobs[0].folder
    listed = {shard.name: Made(shard, []) for shard in (before.shards if before else []) if shard.is_whole(folder)}
    made = {job.name: one for job in jobs if (one := listed.get(job.name) or shards.made_before(job))}
    missing = sorted((job for job in jobs if job.name not in made), key=lambda job: -job.count)
    progress = begin(sum(job.count for job in missing))
    on_spark = means.engine == "spark" and missing
    workers = means.workers or len(os.sched_getaffinity(0))
    if not before:
        _check_bad(planned, made.values(), means)
    for one in spark.run(missing, means.master) if on_spark else shards.run(missing, workers):
        made[one.shard.name] = one
        if not before:
            _check_bad(planned, made.values(), means)
        progress(one.count)
    return [made[job.name] for job in jobs]


def _check_bad(planned: Planned, made: Iterable[Made], means: Means) -> None:
    """Raise InputError when too much of the source is bad, as far as is known."""
    bad = [*planned.manifest.bad, *(bad for one in made for bad in one.bad)]
    count = len(planned.manifest.bad) + sum(job.count for job in planned.jobs)
    if len(bad) > means.max_bad * count:
        kind = "texts cannot be read" if planned.manifest.fields else "images cannot be decoded"
        raise InputError(
            f"{len(bad)} of {count} {kind} so far, more than --max-bad {means.max_bad:g} allows "
            f"({bad[0].name}: {bad[0].reason}): mend or remove them, or raise --max-bad"
        )


def _with_shards(planned: records.Manifest, folder: Path, made: Sequence[Made]) -> records.Manifest:
    """The whole set; a shard in which nothing is left is removed."""
    for one in made:
        if not one.shard.count:
            (folder / one.shard.name).unlink()
    kept = [one.shard for one in made if one.shard.count]
    for split in records.SPLITS:
        if not any(shard.split == split for shard in kept):
            raise InputError(f"nothing of the {split} split of {planned.made_with['source']} can be read")
    return dataclasses.replace(planned, shards=kept, bad=[*planned.bad, *(bad for one in made for bad in one.bad)])


def _check_mended(folder: Path, manifest: records.Manifest, before: records.Manifest) -> None:
    """Raise InputError when shards that were made again are not those of the manifest; they are removed."""
    others = [shard.name for shard in manifest.shards if shard not in before.shards]
    for name in others:
        (folder / name).unlink()
    if others:
        raise InputError(
            f"{others[0]} made again in {folder} is not what its manifest says: its source has changed, or what made "
            f"it ({_versions(before)}); remove that folder and prepare the set anew"
        )


def _versions(manifest: records.Manifest) -> str:
    return ", ".join(f"{name} {version}" for name, version in manifest.made_by.items() if name not in ("ids", "candidates"))


def _check_settings(folder: Path, made_with: dict[str, Any], wanted: AnySettings, is_known: bool = False) -> None:
    there = {field.name: field.default for field in dataclasses.fields(wanted)} | made_with
    held = {key: there.get(key.partition(".")[2]) for key in wanted.values}
    if is_known and is_alike(str(held["data.source"]), wanted.source):
        held["data.source"] = wanted.source
    differs = [
        f"{key} {held[key]!r} there, {value!r} wanted"
        for key, value in wanted.values.items()
        if held[key] != value and not (key in ("texts.tokenizer", "data.scores") and held[key] and value)  # compared by content
    ]
    if differs:
        raise InputError(
            f"the records in {folder} were made with other settings ({'; '.join(differs)}): "
            "keep to those, or prepare records in another place (--out, data.path, IMP_DATA)"
        )
