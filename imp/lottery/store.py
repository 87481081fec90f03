"""HDF5 files that are checked on the way in: dictionaries of arrays, and a few attributes.

The sha256 of everything else stands in the user block, the first 512 bytes, which HDF5 leaves to its user. It is compared
before HDF5 sees the file: a single flipped bit in HDF5's own structures can crash or hang it.
"""

import contextlib
import dataclasses
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from data_prep import files
from data_prep.errors import InputError

Arrays = dict[str, np.ndarray]
Attribute = str | int | float

SEAL_BYTES = 512  # the least that HDF5 allows
_SEALED = re.compile(rb"imp-lottery sha256 ([0-9a-f]{64})\n\0*")


@dataclasses.dataclass
class State:
    """A network at one step of its training: all that going on from there needs.

    `weights` are the trainable variables, `statistics` the others (BatchNorm's moving mean and variance), both keyed by
    Keras variable path; `slots` is what the optimizer keeps, its own step count included, keyed likewise.
    """

    step: int
    weights: Arrays
    statistics: Arrays
    slots: Arrays


def groups(state: State) -> dict[str, Arrays]:
    """What a file keeps of `state` beside its step."""
    return {"weights": state.weights, "statistics": state.statistics, "slots": state.slots}


def save_state(path: Path, state: State) -> None:
    save(path, groups(state), {"step": state.step})


def load_state(path: Path, slots: bool = True) -> State:
    """The state in `path`, its slots left out unless `slots`. Raises InputError as `load` does."""
    return as_state(*load(path, None if slots else ("weights", "statistics")))


def as_state(groups: Mapping[str, Arrays], attributes: Mapping[str, Attribute]) -> State:
    """The state among what `load` found."""
    return State(int(attributes["step"]), *(groups.get(name, {}) for name in ("weights", "statistics", "slots")))


def save(path: Path, groups: Mapping[str, Mapping[str, np.ndarray]], attributes: Mapping[str, Attribute]) -> None:
    """Write `groups` (name -> path -> array) and `attributes` to `path`, whole or not at all.

    The file is built in memory, so that a full disk is an ordinary OSError and the same content gives the same bytes.
    """
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", userblock_size=SEAL_BYTES) as file:
        for group, arrays in groups.items():
            for name, array in arrays.items():
                file.create_dataset(f"{group}/{name}", data=array)
        for name, value in attributes.items():
            file.attrs[name] = value
    content = buffer.getvalue()[SEAL_BYTES:]
    files.write_bytes(path, _seal(files.sha256(content)) + content)


def load(path: Path, only: Sequence[str] | None = None) -> tuple[dict[str, Arrays], dict[str, Attribute]]:
    """Groups (each in the order of its paths; those of `only`, if given) and attributes of a file that `save` wrote.

    Raises InputError with the file's name when it is missing, cut, or altered in any bit.
    """
    if not path.exists():
        raise InputError(f"{path} is missing: run the stage that writes it")
    with open(path, "rb") as file:
        seal = file.read(SEAL_BYTES)
        if seal != _seal(hashlib.file_digest(file, "sha256").hexdigest()):
            raise InputError(f"{path} is damaged (its sha256 differs): remove it and run its stage again")
        with h5py.File(file, "r") as content:
            attributes = {name: _plain(value) for name, value in content.attrs.items()}
            return {name: _arrays(group) for name, group in content.items() if only is None or name in only}, attributes


def seal(path: Path) -> str:
    """The sha256 that a file which `save` wrote has in front, not compared with the rest. Raises InputError without one."""
    with open(path, "rb") as file:
        found = _SEALED.fullmatch(file.read(SEAL_BYTES))
    if not found:
        raise InputError(f"{path} is damaged (it has no sha256): remove it and run its stage again")
    return found[1].decode()


@contextlib.contextmanager
def promised_by(table: Path) -> Iterator[None]:
    """Says of a file that is missing or damaged that `table` is to go, which would else count as a sign that it is there."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{str(error).rpartition(': ')[0]}: remove {table} and run its stage again") from None


def _arrays(group: h5py.Group) -> Arrays:
    found: Arrays = {}
    group.visititems(partial(_collect, found))
    return dict(sorted(found.items()))


def _seal(digest: str) -> bytes:
    return f"imp-lottery sha256 {digest}\n".encode().ljust(SEAL_BYTES, b"\0")


def _collect(into: Arrays, key: str, item: object) -> None:
    if isinstance(item, h5py.Dataset):
        into[key] = np.asarray(item[()])


def _plain(value: object) -> Attribute:
    return value.item() if isinstance(value, np.generic) else value  # type: ignore[return-value]
