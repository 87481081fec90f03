"""The part of a network's arrays that is left without some of its channels: the arrays of a smaller network. Pure NumPy."""

from collections.abc import Callable, Container, Mapping

import numpy as np

from lottery.pruning.channels import Channels
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays

Slices = dict[str, dict[int, np.ndarray]]  # by path and by axis, counted from the last (-1), what stays along it: bool [size]


def axes(channels: Channels) -> dict[str, dict[int, np.ndarray]]:
    """By the path of each variable and each of its axes that is channels, from the last (-1), their numbers: int [size]."""
    found = {path: {-1: numbers} for path, numbers in channels.vectors.items()}
    for path, node in channels.nodes.items():
        inputs, outputs = channels.inputs[path], channels.outputs[path]
        if node.groups == 1:
            found[path] = {-1 if node.transposed else -2: inputs[:, 0], -2 if node.transposed else -1: outputs[0]}
        elif node.kernels[path][-2] == node.groups:  # depthwise: the last axis is not channels
            found[path] = {-2: inputs[0]}
        else:
            found[path] = {-1: outputs.ravel()}
    return found


def staying(numbers: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Which of the channels with these `numbers` are `kept` (bool [count]), or always stay."""
    return np.append(kept, True)[numbers]


def left_by(mask: Bits, channels: Channels, trainable: Container[str]) -> np.ndarray:
    """The channels of which a `mask` leaves anything in `trainable` variables: bool [count]. What it does not cover is left."""
    left = np.zeros(channels.count + 1, bool)  # the last for what stays anyway
    for path, numbers_along in axes(channels).items():
        for axis, numbers in numbers_along.items() if path in trainable else ():
            others = tuple(other for other in range(-mask[path].ndim, 0) if other != axis) if path in mask else ()
            left[numbers[mask[path].any(others)] if path in mask else numbers] = True
    return left[:-1]


def with_one_each(channels: Channels, kept: np.ndarray) -> np.ndarray:
    """`kept` (bool [count]) and the first channel of each kernel that would have no input or no output left."""
    kept = kept.copy()
    for numbers in (numbers for each in axes(channels).values() for numbers in each.values()):
        if not staying(numbers, kept).any():
            kept[numbers[0]] = True
    return kept


def in_multiples(channels: Channels, kept: np.ndarray, of: int) -> np.ndarray:
    """`kept` (bool [count]) and as many more channels of each kernel that keeps `of` or more as make that a multiple."""
    kept = kept.copy()
    for numbers in (np.unique(numbers) for each in axes(channels).values() for numbers in each.values()):
        count = int(staying(numbers, kept).sum())
        if count >= of:
            kept[numbers[~staying(numbers, kept)][: -count % of]] = True
    return kept


def sliced(arrays: Arrays, slices: Slices, path_of: Callable[[str], str] = str) -> Arrays:
    """The part of each of `arrays`, by path, or by a name that `path_of` tells the path of; whole where `slices` has none."""
    return {name: _part(array, slices.get(path_of(name), {})) for name, array in arrays.items()}


def expanded(arrays: Arrays, slices: Slices, path_of: Callable[[str], str] = str) -> Arrays:
    """What `sliced` took the part of, in full shape: 0 where it took nothing."""
    return {name: _whole(array, slices.get(path_of(name), {})) for name, array in arrays.items()}


def _part(array: np.ndarray, kept_along: Mapping[int, np.ndarray]) -> np.ndarray:
    for axis, kept in kept_along.items():
        array = np.compress(kept, array, axis)
    return array


def _whole(array: np.ndarray, kept_along: Mapping[int, np.ndarray]) -> np.ndarray:
    for axis, kept in kept_along.items():
        part = np.moveaxis(array, axis, -1)
        whole = np.zeros((*part.shape[:-1], kept.size), array.dtype)
        whole[..., kept] = part
        array = np.moveaxis(whole, -1, axis)
    return np.ascontiguousarray(array) if kept_along else array
