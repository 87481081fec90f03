"""Every file of a record directory or a run directory checked: what it holds, and that what should be there is."""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from data_prep import files, records
from data_prep.errors import InputError, one_line
from lottery import recipe, store
from lottery.progress import Reporter
from lottery.run import Network, Replicate

_OF_A_RUN = re.compile(r"replicate-\d+|train|snapshots|masks|retrain|rounds")  # what people put elsewhere for room

Check = tuple[Path, Callable[[], object]]


@dataclasses.dataclass(frozen=True)
class Checked:
    """A file, and what is wrong with it (None: nothing)."""

    path: str
    problem: str | None


def verify(path: Path, reporter: Reporter) -> list[Checked]:
    """Check `path` file by file, changing nothing. Raises InputError when it is neither records nor a run directory."""
    if not path.is_dir():
        raise InputError(f"{path} is not a folder: name a folder of records or a run directory")
    if (path / records.MANIFEST).exists() or any(path.glob("*.tfrecord")):
        checks = list(_records(path))
    elif (path / "recipe.toml").exists() or any(path.glob("replicate-*")):
        checks = list(_run(path))
    else:
        raise InputError(f"{path} holds neither records (manifest.json) nor a run (recipe.toml): name another folder")
    with reporter.counting(f"verifying {path}", len(checks), "files") as progress:
        found = []
        for file, check in checks:
            found.append(Checked(str(file), _problem(file, check)))
            progress(1)
    return found


def _problem(file: Path, check: Callable[[], object]) -> str | None:
    try:
        check()
        return None
    except Exception as error:  # damaged bytes may break their reader in any way
        line = one_line(error) or f"{type(error).__name__}: {error}".splitlines()[0]
        return line if str(file) in line else f"{file}: {line}"


def _records(folder: Path) -> Iterator[Check]:
    yield folder / records.MANIFEST, partial(records.read_manifest, folder)
    try:
        manifest = records.read_manifest(folder)
    except InputError:
        return
    for shard in manifest.shards:
        yield folder / shard.name, partial(records.check_shard, folder, manifest, shard)
    listed = {shard.name for shard in manifest.shards}
    for path in sorted(folder.glob("*.tfrecord")):
        if path.name not in listed:
            yield path, partial(_refuse, f"{path} is not in the manifest: remove it")


def _run(folder: Path) -> Iterator[Check]:
    if not (folder / "recipe.toml").exists():
        yield folder / "recipe.toml", partial(recipe.load, folder / "recipe.toml")
    for path in sorted(_files(folder)):
        if path.suffix in _READERS and path.is_file() and not path.name.startswith("."):
            yield path, partial(_read, path)
    for replicate in map(Replicate, sorted(folder.glob("replicate-*"))):
        for source, promised in _promises(replicate):
            try:
                missing = [path for path in promised() if not path.exists()]
            except (KeyError, TypeError, ValueError, AttributeError):
                yield source, partial(_refuse, f"{source} does not say what it should: remove it and run its stage again")
                continue
            for path in missing:
                yield path, partial(_refuse, f"{path} is missing, though {source} is there: remove that and run its stage")


def _files(folder: Path) -> Iterator[Path]:
    """The files below `folder`, and in links that stand for folders of a run; one that leads back is not entered again."""
    entered = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        entered.add(os.path.realpath(place))
        paths = {name: os.path.join(place, name) for name in folders}
        ours = [name for name, path in paths.items() if not os.path.islink(path) or _OF_A_RUN.fullmatch(name)]
        folders[:] = [name for name in ours if os.path.realpath(paths[name]) not in entered]
        yield from (Path(place, name) for name in names)


def _read(path: Path) -> None:
    """What was there when the list was made may be gone: a training that ended removes its checkpoint."""
    if path.exists():
        _READERS[path.suffix](path)


def _promises(replicate: Replicate) -> Iterator[tuple[Path, Callable[[], list[Path]]]]:
    """Files that are written after others and say that these are there, each with what gives those."""
    yield replicate.thresholds, partial(_masks, replicate)
    yield replicate.dense.result, partial(_dense, replicate)
    for level in replicate.levels():
        yield level.table, partial(list, [level.mask])
    for network in replicate.networks():
        yield network.result, partial(_trained, network, [network.metrics, network.final])


def _masks(replicate: Replicate) -> list[Path]:
    return [replicate.mask(Fraction(str(row["quantile"]))) for row in _content(replicate.thresholds).get("quantiles", ())]


def _dense(replicate: Replicate) -> list[Path]:
    dense = replicate.dense
    step = _content(dense.result)["step"] if _content(dense.result).get("status") == "done" else 0
    return _trained(dense, [dense.metrics, replicate.snapshot(int(step))])


def _trained(network: Network, files_of_it: list[Path]) -> list[Path]:
    return files_of_it if _content(network.result).get("status") == "done" else []


def _content(path: Path) -> dict[str, Any]:
    """What a JSON file says; nothing where it is missing or damaged, which is found elsewhere."""
    try:
        return dict(files.read_json(path))
    except (OSError, InputError, TypeError, ValueError):
        return {}


def _read_lines(path: Path) -> None:
    """A line that a kill has cut short is no damage as long as the training has not ended: going on, it is written again."""
    lines = path.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n") and not Network(path.parent).result.exists():
        lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)
        except ValueError as error:
            raise InputError(f"{path} is damaged in line {number} ({error}): remove {path.parent} and run its stage") from None


def _refuse(problem: str) -> None:
    raise InputError(problem)


_READERS: dict[str, Callable[[Path], object]] = {
    ".h5": store.load,
    ".json": files.read_json,
    ".jsonl": _read_lines,
    ".toml": lambda path: recipe.resolve(recipe.load(path), origin=str(path)),
}
