"""Weights and masks from elsewhere, by the names of our variables: what a dense training begins with instead of its draw."""

from collections.abc import Iterator, Mapping, Sized
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.numpy

from data_prep.records import Shape
from lottery.base.errors import InputError
from lottery.engine.foreign import names, roberta
from lottery.engine.foreign.names import Dialect
from lottery.engine.foreign.readers import read
from lottery.experiment import networks, recipe
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State, is_float

TORCH_EPSILON = 1e-5  # of BatchNorm, unless told otherwise


class Loaded(NamedTuple):
    """Weights and statistics by path, and what to tell the user about them."""

    weights: Arrays
    statistics: Arrays
    notes: list[str]


def load(path: Path, model: recipe.Model, example: Shape, drawn: State) -> Loaded:
    """What the file at `path` holds of the network of `model` for examples of the shape `example`, in the shapes and dtypes of
    `drawn`, one of its states in its own order. The integers of random generators are left out. So is an output layer for
    another number of classes, which a note says. Another says how many weights are NaN in a file of our own, as in the start of
    a ticket that came as a .zip: they are for the seed to draw.

    Raises InputError where a variable is missing, unknown, of another shape, or not finite, and as `readers.read` does."""
    arrays, owned = read(path), drawn.weights | drawn.statistics
    if model.name in networks.TRANSFORMERS:
        arrays = roberta.adapted(path, arrays, model, drawn.weights)
    dialect = _spoken(path, arrays, names.dialects(model.name, drawn))
    wanted = [one for one in owned if is_float(owned[one])]
    known = {*dialect.names.values(), *(name for name in arrays if dialect.title == "imp" and name.startswith("mask/"))}
    missing = [f"{dialect.names[one]} ({one})" for one in wanted if dialect.names[one] not in arrays]
    problems = {"lacks": missing, "has the unknown": sorted(map(repr, arrays.keys() - known))}
    said = [f"it {verb} {listed[0]}{_others(listed)}" for verb, listed in problems.items() if listed]
    if said:
        raise InputError(f"{path} does not fit {model.name}, by the names of {dialect.title}: {', and '.join(said)}")
    head, found, renewed = list(drawn.weights)[-1].rpartition("/")[0], {}, []
    for one in wanted:
        array, shape = arrays[dialect.names[one]], _shape(dialect, one, owned[one], example)
        differing = [axis for axis, sizes in enumerate(zip(array.shape, shape, strict=False)) if len(set(sizes)) > 1]
        classes = 0 if dialect.is_torch else len(shape) - 1
        if one.startswith(f"{head}/") and array.ndim == len(shape) and differing == [classes]:
            renewed.append(f"{path} has {array.shape[classes]} classes, the images {shape[classes]}: {head} is drawn by seed")
            continue
        if array.shape != shape:
            raise InputError(f"{path}: {dialect.names[one]} ({one}) has the shape {array.shape}, {model.name} has {shape}")
        own = names.from_torch(one, array, example) if dialect.is_torch else array
        found[one] = _finite(path, own, owned[one].dtype, one, may_lack=dialect.title == "imp" and one in drawn.weights)
    weights, statistics = ({one: found[one] for one in group if one in found} for group in (drawn.weights, drawn.statistics))
    lacking = sum(int(np.isnan(array).sum()) for array in found.values())
    partly = [f"{path} lacks {lacking:,} weights (they are NaN): they are drawn by seed"] if lacking else []
    return Loaded(weights, statistics, [*renewed[:1], *partly, *_differences(dialect, model)])


def to_torch(model: recipe.Model, example: Shape, state: State) -> tuple[bytes, list[str]]:
    """A safetensors file with the weights and statistics of `state`, of the network of `model` for examples of this shape, in
    the names and layout of its twin in PyTorch, and what to tell the user about it. Raises InputError where it has none."""
    owned = state.weights | state.statistics
    dialect = next(iter(names.torch_dialects(model.name, owned)), None)
    if dialect is None:
        raise InputError(f"{model.name} has no twin in PyTorch whose names could be used: export to npz")
    # In one piece, because safetensors writes a transposed view in the order of its memory.
    arrays = {dialect.names[one]: np.ascontiguousarray(names.to_torch(one, array, example)) for one, array in owned.items()}
    if model.name in networks.TRANSFORMERS:
        arrays |= roberta.token_types(state.weights)
    notes = [f"in the names of {dialect.title}: load it with safetensors.torch.load_file"]
    if "padding" in networks.settings(model.name) and model.padding == "same":
        notes.append("PyTorch pads otherwise (model.padding = same), and so computes something else with these weights")
    if "batchnorm_epsilon" in networks.settings(model.name) and model.batchnorm_epsilon != TORCH_EPSILON:
        notes.append(f"set eps of every BatchNorm2d to {model.batchnorm_epsilon:g}")
    return safetensors.numpy.save(arrays), notes


