"""What outputs were made from, by content, so that none is taken for that of another dense network, mask or set of images.

The table that is written last beside an output (`result.json` of a network, `thresholds.json` of the one-shot masks,
`round.json` of a round's) says two things, by names inside the replicate's folder and seals (sha256):

    outputs     the files that it stands for
    made_from   the files that they were made from; `records`, the digest of the images; `network`, that of the network

It holds where the tables of all that it was made from say the same of these files, and hold themselves. Images and network are
those of the replicate's dense network.
"""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from data_prep import files
from data_prep.errors import InputError
from lottery import journal, store
from lottery.identity import is_same, read_own
from lottery.run import Network, Replicate

WAY_OUT = "remove what was made so and run its stage again, or begin another run with --run"

_ORIGINS = {"records": "on other images", "network": "with another network"}


def seals(root: Path, paths: Iterable[Path]) -> dict[str, str]:
    """The seal of each of `paths` by its name inside `root`. Raises InputError for one that is missing or has none."""
    return {_name(root, path): _seal(path) for path in paths}


def rows(network: Network) -> list[journal.Row]:
    """The rows of a network's journal. Raises InputError where it is damaged, or not the one of its result."""
    found, result = journal.read(network.metrics), network.read_result()
    if result and result["timing"].get("journal", "") not in ("", journal.last_seal(network.metrics)):
        raise InputError(f"{network.metrics} lacks rows: remove {network.folder} and run its stage again")
    return found


class Lineage:
    """What the tables of one replicate say of its files. A table is read once."""

    def __init__(self, replicate: Replicate):
        self._replicate = replicate
        self._read = functools.cache(lambda table: (files.read_json if table == replicate.thresholds else read_own)(table))
        self.problem = functools.cache(self._problem)

    def check(self, path: Path) -> None:
        """Raise InputError where the file at `path`, which is about to be used, is not the one that its table was written
        for, or that table does not hold."""
        table = self._replicate.table_of(path)
        problem = self.problem(table)
        if not problem and self._read(table)["outputs"].get(_name(self._replicate.folder, path)) != _seal(path):
            problem = f"was written for another {path.name} than the one that is there"
        if problem:
            raise InputError(f"{table} {problem}: {WAY_OUT}")

    def _problem(self, table: Path) -> str | None:
        """Why the table does not hold, to be read behind its name; None where it does. Raises InputError where it, or another
        that it was made from, is damaged."""
        if not table.exists():
            return "is missing"
        content = self._read(table)
        if not {"outputs", "made_from"} <= content.keys():
            return "does not say what it stands for"
        for name, seal in content["made_from"].items():
            if name in _ORIGINS:
                if not is_same(self._dense.get(name, seal), seal):
                    return f"was made {_ORIGINS[name]} than the dense network of {self._replicate.folder.name}"
                continue
            source = self._replicate.table_of(self._replicate.folder / name)
            if found := self.problem(source):
                return f"was made from {name}, and {source} {found}"
            if self._read(source)["outputs"].get(name) != seal:
                return f"was made from another {name} than the one that is there"
        return None

    @functools.cached_property
    def _dense(self) -> dict[str, Any]:
        """What the dense network was made from; nothing where there is none, which whoever needs it says."""
        return self._replicate.origins()


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _seal(path: Path) -> str:
    if not path.exists():
        raise InputError(f"{path} is missing: run the stage that writes it")
    return _SEALS[path.suffix](path)


_SEALS: dict[str, Callable[[Path], str]] = {".h5": store.seal, ".json": files.json_seal}
