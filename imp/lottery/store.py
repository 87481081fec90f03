"""HDF5 files that are checked on the way in: dictionaries of arrays, a few attributes, and a sha256 over all of them."""

import dataclasses
import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

from data_prep import files
from data_prep.errors import InputError

Arrays = dict[str, np.ndarray]
Attribute = str | int | float


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


def save_state(path: Path, state: State) -> None:
    save(path, {"weights": state.weights, "statistics": state.statistics, "slots": state.slots}, {"step": state.step})


def load_state(path: Path) -> State:
    groups, attributes = load(path)
    return State(int(attributes["step"]), *(groups.get(name, {}) for name in ("weights", "statistics", "slots")))


def save(path: Path, groups: Mapping[str, Mapping[str, np.ndarray]], attributes: Mapping[str, Attribute]) -> None:
    """Write `groups` (name -> path -> array of at least one dimension, or a scalar) and `attributes` to `path`, whole or
    not at all.

    The file is built in memory, so that a full disk is an ordinary OSError and the same content gives the same bytes.
    """
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for group, arrays in groups.items():
            for name, array in arrays.items():
                file.create_dataset(f"{group}/{name}", data=array)
        for name, value in attributes.items():
            file.attrs[name] = value
        file.attrs["sha256"] = _digest(groups, attributes)
    files.write_bytes(path, buffer.getvalue())


def load(path: Path) -> tuple[dict[str, Arrays], dict[str, Attribute]]:
    """Groups (each in the order of its paths) and attributes of a file that `save` wrote.

    Raises InputError with the file's name when it is missing, cut, or altered in any bit that counts.
    """
    if not path.exists():
        raise InputError(f"{path} is missing: run the stage that writes it")
    groups: dict[str, Arrays] = {}
    try:
        with h5py.File(path, "r") as file:
            attributes = {name: _plain(value) for name, value in file.attrs.items()}
            expected = attributes.pop("sha256", None)
            for name, group in file.items():
                groups[name] = {}
                group.visititems(lambda key, item, into=groups[name]: _collect(into, key, item))
                groups[name] = dict(sorted(groups[name].items()))
            intact = expected == _digest(groups, attributes)
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, PermissionError):
            raise
        raise InputError(f"{path} is damaged (not readable as HDF5): {_REMEDY}") from None
    if not intact:
        raise InputError(f"{path} is damaged (its sha256 differs): {_REMEDY}")
    return groups, attributes


_REMEDY = "remove it and run its stage again"


def _collect(into: Arrays, key: str, item: object) -> None:
    if isinstance(item, h5py.Dataset):
        into[key] = item[()]


def _plain(value: object) -> Attribute:
    return value.item() if isinstance(value, np.generic) else value  # type: ignore[return-value]


def _digest(groups: Mapping[str, Mapping[str, np.ndarray]], attributes: Mapping[str, Attribute]) -> str:
    digest = hashlib.sha256(json.dumps(dict(attributes), sort_keys=True).encode())
    for group in sorted(groups):
        for name, array in sorted(groups[group].items()):
            array = np.asarray(array)
            digest.update(f"{group}/{name} {array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
