"""Units: what is kept or pruned as a whole. Pure NumPy; nothing here changes its inputs.

Units are counted and ranked by layer. What a unit is made of is said by `total`: the sum of an array's values over the weights
of each. It scores the mean, the norm or the sum of the scores of those of its weights that are left: by magnitude the sum is
their L1 norm, as Li et al. 2017 rank filters ("Pruning Filters for Efficient ConvNets", arXiv 1608.08710), and the norm their
L2 norm over all that goes together (Fang et al. 2023, "DepGraph", arXiv 2301.12900)."""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np

from lottery.base.errors import InputError
from lottery.pruning import masks
from lottery.pruning.allocation import Shapes
from lottery.pruning.channels import STAYS, Channels, channels
from lottery.pruning.connectivity import Layout, Topology, layouts
from lottery.pruning.masks import Bits
from lottery.pruning.overlap import Groups
from lottery.pruning.state import Arrays

Score = Literal["mean", "norm", "sum"]
Pooling = Score | Literal["wrapped"]  # the sum modulo 1, which of uniform random numbers is one, however many they are
WEIGHT, CHANNEL = "weight", "channel"


class Units(Protocol):
    """How the variables of a network are made of units. Arrays of units are by layer, and ranked in C order; a layer is called
    by the path of a kernel."""

    def covered(self, scope: Collection[str]) -> set[str]:
        """The paths of all variables that a mask covers where those in `scope` are prunable."""

    def ranked(self, mask: Bits) -> Bits:
        """The part of a `mask` that is scored: of prunable variables."""

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        """How many units of each layer can be kept, of variables of these `shapes`."""

    def total(self, arrays: Arrays) -> Arrays:
        """The sum of what `arrays` hold at the weights of each unit."""

    def pool(self, scores: Arrays, kept: Bits) -> tuple[Arrays, Bits]:
        """The score of each unit (float), and whether it can be kept (bool), of the `scores` (float) of variables of which the
        weights `kept` (bool, of the same shapes) are left. Scores of other weights are not looked at."""

    def spread(self, units: Bits, within: Bits) -> Bits:
        """The mask that keeps of what is `within` what belongs to the `units` (bool)."""

    def shuffle(self, mask: Bits, seed: int, met: Mapping[str, np.ndarray]) -> Bits:
        """`mask` with its kept units permuted within each layer, among those of as many weights, and of as many that are
        `met` (as in `masks.shuffle`): layers keep as many weights, and which is left to chance."""


class OfEachVariable:
    """Units of prunable variables alone, each of which is a layer."""

    def covered(self, scope: Collection[str]) -> set[str]:
        return set(scope)

    def ranked(self, mask: Bits) -> Bits:
        return mask


@dataclasses.dataclass(frozen=True)
class Single(OfEachVariable):
    """Each weight on its own."""

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {path: math.prod(shape) for path, shape in shapes.items()}

    def total(self, arrays: Arrays) -> Arrays:
        return arrays

    def pool(self, scores: Arrays, kept: Bits) -> tuple[Arrays, Bits]:
        return scores, kept

    def spread(self, units: Bits, within: Bits) -> Bits:
        return {path: within[path] & bits for path, bits in units.items()}

    def shuffle(self, mask: Bits, seed: int, met: Mapping[str, np.ndarray]) -> Bits:
        return masks.shuffle(mask, seed, met)


SINGLE = Single()


