"""Checking every file of a record directory or a run directory: its content, and that no file is missing."""

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from data_prep import records
from lottery.base import files
from lottery.base.errors import InputError, one_line
from lottery.base.progress import Reporter
from lottery.experiment import reading
from lottery.experiment.recipe import FAMILY_NAME
from lottery.rundir import identity, journal, lineage, store
from lottery.rundir.lineage import WAY_OUT, Lineage
from lottery.rundir.names import ENVIRONMENT, RECIPE, NetworkFiles, Replicate, replicate_numbers
from lottery.rundir.records import PairRecord, Result

Check = tuple[Path, Callable[[], object]]
_READERS: dict[str, Callable[[Path], object]] = {".h5": store.load, ".json": files.read_json, ".jsonl": journal.read}
_OF_A_RUN = re.compile(rf"replicate-\d+|snapshots|masks|{FAMILY_NAME}")  # what people put elsewhere for room


def verify(path: Path, reporter: Reporter) -> dict[str, str | None]:
    """Check `path` file by file, changing nothing: each file, and what is wrong with it (None: nothing). Raises InputError when
    it is neither records nor a run directory."""
    if not path.is_dir():
        raise InputError(f"{path} is not a folder: name a folder of records or a run directory")
    if (path / records.MANIFEST).exists() or any(path.glob("*.tfrecord")):
        checks = list(_records(path))
    elif (path / RECIPE).exists() or any(path.glob("replicate-*")):
        checks = list(_run(path))
    else:
        raise InputError(f"{path} holds neither records (manifest.json) nor a run (recipe.toml): name another folder")
    with reporter.counting(f"verifying {path}", len(checks), "checks") as progress:
        found: dict[str, str | None] = {}
        for file, check in checks:
            found[str(file)] = found.get(str(file)) or _problem(file, check)
            progress(1)
    return found


def _problem(file: Path, check: Callable[[], object]) -> str | None:
    try:
        check()
        return None
    except Exception as error:  # damaged bytes may break their reader in any way
        line = one_line(error) or f"{type(error).__name__}: {error}".splitlines()[0]
        return line if str(file) in line else f"{file}: {line}"


def _refuse(problem: str) -> None:
    raise InputError(problem)


def _records(folder: Path) -> Iterator[Check]:
    yield folder / records.MANIFEST, partial(records.read_manifest, folder)
    try:
        manifest = records.read_manifest(folder)
    except InputError:
        return
    for shard in manifest.shards:
        yield folder / shard.name, partial(records.check_shard, folder, manifest, shard)
    for name in manifest.beside:
        yield folder / name, partial(records.check_beside, folder, manifest, name)
    for path in sorted({*folder.glob("*.tfrecord")} - {folder / shard.name for shard in manifest.shards}):
        yield path, partial(_refuse, f"{path} is not in the manifest: remove it")


def _run(folder: Path) -> Iterator[Check]:
    for path in (folder / RECIPE, folder / ENVIRONMENT, *sorted(_entries(folder))):
        yield path, partial(_read, path)
    for replicate in (Replicate(folder / f"replicate-{number}") for number in replicate_numbers(folder)):
        held = Lineage(replicate)
        for table in replicate.tables():
            yield table, partial(_check_lineage, held, table)
            for path, seal in _promised(replicate, table).items():
                yield path, partial(_check_promise, replicate, path, seal, table)


def _entries(folder: Path) -> Iterator[Path]:
    """What lies in the replicates and the sweep under the name of a file of ours, whatever it is, and links that no folder of a
    run would be. Links that one may be are entered, but none that leads back."""
    entered = {os.path.realpath(folder)}
    for top in (*folder.glob("replicate-*"), folder / "sweep"):
        if os.path.realpath(top) in entered:
            continue
        for place, folders, names in os.walk(top, followlinks=True):
            here = Path(place)
            entered.add(os.path.realpath(here))
            links = [name for name in folders if (here / name).is_symlink() and not _OF_A_RUN.fullmatch(name)]
            strange = [name for name in folders if name in links or Path(name).suffix in _READERS]
            folders[:] = [name for name in folders if name not in strange and os.path.realpath(here / name) not in entered]
            ours = [name for name in names if Path(name).suffix in _READERS and not name.startswith(".")]
            yield from (here / name for name in (*strange, *ours))


def _read(path: Path) -> None:
    """Raise what is wrong with a file. What was there when the list was made may be gone: a training that ended removes its
    checkpoint."""
    if path.is_symlink():
        raise InputError(f"{path} is a link, not what its stage wrote: put that in its place")
    if path.is_dir():
        raise InputError(f"{path} is a folder, not the file that its stage wrote: remove it and run its stage again")
    if path.name == RECIPE:
        reading.check_format(path)
        reading.resolve(reading.load_sealed(path), origin=str(path))
    elif path.exists() or path.name == ENVIRONMENT:
        _READERS[path.suffix](path)


def _check_lineage(held: Lineage, table: Path) -> None:
    """A damaged table is told by itself, and not again by what was made from what it stands for."""
    try:
        problem = held.problem(table)
    except InputError as error:
        if str(error).startswith(str(table)):
            raise
        return
    if problem:
        raise InputError(f"{table} {problem}: {WAY_OUT}")


def _promised(replicate: Replicate, table: Path) -> dict[Path, str | None]:
    """The files that a table says are there, each with the seal that it knows of it."""
    try:
        record = replicate.read(table)
    except (InputError, OSError):  # which is found elsewhere
        return {}
    unsealed = [] if isinstance(record, PairRecord) else [table.parent / identity.FILE]
    if isinstance(record, Result) and record.outputs:  # trained
        unsealed.append(NetworkFiles(table.parent).metrics)
    return {replicate.folder / name: seal for name, seal in record.outputs.items()} | dict.fromkeys(unsealed)


def _check_promise(replicate: Replicate, path: Path, seal: str | None, table: Path) -> None:
    if not path.exists():
        raise InputError(f"{path} is missing, though {table} is there: remove that and run its stage")
    if seal and [*lineage.seals(replicate.folder, [path]).values()] != [seal]:
        raise InputError(f"{path} is another file than {table} was written for: remove both and run its stage")
    if path.name == identity.FILE:
        identity.made_with(path.parent)
    if path.suffix == ".jsonl":
        lineage.rows(NetworkFiles(path.parent))
