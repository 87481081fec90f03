"""The names of all files in a run directory, and what a name stands for. docs/run-directory.md lists and explains them."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pydantic

from lottery.base import files
from lottery.base.errors import InputError
from lottery.experiment import grids
from lottery.experiment.graph import TICKET, Mask, Snapshot, Ticket
from lottery.experiment.grids import Quantile, Round
from lottery.experiment.recipe import FAMILY_NAME
from lottery.pruning.connectivity import Topology
from lottery.rundir import identity, records
from lottery.rundir.records import MaskRecord, PairRecord, Record, Result

RECIPE, ENVIRONMENT = "recipe.toml", "environment.json"
_QUANTILE, _ROUND, _STEP = r"q[0-9]+(?:\.[0-9]+)?", r"round-[0-9]{2,}", r"-step-[0-9]{6,}"
_REPLICATE = re.compile(r"replicate-([1-9][0-9]*)")
_SNAPSHOT = re.compile(r"step-([0-9]{6,})\.h5")
_NETWORK = re.compile(rf"{FAMILY_NAME}/(?:{_QUANTILE}|{_ROUND}){_STEP}/[^\W\d]\w*")
_PAIR = re.compile(rf"{FAMILY_NAME}/(?:{_QUANTILE}|{_ROUND}){_STEP}/pair-(?:before|[1-9][0-9]?-[1-9][0-9]?)\.json")
_MASK = re.compile(rf"{FAMILY_NAME}/masks/(?:{_QUANTILE}|{_ROUND}{_STEP})\.(?:h5|json)")
_TOPOLOGY = pydantic.TypeAdapter(Topology)


def replicate_numbers(run: Path) -> list[int]:
    """The numbers of the replicates in a run directory, ascending; a copy that somebody keeps beside them is none."""
    names = (_REPLICATE.fullmatch(path.name) for path in run.glob("replicate-*"))
    return sorted(int(name[1]) for name in names if name)


def _mask_and_step(name: str) -> tuple[Quantile | Round, int]:
    """What the name of a mask or a ticket says: its quantile or round, and its rewind point's step (0 without one)."""
    label, _, step = name.partition("-step-")
    return grids.of_label(label), int(step or 0)


