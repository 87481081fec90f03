"""HDF5 files of arrays and a few attributes. The user block, the first 512 bytes, holds the sha256 of the rest, which is
compared before HDF5 reads the file: a single flipped bit in its structures can crash or hang it."""

import contextlib
import hashlib
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from lottery.base import files
from lottery.base.errors import InputError
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State, widened

Attribute = str | int | float

SEAL_BYTES = 512  # the least that HDF5 allows
_SEALED = re.compile(rb"imp-lottery sha256 ([0-9a-f]{64})\n\0*")


def groups(state: State) -> dict[str, Arrays]:
    """What a file keeps of `state` beside its step."""
    return {"weights": state.weights, "statistics": state.statistics, "optimizer": state.optimizer}


def save_state(path: Path, state: State) -> None:
    save(path, groups(state), {"step": state.step})


def load_state(path: Path, optimizer: bool = True) -> State:
    """The state in `path`, perhaps without that of the optimizer. Raises InputError as `load` does, and where the file holds
    something else."""
    groups, attributes = load(path, None if optimizer else ("weights", "statistics"))
    if attributes.keys() != {"step"}:
        raise InputError(f"{path} holds no network: remove it and run its stage again")
    return as_state(groups, attributes)


def as_state(groups: Mapping[str, Arrays], attributes: Mapping[str, Attribute]) -> State:
    """The state among what `load` found."""
    return State(int(attributes["step"]), *(groups.get(name, {}) for name in ("weights", "statistics", "optimizer")))


def save(path: Path, groups: Mapping[str, Mapping[str, np.ndarray]], attributes: Mapping[str, Attribute]) -> None:
    """Write `groups` (name -> path -> array) and `attributes` to `path`, whole or not at all."""
    buffer = io.BytesIO()  # in memory a full disk is an ordinary OSError, and the same content gives the same bytes
    with h5py.File(buffer, "w", userblock_size=SEAL_BYTES) as file:
        for group, arrays in groups.items():
            for name, array in arrays.items():
                file.create_dataset(f"{group}/{name}", data=widened(array))
        file.attrs.update(attributes)
    content = buffer.getvalue()[SEAL_BYTES:]
    files.write_bytes(path, _seal(files.sha256(content)) + content)


def load(path: Path, only: Sequence[str] | None = None) -> tuple[dict[str, Arrays], dict[str, Attribute]]:
    """Groups (each in the order of its paths; only those of `only`, if given) and attributes of a file that `save` wrote.
    Raises InputError with the file's name if it is missing, cut short, or changed in any bit."""
    if not path.exists():
        raise InputError(f"{path} is missing: run the stage that writes it")
    with open(path, "rb") as file:
        seal = file.read(SEAL_BYTES)
        if seal != _seal(hashlib.file_digest(file, "sha256").hexdigest()):
            raise InputError(f"{path} is damaged (its sha256 differs): remove it and run its stage again")
        with h5py.File(file, "r") as content:
            attributes = dict(content.attrs)
            attributes |= {name: value.item() for name, value in attributes.items() if isinstance(value, np.generic)}
            return {name: _arrays(group) for name, group in content.items() if only is None or name in only}, attributes


def save_mask(path: Path, mask: Bits, attributes: Mapping[str, Attribute]) -> None:
    """Write `mask` bit-packed: `bits` (uint8) has one variable's after another's, each from a byte of its own, C order, first
    weight in the highest bit; `layout` is JSON, the variables' paths and shapes in the order of their bits."""
    # Two datasets however many variables there are: one for each would take HDF5 longer than all else that makes a mask.
    bits = np.concatenate([np.packbits(kept) for kept in mask.values()]) if mask else np.empty(0, np.uint8)
    layout = json.dumps({name: kept.shape for name, kept in mask.items()})
    save(path, {"mask": {"bits": bits, "layout": np.array(layout.encode())}}, attributes)


def load_mask(path: Path) -> Bits:
    """The mask that `save_mask` wrote. Raises InputError as `load` does, and where the file holds something else."""
    groups, _ = load(path)
    if "mask" not in groups:
        raise InputError(f"{path} holds no mask: remove it and run its stage again")
    stored = groups["mask"]
    mask, start = {}, 0
    for name, shape in json.loads(stored["layout"].item()).items():
        size = math.prod(shape)
        bits = stored["bits"][start : start + -(-size // 8)]
        mask[name] = np.unpackbits(bits, count=size).reshape(shape).view(bool)
        start += bits.size
    return mask


def seal(path: Path) -> str:
    """The sha256 at the start of a file that `save` wrote, not compared with the rest. Raises InputError if there is none."""
    with open(path, "rb") as file:
        found = _SEALED.fullmatch(file.read(SEAL_BYTES))
    if not found:
        raise InputError(f"{path} is damaged (it has no sha256): remove it and run its stage again")
    return found[1].decode()


@contextlib.contextmanager
def promised_by(table: Path) -> Iterator[None]:
    """Adds to the error of a missing or damaged file that `table`, which says that the file exists, must be removed."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{str(error).rpartition(': ')[0]}: remove {table} and run its stage again") from None


def _arrays(group: h5py.Group) -> Arrays:
    """The datasets of a group by their paths inside it."""
    paths: list[str] = []
    group.visit(paths.append)
    items = {path: group[path] for path in sorted(paths)}
    return {path: np.asarray(item[()]) for path, item in items.items() if isinstance(item, h5py.Dataset)}


def _seal(digest: str) -> bytes:
    return f"imp-lottery sha256 {digest}\n".encode().ljust(SEAL_BYTES, b"\0")
