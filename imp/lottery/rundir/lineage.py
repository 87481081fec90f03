"""What outputs were made from, by content. A table (`records.Record`) holds where the tables of all that it was made from say
the same of these files, and hold themselves; and where examples and network are those of the replicate's dense network."""

import functools
import os
from collections.abc import Iterable
from pathlib import Path

from lottery.base import files
from lottery.base.errors import InputError
from lottery.rundir import journal, predictions, store
from lottery.rundir.identity import is_same
from lottery.rundir.names import NetworkFiles, Replicate
from lottery.rundir.predictions import Predictions

WAY_OUT = "remove it and run its stage again, or start a new run with --run"

_ORIGINS = {"records": "on other examples", "network": "with another network", "weights": "from other weights"}


def seals(root: Path, paths: Iterable[Path]) -> dict[str, str]:
    """The seal of each of `paths` by its name inside `root`; of one in another replicate `../replicate-2/...`. Raises
    InputError for one that is missing or has none."""
    return {os.path.relpath(path, root): _seal(path) for path in paths}


def rows(network: NetworkFiles) -> list[journal.Row]:
    """The rows of a network's journal. Raises InputError if it is damaged, or does not belong to the network's result."""
    (found, seal), result = journal.read_sealed(network.metrics), network.read_result()
    if result and result.timing.journal not in ("", seal):
        raise InputError(f"{network.metrics} lacks rows: remove {network.folder} and run its stage again")
    return found


class Lineage:
    """What the tables of one replicate, and of others that it borrows from, say about their files. Each is read once."""

    def __init__(self, replicate: Replicate):
        self._replicate = replicate
        self._read, self._dense = functools.cache(replicate.read), functools.cache(replicate.origins)
        self.problem, self._beside = functools.cache(self._problem), functools.cache(self._in)

    def check(self, path: Path) -> None:
        """Raise InputError if the file at `path` is not the one that its table was written for, or that table does not hold."""
        if not path.is_relative_to(self._replicate.folder):
            self._beside(path.relative_to(self._replicate.folder.parent).parts[0]).check(path)
            return
        table = self._replicate.table_of(path)
        problem = self.problem(table)
        if not problem and self._read(table).outputs.get(self._replicate.name_of(path)) != _seal(path):
            problem = f"was written for another {path.name} than the one that is there"
        if problem:
            raise InputError(f"{table} {problem}: {WAY_OUT}")

    def predictions(self, network: NetworkFiles) -> dict[str, Predictions]:
        """Those of a finished network by split; none of one that a version without them trained. Raises InputError as `check`
        does, and where the file is missing or damaged."""
        if self._replicate.name_of(network.predictions) not in self._read(network.result).outputs:
            return {}
        with store.promised_by(network.result):
            self.check(network.predictions)
            return predictions.load(network.predictions)

    def _problem(self, table: Path) -> str | None:
        """Why the table does not hold, to be read after its name; None if it does. Raises InputError for a damaged table."""
        if not table.exists():
            return "is missing"
        for name, seal in self._read(table).made_from.items():
            if name in _ORIGINS:
                if not is_same(self._dense().get(name, seal), seal):
                    return f"was made {_ORIGINS[name]} than the dense network of {self._replicate.folder.name}"
                continue
            owner, own_name = self, name
            if name.startswith("../"):
                _, folder, own_name = name.split("/", 2)
                owner = self._beside(folder)
            source = owner._replicate.table_of(owner._replicate.folder / own_name)
            if found := owner.problem(source):
                return f"was made from {name}, and {source} {found}"
            if owner._read(source).outputs.get(own_name) != seal:
                return f"was made from another {name} than the one that is there"
        return None

    def _in(self, folder: str) -> "Lineage":
        """That of the replicate in the `folder` beside this one."""
        return Lineage(Replicate(self._replicate.folder.parent / folder))


def _seal(path: Path) -> str:
    if not path.exists():
        raise InputError(f"{path} is missing: run the stage that writes it")
    return store.seal(path) if path.suffix == ".h5" else files.json_seal(path)