class File:
    """The path of a file, or a folder, in the `folder` of an object that has it as an attribute."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, owner: Any, kind: type) -> Path:
        return owner.folder / self.name


@dataclasses.dataclass(frozen=True)
class NetworkFiles:
    """The folder of one network: dense, ticket or control."""

    folder: Path

    result = File("result.json")  # written last: the training has ended, well or not
    metrics = File("metrics.jsonl")
    checkpoint = File("checkpoint.h5")  # exists while the training is under way
    attempt = File("attempt.json")  # exists while a process works on the network, or after one died of it
    final = File("final.h5")  # the state of a ticket or control at its end; of a dense network that is its last snapshot
    predictions = File("predictions.h5")  # what the network answers to validation and test images at its end
    mask = File("mask.h5")  # the network's own mask, if it is not the shared one of its ticket

    def clear(self) -> None:
        """Remove what a process left behind that died just after its training was done."""
        for left in (self.checkpoint, self.attempt):
            if left.exists():  # else a run on a read-only file system could not be looked through
                left.unlink(missing_ok=True)

    def read_result(self) -> Result | None:
        """The result of the training. Raises InputError if it is damaged, or belongs to another folder."""
        return records.read(self.result, Result) if self.result.exists() else None

    @property
    def is_finished(self) -> bool:
        """Whether it needs no more training. What failed is tried again."""
        result = self.read_result()
        return result is not None and result.is_ended


@dataclasses.dataclass(frozen=True)
class MaskFiles:
    """A mask (`mask`, HDF5), and what it prunes (`table`, written after it)."""

    folder: Path
    name: str

    @property
    def mask(self) -> Path:
        return self.folder / f"{self.name}.h5"

    @property
    def table(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def is_cut(self) -> bool:
        return self.mask.exists() and self.table.exists()

    def read(self) -> MaskRecord | None:
        """What the mask prunes. Raises InputError if the record is damaged, or belongs to another folder."""
        return records.read(self.table, MaskRecord) if self.table.exists() else None


@dataclasses.dataclass(frozen=True)
class Replicate:
    """The part of a run with one seed: its dense network, masks and tickets."""

    folder: Path

    topology = File("train/topology.json")  # how the kernels are connected, from which a mask's effective density follows

    @property
    def dense(self) -> NetworkFiles:
        return NetworkFiles(self.folder / "train")

    def read_topology(self) -> Topology | None:
        """How the network is connected; None if its training could not tell (a user's subclassed model). Raises InputError if
        it could and the file is missing."""
        if self.topology.exists():
            try:
                return _TOPOLOGY.validate_python(files.read_json(self.topology))
            except pydantic.ValidationError:
                raise InputError(f"{self.topology} is not a topology: remove it, and `imp train` adds it") from None
        result = self.dense.read_result()
        if result and self.name_of(self.topology) in result.outputs:
            raise InputError(f"{self.topology} is missing: `imp train` adds it")
        return None

    def write_topology(self, topology: Topology) -> None:
        files.write_json(self.topology, _TOPOLOGY.dump_python(topology, mode="json", exclude_defaults=True))

    def layers(self) -> list[str]:
        """The names of the network's layers in its order, as far as its topology is known."""
        topology = self.read_topology()
        return topology.layers if topology else []

    def snapshot(self, step: int) -> Path:
        return self.folder / "train" / "snapshots" / f"step-{step:06d}.h5"

    def snapshot_steps(self) -> list[int]:
        """The steps at which there is a snapshot, ascending."""
        names = (_SNAPSHOT.fullmatch(path.name) for path in self.snapshot(0).parent.glob("step-*.h5"))
        return sorted(int(name[1]) for name in names if name)

    def mask_folder(self, family: str) -> Path:
        return self.folder / family / "masks"

    def thresholds(self, family: str) -> Path:
        """All masks of one shot in a family, as a table for people."""
        return self.folder / family / "thresholds.csv"

    def mask(self, mask: Mask) -> MaskFiles:
        return MaskFiles(self.mask_folder(mask.family), mask.name)

    def network(self, ticket: Ticket) -> NetworkFiles:
        return NetworkFiles(self.folder / ticket.family / ticket.name / ticket.variant)

    def pair(self, ticket: Ticket, copies: tuple[int, int] | None) -> Path:
        """What there is between two `copies` of a ticket, or (None) between it and the network of the round before."""
        name = "{}-{}".format(*copies) if copies else "before"
        return self.network(ticket).folder.parent / f"pair-{name}.json"

    def pairs(self) -> list[Path]:
        """All that there are, of whatever grid."""
        return [path for path in sorted(self.folder.glob("*/*/pair-*.json")) if self._is_pair(path)]

    def state_of(self, source: Snapshot | Ticket) -> Path:
        """The file of a state that something is made from: the dense network's at a step, or a ticket's at its end."""
        return self.snapshot(source.step) if isinstance(source, Snapshot) else self.network(source).final

    def masks(self, family: str = "*") -> list[MaskFiles]:
        """Every mask that was cut, of whatever grid, though it may have lost a file; family by family, from dense to sparse."""

        def place(mask: MaskFiles) -> tuple[Path, bool, int, Quantile | Round]:
            value, step = _mask_and_step(mask.name)
            return mask.folder, isinstance(value, Round), step, value

        ours = {MaskFiles(path.parent, path.stem) for path in self.folder.glob(f"{family}/masks/*") if self._is_mask(path)}
        return sorted(ours, key=place)

    def networks(self) -> list[NetworkFiles]:
        """Every network under a mask that was begun, of whatever grid; a copy that somebody keeps beside them is none."""
        ours = [path for path in self.folder.glob("*/*/*/") if _NETWORK.fullmatch(self.name_of(path))]
        return list(map(NetworkFiles, sorted(ours)))

    def quantiles(self, family: str, is_gradual: bool) -> set[Quantile]:
        """The quantiles of a family that masks were cut at; of gradual pruning, those of the networks that were begun."""
        if is_gradual:
            names = [one.folder.parent.name for one in self.networks() if self.family_of(one) == family]
        else:
            names = [mask.name for mask in self.masks(family)]
        return {value for value, _ in map(_mask_and_step, names) if isinstance(value, Quantile)}

    def tables(self) -> list[Path]:
        """Every table that exists."""
        tables = [self.dense.result, *(mask.table for mask in self.masks()), *(one.result for one in self.networks())]
        tables += self.pairs()
        return [table for table in tables if table.exists()]

    def table_of(self, path: Path) -> Path:
        """The table that stands for an output of this replicate: a mask, a snapshot, or what a training leaves."""
        if self._is_mask(path):
            return path.with_suffix(".json")
        is_dense = path.is_relative_to(self.dense.folder)  # whose snapshots have a folder of their own
        return self.dense.result if is_dense else NetworkFiles(path.parent).result

    def read(self, table: Path) -> Record:
        """What a table says. Raises InputError where it is damaged, or of another folder."""
        return records.read(table, MaskRecord if self._is_mask(table) else PairRecord if self._is_pair(table) else Result)

    def claimed(self) -> list[Path]:
        """The folders that say what their outputs, finished or begun, are made with."""
        families = [path for path in self.folder.glob("*/masks") if re.fullmatch(FAMILY_NAME, path.parent.name)]
        folders = [self.dense.folder, *sorted(families), *(network.folder for network in self.networks())]
        return [folder for folder in folders if (folder / identity.FILE).exists()]

    def mask_of(self, result: Result) -> Path | None:
        """The mask that a network was trained under: its own, what its ticket ended with, or the shared one, if any."""
        own = [name for name in (*result.outputs, *result.made_from) if name.endswith("/mask.h5")]
        names = [*own, *filter(_MASK.fullmatch, result.made_from)]
        return self.folder / names[0] if names else None

    def name_of(self, path: Path) -> str:
        """What tables call a file of this replicate: `train/snapshots/step-000034.h5`."""
        return path.relative_to(self.folder).as_posix()

    def _is_mask(self, path: Path) -> bool:
        return _MASK.fullmatch(self.name_of(path)) is not None

    def _is_pair(self, path: Path) -> bool:
        return _PAIR.fullmatch(self.name_of(path)) is not None

    def origins(self) -> dict[str, str]:
        """What the dense network was made from, by content: `records` and `network`; empty before it is trained."""
        result = self.dense.read_result()
        return dict(result.made_from) if result else {}

    def family_of(self, network: NetworkFiles) -> str:
        return network.folder.relative_to(self.folder).parts[0]

    def ticket_name(self, network: NetworkFiles) -> str:
        """What users call a network: `oneshot/q90-step-000034`; for a control, its variant is added."""
        family, name, variant = network.folder.relative_to(self.folder).parts
        return f"{family}/{name}" + ("" if variant == TICKET else f" {variant}")