@dataclasses.dataclass(frozen=True)
class Matrices(OfEachVariable):
    """Kernels as the matrices of their products, [inputs, outputs]: the inputs of an output are those at all places of the
    window, in C order. What `layouts` lacks is one whose last axis are outputs."""

    layouts: Mapping[str, Layout] = dataclasses.field(default_factory=dict, kw_only=True)

    def _matrix(self, path: str, array: np.ndarray) -> np.ndarray:
        if path not in self.layouts:
            return array.reshape(math.prod(array.shape[:-1]), array.shape[-1] if array.ndim else 1)
        arranged = self.layouts[path].node.arranged(array, self.layouts[path].incoming)
        return arranged.reshape(math.prod(arranged.shape[:2]), -1)

    def _restored(self, path: str, matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return self.layouts[path].node.restored(matrix, shape) if path in self.layouts else matrix.reshape(shape)

    def matrix_shape(self, path: str, shape: tuple[int, ...]) -> tuple[int, int]:
        """How many inputs and outputs a kernel of this `shape` has."""
        rows, columns = self._matrix(path, np.broadcast_to(False, shape)).shape
        return rows, columns


@dataclasses.dataclass(frozen=True)
class Blocks(Matrices):
    """Blocks of `rows` inputs and `columns` outputs (Gray et al. 2017, "GPU Kernels for Block-Sparse Weights"). The last ones
    are smaller where these do not divide the matrix, and count as one like the others."""

    rows: int
    columns: int
    score: Pooling = "mean"

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {path: self._size(*self.matrix_shape(path, shape)) for path, shape in shapes.items()}

    def _size(self, rows: int, columns: int) -> int:
        return -(-rows // self.rows) * -(-columns // self.columns)

    def total(self, arrays: Arrays) -> Arrays:
        return {path: self._sums(self._matrix(path, array)) for path, array in arrays.items()}

    def pool(self, scores: Arrays, kept: Bits) -> tuple[Arrays, Bits]:
        return _pooled(self.total, scores, kept, self.score)

    def spread(self, units: Bits, within: Bits) -> Bits:
        return {path: within[path] & self._spread(path, bits, within[path].shape) for path, bits in units.items()}

    def shuffle(self, mask: Bits, seed: int, met: Mapping[str, np.ndarray]) -> Bits:
        return _shuffled(self, mask, seed, met)

    def _spread(self, path: str, units: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        rows, columns = self.matrix_shape(path, shape)
        return self._restored(path, units.repeat(self.rows, 0)[:rows].repeat(self.columns, 1)[:, :columns], shape)

    def _sums(self, matrix: np.ndarray) -> np.ndarray:
        for axis, step in enumerate((self.rows, self.columns)):
            matrix = np.add.reduceat(matrix, np.arange(0, matrix.shape[axis], step), axis)
        return matrix


@dataclasses.dataclass(frozen=True)
class NofM(Matrices, Single):
    """N:M sparsity (Mishra et al. 2021, "Accelerating Sparse Deep Neural Networks", arXiv 2104.08378): of each `m` inputs in
    sequence of an output the `n` weights of the highest scores can be kept, of a last group of fewer inputs as many, or all.
    Of equal scores the last stay. Where all that can be is kept, exactly `n` of each `m` are."""

    n: int
    m: int

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {path: self._size(*self.matrix_shape(path, shape)) for path, shape in shapes.items()}

    def _size(self, rows: int, columns: int) -> int:
        return (rows // self.m * self.n + min(rows % self.m, self.n)) * columns

    def pool(self, scores: Arrays, kept: Bits) -> tuple[Arrays, Bits]:
        return scores, {path: kept[path] & self._highest(path, array, kept[path]) for path, array in scores.items()}

    def shuffle(self, mask: Bits, seed: int, met: Mapping[str, np.ndarray]) -> Bits:
        """`n` of each `m` inputs, drawn anew."""
        paths = enumerate(sorted(mask))
        scores = {path: np.random.default_rng([seed, index]).random(mask[path].shape) for index, path in paths}
        return self.pool(scores, masks.whole(mask))[1]

    def groups(self, path: str, shape: tuple[int, ...]) -> Groups:
        """How many groups a kernel has, of how many inputs, of which so many can be kept; then the same of the last ones."""
        rows, columns = self.matrix_shape(path, shape)
        last = rows % self.m
        return (rows // self.m * columns, self.m, self.n), (columns, last, min(last, self.n))

    def _highest(self, path: str, scores: np.ndarray, kept: np.ndarray) -> np.ndarray:
        matrix = self._matrix(path, np.where(kept, scores, -np.inf))
        rows, columns = matrix.shape
        groups = -(-rows // self.m)
        padded = np.full((groups * self.m, columns), -np.inf)
        padded[:rows] = matrix
        order = np.argsort(padded.reshape(groups, self.m, columns), axis=1, kind="stable")
        highest = np.zeros(order.shape, bool)
        np.put_along_axis(highest, order[:, self.m - self.n :], True, axis=1)
        return self._restored(path, highest.reshape(padded.shape)[:rows], scores.shape)


@dataclasses.dataclass(frozen=True)
class WholeChannels:
    """The `channels` of a network that may go, each in the layer of the first kernel that makes it. Those of kernels outside
    `scope` stay; the inputs of such a kernel go with what they read. Scored are the variables in `scope` alone."""

    channels: Channels
    scope: frozenset[str]
    score: Pooling = "mean"

    @cached_property
    def layers(self) -> dict[str, np.ndarray]:
        """The numbers of the channels of each layer: int [units]."""
        stay, layers = {STAYS}, dict[str, np.ndarray]()
        made = {path: outputs for path, outputs in self.channels.outputs.items() if self.channels.nodes[path].groups == 1}
        for path, outputs in made.items():
            if path not in self.scope:
                stay.update(outputs.flat)
        for path, outputs in made.items():
            if (own := sorted(set(outputs.flat) - stay)) and path in self.scope:
                layers[path] = np.array(own)
                stay.update(own)
        return layers

    def covered(self, scope: Collection[str]) -> set[str]:
        held = self._mask({path: np.zeros(numbers.size, bool) for path, numbers in self.layers.items()})
        return {*scope, *(path for path, bits in held.items() if not bits.all())}

    def ranked(self, mask: Bits) -> Bits:
        return {path: bits for path, bits in mask.items() if path in self.scope}

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {path: numbers.size for path, numbers in self.layers.items()}

    def total(self, arrays: Arrays) -> Arrays:
        sums = sum((self.channels.total(path, array) for path, array in arrays.items()), np.zeros(self.channels.count + 1))
        return {path: sums[numbers] for path, numbers in self.layers.items()}

    def pool(self, scores: Arrays, kept: Bits) -> tuple[Arrays, Bits]:
        return _pooled(self.total, scores, kept, self.score)

    def spread(self, units: Bits, within: Bits) -> Bits:
        mask = self._mask(units)
        return {path: bits & mask[path] if path in mask else bits for path, bits in within.items()}

    def shuffle(self, mask: Bits, seed: int, met: Mapping[str, np.ndarray]) -> Bits:
        return _shuffled(self, mask, seed, met)

    def _mask(self, units: Bits) -> Bits:
        kept = np.ones(self.channels.count, bool)
        for path, bits in units.items():
            kept[self.layers[path]] = bits
        return self.channels.spread(kept)


def _pooled(total: Callable[[Arrays], Arrays], scores: Arrays, kept: Bits, score: Pooling) -> tuple[Arrays, Bits]:
    """`Units.pool` of units that have these `total`s. The norm of scores that are all negative is negative."""
    left = {path: np.where(bits, scores[path], 0).astype(np.float64) for path, bits in kept.items()}
    counts = total(kept)
    match score:
        case "sum":
            pooled = total(left)
        case "wrapped":
            pooled = {path: sums % 1 for path, sums in total(left).items()}
        case "mean":
            pooled = {path: sums / np.maximum(counts[path], 1) for path, sums in total(left).items()}
        case "norm":
            squares = total({path: array * np.abs(array) for path, array in left.items()})
            pooled = {path: np.copysign(np.sqrt(np.abs(sums)), sums) for path, sums in squares.items()}
    return pooled, {path: numbers > 0 for path, numbers in counts.items()}


def _shuffled(units: Units, mask: Bits, seed: int, met: Mapping[str, np.ndarray]) -> Bits:
    """`Units.shuffle` of units that are kept as a whole."""
    whole = masks.whole(mask)
    left, sizes, seen = map(units.total, (mask, whole, {path: bits & met.get(path, True) for path, bits in whole.items()}))
    shuffled: Bits = {}
    for index, (path, counts) in enumerate(sorted(left.items())):
        rng, kept = np.random.default_rng([seed, index]), counts > 0
        alike = np.unique(np.stack([sizes[path].ravel(), seen[path].ravel()]), axis=1, return_inverse=True)[1]
        for kind in range(alike.max(initial=-1) + 1):
            places = (alike == kind).reshape(kept.shape)
            kept[places] = rng.permutation(kept[places])
        shuffled[path] = kept
    return units.spread(shuffled, whole)


class Spec(NamedTuple):
    """Units as a recipe writes them: `weight`, `channel`, `4x1` (inputs x outputs), `2:4`."""

    text: str
    sizes: tuple[int, int] = (1, 1)

    @property
    def is_n_of_m(self) -> bool:
        return ":" in self.text

    @property
    def is_weight(self) -> bool:
        return self.text == WEIGHT

    @property
    def is_channel(self) -> bool:
        return self.text == CHANNEL

    @property
    def share(self) -> Fraction:
        """Of each m weights n."""
        return Fraction(*self.sizes)

    @property
    def plural(self) -> str:
        """What is counted, in words. Of n of m they are weights."""
        if self.is_weight or self.is_n_of_m:
            return "weights"
        return "channels" if self.is_channel else f"{self.text} blocks"

    def __str__(self) -> str:
        return self.text


def parse(text: str) -> Spec:
    """Raises InputError for what is not the name of units."""
    if text in (WEIGHT, CHANNEL):
        return Spec(text)
    match = re.fullmatch(r"([1-9]\d{0,3})([x:])([1-9]\d{0,3})", text)
    if not match:
        raise InputError(f"{text!r} are not units: write weight, channel, 4x1 (blocks of inputs x outputs), or 2:4 (n of m)")
    sizes = int(match[1]), int(match[3])
    if match[2] == ":" and sizes[0] >= sizes[1]:
        raise InputError(f"{text!r} prunes nothing: of m inputs keep fewer, as 2:4 does")
    return Spec(text, sizes)


def of(spec: Spec, score: Pooling, shapes: Shapes, scope: Collection[str], topology: Topology | None, streams: bool) -> Units:
    """The units of a network of this `topology` (None: unknown), with variables of these `shapes`, of which those in `scope`
    are prunable. Raises InputError where it has none, or a block is larger than a kernel."""
    if spec.is_weight:
        return SINGLE
    if spec.is_channel:
        return channels_of(f"units = {spec}", score, shapes, scope, topology, streams)
    arranged = {path: layout for path, layout in layouts(topology).items() if path in scope}
    if spec.is_n_of_m:
        return NofM(*spec.sizes, layouts=arranged)
    blocks = Blocks(*spec.sizes, score, layouts=arranged)
    for path in scope:
        rows, columns = blocks.matrix_shape(path, shapes[path])
        if rows < blocks.rows or columns < blocks.columns:
            raise InputError(f"units = {spec}: a block is larger than {path}, {rows} inputs x {columns} outputs: exclude that")
    return blocks


def pooled_by(score: Pooling, units: Units) -> Units:
    """The same `units`, with this score."""
    return dataclasses.replace(units, score=score) if isinstance(units, Blocks | WholeChannels) else units


def channels_of(
    asked: str, score: Pooling, shapes: Shapes, scope: Collection[str], topology: Topology | None, streams: bool
) -> WholeChannels:
    """The channels of a network, for what a recipe `asked`. Raises InputError as `of`."""
    if topology is None:
        raise InputError(f"{asked}: this network cannot be followed (a subclassed model): use blocks or weights")
    whole = WholeChannels(channels(topology, shapes, streams), frozenset(scope), score)
    if not whole.layers:
        raise InputError(f"{asked}: all channels of this network stay: see pruning.exclude, scope and streams")
    return whole
