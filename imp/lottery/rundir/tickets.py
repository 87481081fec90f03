"""Ticket folders: a trained network as files for others, which NumPy and safetensors read. docs/tickets.md lists the files.
Names of tensors are `weights/PATH`, `statistics/PATH` and `mask/PATH`, with the paths of Keras variables. A folder may come in
a .zip."""

import contextlib
import dataclasses
import functools
import math
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import safetensors
import safetensors.numpy

from lottery.base import files
from lottery.base.errors import InputError, first_line
from lottery.experiment import reading
from lottery.experiment.recipe import Recipe
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State
from lottery.rundir.records import Result, Values

FILES = VALUES, START, MASK, RECIPE, RESULT, CARD = (
    *("ticket.safetensors", "start.safetensors", "mask.safetensors", "recipe.toml", "result.json"),
    "README.md",
)
UNZIPPED = ".imp-unzipped-"  # how the name of a temporary folder begins


class DataSet(Values):
    """What the network was trained on. `shape` is that of an example (of images: height, width, channels), `images` are
    counts of examples by split."""

    source: str
    digest: str
    shape: tuple[int, ...]
    classes: list[str]
    images: dict[str, int]


class Standing(Values):
    """How the network's group stands beside the dense one: the mean difference of the deciding metric over `replicates`, its
    one-sided bounds, and the verdict."""

    replicates: int = 0
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str | None = None


class TicketRecord(Values):
    """result.json of a ticket folder. `network` is the name in `imp export --ticket`, `files` the sha256 of each file."""

    format: Literal[1] = 1
    run: str
    network: str
    made_by: str
    license: str
    data: DataSet
    standing: Standing
    result: Result
    files: dict[str, str]


@dataclasses.dataclass(frozen=True)
class TicketFolder:
    """A ticket folder that `open_ticket` has found whole. Arrays are by Keras variable path."""

    folder: Path
    record: TicketRecord
    recipe: Recipe

    @functools.cached_property
    def state(self) -> State:
        """Trained weights and BatchNorm statistics; what is pruned is exactly 0.0."""
        return self._state(VALUES)

    @functools.cached_property
    def start(self) -> State | None:
        """The weights and statistics that training started from, before the mask; None where the folder has none. One from a
        .zip has NaN where the mask prunes."""
        return self._state(START) if START in self.record.files else None

    @functools.cached_property
    def mask(self) -> Bits:
        """True where a prunable weight is kept. Raises InputError where it does not fit the weights."""
        shapes = {path: array.shape for path, array in self.state.weights.items()}
        return unpacked(load(self.folder / MASK), shapes, self.folder / MASK)

    def _state(self, name: str) -> State:
        groups: dict[str, Arrays] = {"weights": {}, "statistics": {}}
        for key, array in load(self.folder / name).items():
            group, _, path = key.partition("/")
            if group not in groups:
                raise InputError(f"{self.folder / name}: {key!r} is neither weights/PATH nor statistics/PATH")
            groups[group][path] = array
        return State(self.record.result.step or 0, **groups, optimizer={})


def write(folder: Path, record: TicketRecord, recipe: Recipe, tensors: Mapping[str, bytes], card: str) -> None:
    """Write a ticket folder; result.json, which stands for all other files, comes last. A ticket that was there is replaced."""
    (folder / RESULT).unlink(missing_ok=True)
    content = {**tensors, RECIPE: reading.sealed(recipe).encode(), CARD: card.encode()}
    for name in (VALUES, START, MASK):
        if name not in content:
            (folder / name).unlink(missing_ok=True)
    for name, file in content.items():
        files.write_bytes(folder / name, file)
    sums = {name: files.sha256(file) for name, file in content.items() if name != CARD}  # which its owner may edit
    files.write_json(folder / RESULT, record.model_copy(update={"files": sums}).model_dump(mode="json"))


def open_ticket(folder: Path | str) -> TicketFolder:
    """The ticket in `folder`. Raises InputError where there is none, or a file is missing or not as it was written."""
    folder = Path(folder)
    table = folder / RESULT
    if not table.is_file():
        raise InputError(f"{folder} is not a ticket folder (it has no {RESULT}): {_instead(folder)}")
    try:
        record = TicketRecord.model_validate(files.read_json(table))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{table} is not that of a ticket: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if unknown := {VALUES, MASK, RECIPE} - record.files.keys() | record.files.keys() - {VALUES, START, MASK, RECIPE}:
        raise InputError(f"{table} is not that of a ticket: {min(unknown)!r} is missing among its files, or unknown")
    for name, digest in record.files.items():
        if not (folder / name).is_file() or files.sha256((folder / name).read_bytes()) != digest:
            raise InputError(f"{folder / name} is missing or damaged (its sha256 differs): copy the folder again")
    return TicketFolder(folder, record, reading.resolve(reading.load_sealed(folder / RECIPE), (), str(folder / RECIPE)))