def read_mask(path: Path, model: str, example: Shape, shapes: Mapping[str, Shape]) -> Bits:
    """The mask in a file that open_lth (`mask.pth`: 0 and 1 by the name of the weights) or `imp export --to npz` wrote, for the
    network `model` with kernels of these `shapes` (path -> shape). It covers the kernels that the file does. Raises InputError
    where a name is unknown, a shape is another, a value is neither 0 nor 1, and as `readers.read` does."""
    arrays = read(path)
    state = State(0, {one: np.empty(shape, bool) for one, shape in shapes.items()}, {}, {})
    masks = Dialect("imp", {one: f"mask/{one}" for one in shapes})
    dialect = _spoken(path, arrays, [masks, *names.dialects(model, state)])
    if dialect is masks:
        arrays = {name: array for name, array in arrays.items() if name.startswith("mask/")}
    paths = {name: one for one, name in dialect.names.items()}
    if unknown := arrays.keys() - paths.keys():
        raise InputError(f"{path}: {model} has no kernel {min(unknown)!r} to mask")
    mask = {}
    for name, array in arrays.items():
        one = paths[name]
        if array.shape != (shape := _shape(dialect, one, state.weights[one], example)):
            raise InputError(f"{path}: {name} ({one}) has the shape {array.shape}, {model} has {shape}")
        if not np.isin(array, (0, 1)).all():
            raise InputError(f"{path}: {name} has values other than 0 and 1, so it is no mask")
        mask[one] = np.ascontiguousarray(names.from_torch(one, array, example) if dialect.is_torch else array) != 0
    return mask


def _spoken(path: Path, arrays: Arrays, dialects: list[Dialect]) -> Dialect:
    """The dialect that has most of the names of `arrays`."""
    best = max(dialects, key=lambda dialect: len(arrays.keys() & dialect.names.values()))
    if arrays.keys() & best.names.values():
        return best
    known = ", ".join(dialect.title for dialect in dialects)
    raise InputError(f"{path} has no name of the network in {known}: {min(arrays, default='it is empty')!r}{_others(arrays)}")


def _shape(dialect: Dialect, path: str, array: np.ndarray, example: Shape) -> tuple[int, ...]:
    return names.to_torch(path, array, example).shape if dialect.is_torch else array.shape


def _finite(path: Path, array: np.ndarray, dtype: np.dtype, name: str, may_lack: bool) -> np.ndarray:
    """`array`, of the variable `name`, as `dtype`. Raises InputError where that is not finite, or not a number; but for NaN,
    if it `may_lack` some values."""
    with np.errstate(over="ignore"):
        values = array.astype(dtype, order="C") if array.dtype.kind == "f" else np.full(1, np.inf)
    if not (np.isfinite(values) | (np.isnan(values) & may_lack)).all():
        raise InputError(f"{path}: {name} has values that are not finite numbers: name another file")
    return values


def _differences(dialect: Dialect, model: recipe.Model) -> Iterator[str]:
    """What else a twin in PyTorch does otherwise than the network of `model`."""
    keys = networks.settings(model.name)
    values = {"padding": "symmetric", "batchnorm_epsilon": TORCH_EPSILON}
    others = [f"model.{key}={value}" for key, value in values.items() if key in keys and getattr(model, key) != value]
    if dialect.is_torch and others:
        yield f"warning: these weights compute something else in PyTorch; as there, with --set {' --set '.join(others)}"


def _others(found: Sized) -> str:
    count = len(found) - 1
    return f" and {count} more" if count > 0 else ""
