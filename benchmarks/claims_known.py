"""The folder that `claims.py --table` writes, as what is known of networks whose runs are elsewhere, or gone."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas

from lottery.base.errors import InputError
from lottery.base.progress import count_of
from lottery.experiment import reading
from lottery.rundir.run import Run

NETWORK = ["replicate", "variant", "family", "mask"]  # what a row of a run is known by
COLUMNS = [*NETWORK, "rewind", "density", "status", "validation", "test", "seconds"]
LINE = {"replicate": int, "share": float, "error": float}
NUMBERS = {"replicate": int} | dict.fromkeys(("density", "validation", "test", "seconds"), float)


@dataclasses.dataclass(frozen=True)
class Known:
    """The tables of a folder."""

    folder: Path

    @functools.cached_property
    def networks(self) -> pandas.DataFrame:
        return self._read("networks", [*COLUMNS, "study", "run"], NUMBERS).fillna({"family": "", "mask": ""})

    @functools.cached_property
    def differences(self) -> pandas.DataFrame:
        columns = ["study", "question", "replicate", "difference"]
        return self._read("differences", columns, {"replicate": int, "difference": float})

    @functools.cached_property
    def lines(self) -> pandas.DataFrame:
        return self._read("lines", ["study", "run", "family", "mask", *LINE], LINE)

    def _read(self, name: str, columns: Sequence[str], numbers: Mapping[str, type]) -> pandas.DataFrame:
        path = self.folder / f"{name}.csv"
        if not path.is_file():
            raise InputError(f"there is no {path}: --known takes a folder that --table wrote")
        try:
            return pandas.read_csv(path, usecols=columns, dtype=numbers)
        except ValueError as error:
            raise InputError(f"{path} is not as --table wrote it: {' '.join(str(error).split())}") from error

    def joined(self, study: str, name: str, run: Run, rows: pandas.DataFrame) -> pandas.DataFrame:
        """The rows of a run, with those of this folder in the place of missing ones. Raises InputError where the folder has
        them of another recipe, or trained to another accuracy: such networks are no pairs."""
        known = self.networks[(self.networks.study == study) & (self.networks.run == name)].drop(columns=["study", "run"])
        if known.empty:
            return rows
        recipe = self.folder / f"{study}-{name}.toml"
        if not recipe.is_file():
            raise InputError(f"there is no {recipe}: it says what the networks of {self.folder} are")
        if reading.resolve(reading.load_sealed(recipe)) != run.recipe:
            raise InputError(f"{recipe} is not the recipe of {run.folder}: its networks are not this run's")
        if known.duplicated(NETWORK).any():
            raise InputError(f"{self.folder / 'networks.csv'} is not as --table wrote it: it has a network twice")
        here, known = (table.set_index(NETWORK) for table in (rows.fillna({"family": "", "mask": ""}).astype(object), known))
        for network in known.index.intersection(here.index[here.status == "done"]):
            found, told = here.validation[network], known.validation[network]
            if found != told:
                replicate, *names = network
                raise InputError(
                    f"{' '.join(filter(None, names))} of replicate {replicate} reaches {found} in {run.folder}, and {told} in"
                    f" {self.folder}: other bits. Train all networks of this run here, without --known"
                )
        gone = known.index.intersection(here.index[here.status == "missing"])
        here.loc[gone, known.columns] = known.loc[gone]
        return here.reset_index().infer_objects()

    def keeps(self, networks: pandas.DataFrame, lines: pandas.DataFrame) -> None:
        """Raises InputError if the tables about to be written lack a network or a barrier of this folder, which may be its
        only record."""
        for what, old, new, place in (
            ("network", self.networks, networks, ["study", "run", *NETWORK]),
            ("barrier", self.lines, lines, ["study", "run", "family", "mask", "replicate"]),
        ):
            before, after = (table[place].fillna("").drop_duplicates().set_index(place).index for table in (old, new))
            if lost := len(before.difference(after)):
                raise InputError(
                    f"{self.folder} has {count_of(lost, what)} not in the new tables: name another folder, or keep them with"
                    f" --known {self.folder} and all claims and networks"
                )

    def differences_of(self, study: str, question: str) -> pandas.Series:
        """By replicate; empty where the folder has none."""
        own = self.differences[(self.differences.study == study) & (self.differences.question == question)]
        return own.drop_duplicates("replicate").set_index("replicate").difference

    def lines_of(self, study: str, run: str, family: str, mask: str) -> pandas.DataFrame:
        """Those of one barrier; empty where the folder has none."""
        place = pandas.Series({"study": study, "run": run, "family": family, "mask": mask})
        return self.lines[(self.lines[place.index] == place).all(axis=1)][list(LINE)]