def _instead(path: Path) -> str:
    """What to do where `path` is no ticket folder."""
    if path.is_file() and path.suffix == ".zip":
        return f"unzip it first, `python -m zipfile -e {path} FOLDER`"
    inside = sorted({*path.glob("*.zip"), *(table.parent for table in path.glob(f"*/{RESULT}"))})
    return f"name one of those in it, such as {inside[0]}" if inside else "`imp export --to folder` writes one"


def zipped(folder: Path, target: Path) -> None:
    """Write the ticket in `folder` as a .zip; the same files give the same bytes."""
    with files.replacing(target) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name in sorted({*FILES} & set(os.listdir(folder))):
            entry = zipfile.ZipInfo(name)  # of 1980
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, (folder / name).read_bytes(), zipfile.ZIP_DEFLATED, 9)


def is_zipped_ticket(path: Path) -> bool:
    """Whether `path` is a .zip with a result.json at its top."""
    with contextlib.suppress(Exception), zipfile.ZipFile(path) as archive:
        return RESULT in archive.namelist()
    return False


@contextlib.contextmanager
def unzipped(path: Path, place: Path | None = None) -> Iterator[Path]:
    """A ticket folder that is there within, where `path` may be a .zip of one. That is unzipped to a temporary folder in
    `place`; errors name the .zip. Raises InputError where it is none."""
    if not path.is_file():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix=UNZIPPED, dir=place) as temporary:
        folder = Path(temporary, "ticket")
        for name, content in _members(path):
            files.write_bytes(folder / name, content)
        try:
            yield folder
        except InputError as error:
            raise InputError(str(error).replace(str(folder), str(path))) from None


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a ticket in a .zip, by name. Raises InputError where it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.filename not in FILES:
                    raise InputError(f"{path} is not a ticket: it has the file {entry.filename!r}")
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise InputError(f"{path} cannot be unzipped: {entry.filename} is neither stored nor deflated")
                yield entry.filename, archive.read(entry)
    except InputError:
        raise
    except Exception as error:  # of zipfile, which is given any bytes at all
        raise InputError(f"{path} cannot be unzipped: {first_line(error)}") from error


def load(path: Path) -> Arrays:
    """The tensors of a safetensors file by name. Raises InputError where it is not one."""
    try:
        return safetensors.numpy.load(path.read_bytes())
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:  # the latter: a dtype that NumPy lacks
        raise InputError(f"{path} is not a safetensors file that NumPy can hold: {error}") from None


def named(**groups: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file of arrays called `GROUP/PATH`; the same arrays give the same bytes."""
    tensors = {f"{group}/{path}": np.ascontiguousarray(array) for group in groups for path, array in groups[group].items()}
    return safetensors.numpy.save(tensors)


def packed(mask: Bits) -> bytes:
    """A safetensors file of `mask`, for each variable uint8 [ceil(weights / 8)]: its bits in C order, the first weight in the
    highest bit."""
    return named(mask={path: np.packbits(kept) for path, kept in mask.items()})


def unpacked(tensors: Arrays, shapes: Mapping[str, tuple[int, ...]], origin: Path) -> Bits:
    """The mask among the `tensors` of `origin` of variables of these `shapes`. Raises InputError where it does not fit them."""
    mask: Bits = {}
    for key, bits in sorted(tensors.items()):
        path = key.removeprefix("mask/")
        size = math.prod(shapes.get(path, ()))
        if not key.startswith("mask/") or path not in shapes or bits.dtype != np.uint8 or bits.shape != (-(-size // 8),):
            raise InputError(f"{origin}: {key!r} {bits.dtype} {list(bits.shape)} is not the mask of a variable of the network")
        mask[path] = np.unpackbits(bits, count=size).reshape(shapes[path]).view(bool)
    if not mask:
        raise InputError(f"{origin} holds no mask")
    return mask


def listed(ticket: TicketFolder) -> dict[str, Any]:
    """What `imp tickets` says of one."""
    record, result = ticket.record, ticket.record.result
    return {
        "folder": str(ticket.folder),
        "network": f"{record.run} {record.network}{'' if result.variant in ('ticket', 'dense') else f' {result.variant}'}",
        "model": ticket.recipe.model.name,
        "data": record.data.source,
        "density": result.kept.density.prunable if result.kept else 1.0,
        f"test_{result.metric}": result.reached("test"),
        "speedup": result.costs.speedup if result.costs else None,
        **record.standing.model_dump(),
        "license": record.license,
    }
