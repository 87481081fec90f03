"""Effective density: which kept weights still lie on a path from the input to the output. Pure NumPy.

A mask can leave weights that do nothing: those behind a channel that receives nothing, those before one that nobody reads.
Their share is the difference between density and *effective* density (Vysogorets & Kempe 2023, "Connectivity Matters: Neural
Network Pruning Through the Lens of Effective Sparsity"). Where no path is left at all, layers have collapsed (Tanaka et al.
2020, SynFlow).

Only kernels are counted, and only what depends on the input is a path: a channel that is the same for every image, by a bias
or a BatchNorm offset, counts as dead. So does a place of a kernel that meets nothing but padding, as the rim of a 3x3 kernel
does on a map of one pixel. Beyond that connections are those of channels (or features), not of single positions.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from lottery.base.errors import InputError
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays

Kind = Literal["input", "linear", "scale", "add", "multiply", "concatenate", "reshape", "mix"]
Met = tuple[tuple[bool, ...], ...]  # for each axis of a kernel's window and each place on it, whether it meets the map

_BLOCK = 1 << 18  # weights that are looked at together: temporaries stay in the cache


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation with `width` output channels (of features, where there are no positions) on the outputs of `inputs`.

    - `linear`: a convolution or dense layer with one of `kernels` (path -> shape [..., in / groups, out], depthwise
      [..., in, multiplier] with as many groups as inputs; `transposed` [..., out, in]). Where some places of its window only
      ever read padding, `met` says which do not: those that are met along each axis of the window. `positions` is how often
      each weight is multiplied for one image: once at each position of the output (`transposed`: of the input). None where a
      size is not known.
    - `scale`: a factor for each channel, which a mask may prune too: the variable `gamma`.
    - `add`: any elementwise merge in which one live input is enough. `multiply`: one in which all must live, save those at the
      places `gates`, which are not zero without input (a sigmoid).
    - `concatenate`: along the channels. `reshape`: any that keeps the order of values, as flattening does.
    - `mix`: anything else. All outputs live when any input does, all inputs are wanted when any output is; its `kernels` count
      in full then.

    What treats each channel on its own (activations, pooling, padding) needs no node.
    """

    name: str
    kind: Kind
    width: int
    inputs: tuple[str, ...] = ()
    kernels: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    groups: int = 1
    transposed: bool = False
    gamma: str = ""
    gates: tuple[int, ...] = ()
    met: Met = ()
    positions: int | None = None

    @property
    def window(self) -> np.ndarray:
        """Which places of the window are met, bool [*window]. Only for a node that has `met`."""
        return functools.reduce(np.logical_and.outer, map(np.array, self.met))

    def arranged(self, array: np.ndarray, incoming: int) -> np.ndarray:
        """An array of the shape of a linear node's kernel as [places, inputs / groups, groups, outputs / groups], of `incoming`
        inputs."""
        array = array.swapaxes(-1, -2) if self.transposed else array
        return array.reshape(-1, incoming // self.groups, self.groups, self.width // self.groups)

    def restored(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """What `arranged` made of an array of `shape`, as it was."""
        *window, inputs, outputs = shape
        return array.reshape(*window, outputs, inputs).swapaxes(-1, -2) if self.transposed else array.reshape(shape)


@dataclasses.dataclass(frozen=True)
class Topology:
    """A network's nodes, each after its inputs, and the names of those that are its output."""

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]

    @property
    def kernels(self) -> dict[str, tuple[int, ...]]:
        """The shape of every kernel by its path."""
        return {path: shape for node in self.nodes for path, shape in node.kernels.items()}

    @property
    def positions(self) -> dict[str, int]:
        """How often each weight of a kernel is multiplied for one image, by the path of those of which it is known."""
        found: dict[str, list[int | None]] = {}
        for node in self.nodes:
            for path in node.kernels:
                found.setdefault(path, []).append(node.positions)
        return {path: sum(filter(None, uses)) for path, uses in found.items() if None not in uses}

    @property
    def uncounted(self) -> list[str]:
        """The paths of kernels of which that is not known; with one of these the MACs of the network are not either."""
        return [path for path in self.kernels if path not in self.positions]

    @property
    def layers(self) -> list[str]:
        """The names of the layers that have kernels or factors, as the network goes through them."""
        paths = [path for node in self.nodes for path in (*node.kernels, node.gamma) if path]
        return list(dict.fromkeys(path.rpartition("/")[0] for path in paths))


class Layout(NamedTuple):
    """The node that a kernel is of, and how many `incoming` channels that has: what its axes follow from."""

    node: Node
    incoming: int


def layouts(topology: Topology | None) -> dict[str, Layout]:
    """The layout of each kernel by its path, as far as it is known: of none without a topology, nor in layers of kind `mix`."""
    nodes = topology.nodes if topology else ()
    widths = {node.name: node.width for node in nodes}
    return {path: Layout(node, widths[node.inputs[0]]) for node in nodes if node.kind == "linear" for path in node.kernels}


class Connectivity(NamedTuple):
    """`connected`: by kernel path, how many kept weights are connected to both the input and the output.
    `disconnected`: whether the output no longer depends on the input at all."""

    connected: dict[str, int]
    disconnected: bool


def met(topology: Topology) -> Arrays:
    """The places of kernels that meet a position that can depend on the input, in any of their uses: bool [*window, 1, 1] by
    path, for kernels that have other places too. Weights at those can never carry anything."""
    windows: Arrays = {}
    for node in topology.nodes:
        for path, shape in node.kernels.items():
            window = node.window if node.met else np.ones(shape[:-2], bool)
            windows[path] = windows.get(path, False) | window
    return {path: window[..., None, None] for path, window in windows.items() if not window.all()}


def effective(topology: Topology, mask: Bits) -> Connectivity:
    """What `mask` (path -> bool array, True where kept) leaves connected. Kernels that it lacks are wholly kept.

    Raises InputError when an array of `mask` has not its kernel's shape.
    """
    for path, shape in topology.kernels.items():
        if path in mask and mask[path].shape != shape:
            raise InputError(
                f"the mask of {path} has shape {mask[path].shape}, its kernel {shape}: they are of different networks"
            )
    widths = {node.name: node.width for node in topology.nodes}
    kept = met_and_kept(topology, mask)
    pairs = joined(kept)
    alive: Arrays = {}
    for node in topology.nodes:
        alive[node.name] = forward(node, [alive[name] for name in node.inputs], mask, pairs)
    wanted = {node.name: np.full(node.width, node.name in topology.outputs) for node in topology.nodes}
    for node in reversed(topology.nodes):  # of its outputs only what lives hands on that it is wanted: others carry nothing
        sizes, live = [widths[name] for name in node.inputs], wanted[node.name] & alive[node.name]
        for name, channels in zip(node.inputs, _backward(node, live, sizes, pairs), strict=True):
            wanted[name] |= channels
    disconnected = not any(alive[output].any() for output in topology.outputs)
    return Connectivity(_count(topology, mask, kept, alive, wanted), disconnected)


def met_and_kept(topology: Topology, mask: Bits) -> Arrays:
    """The mask of the kernel of each linear node, by the node's name."""
    widths = {node.name: node.width for node in topology.nodes}
    return {node.name: _kept(node, widths[node.inputs[0]], mask) for node in topology.nodes if node.kind == "linear"}


def joined(kept: Arrays) -> Arrays:
    """Of each kernel that is `met_and_kept` the inputs and outputs that it joins at any place: bool [1, inputs, groups,
    outputs]."""
    return {name: array if len(array) == 1 else np.logical_or.reduce(array, keepdims=True) for name, array in kept.items()}


def _kept(node: Node, incoming: int, mask: Bits) -> np.ndarray:
    """The mask of a linear node's kernel, arranged, False at places that are not met; copied only at need."""
    ((path, shape),) = node.kernels.items()
    kept = node.arranged(mask.get(path, np.broadcast_to(np.True_, shape)), incoming)
    return kept & node.window.reshape(-1, 1, 1, 1) if node.met else kept


def forward(node: Node, alive: list[np.ndarray], mask: Bits, pairs: Arrays) -> np.ndarray:
    """Which output channels (bool [width]) receive something when `alive` are those of the inputs. `pairs` are what the
    kernels have `joined`."""
    match node.kind:
        case "input":
            return np.ones(node.width, bool)
        case "linear":
            reached = (part.any((0, 1)) for part in _joined(pairs[node.name], _grouped(alive[0], node.groups), np.True_))
            return functools.reduce(np.logical_or, reached).ravel()
        case "scale":
            return alive[0] & mask.get(node.gamma, True)
        case "multiply" if len(node.gates) < len(alive):
            needed = (each for place, each in enumerate(alive) if place not in node.gates)
            return functools.reduce(np.logical_and, (_fit(each, node.width) for each in needed))
        case "add" | "reshape" | "multiply":
            return functools.reduce(np.logical_or, (_fit(each, node.width) for each in alive))
        case "concatenate":
            return np.concatenate(alive)
        case "mix":
            return np.full(node.width, any(each.any() for each in alive))


def _backward(node: Node, wanted: np.ndarray, sizes: list[int], pairs: Arrays) -> list[np.ndarray]:
    """Which channels of each input, of so many (`sizes`), are read when `wanted` are those of the output."""
    match node.kind:
        case "linear":
            every = np.ones((sizes[0] // node.groups, node.groups), bool)
            parts = _joined(pairs[node.name], every, wanted.reshape(node.groups, -1))
            return [np.concatenate([part.any((0, 3)) for part in parts]).T.ravel()]
        case "concatenate":
            return np.split(wanted, np.cumsum(sizes)[:-1])
        case "mix":
            return [np.full(size, wanted.any()) for size in sizes]
    return [_fit(wanted, size) for size in sizes]


def _fit(channels: np.ndarray, width: int) -> np.ndarray:
    """`channels` where values in the same order are divided among `width` channels: i meets j when both leave the same
    remainder by the greatest common divisor. Covers flattening (repeats), its inverse (folds), and broadcasting from one."""
    if channels.size == width:
        return channels
    common = math.gcd(channels.size, width)
    return np.tile(channels.reshape(-1, common).any(axis=0), width // common)


def _count(topology: Topology, mask: Bits, kept: Arrays, alive: Arrays, wanted: Arrays) -> dict[str, int]:
    """Connected weights by kernel. One that several nodes share is connected where it is in any of them."""
    counts = dict.fromkeys(topology.kernels, 0)
    uses: dict[str, list[tuple[np.ndarray, ...]]] = {}
    for node in topology.nodes:
        if node.kind == "linear":
            (path,) = node.kernels
            ends = _grouped(alive[node.inputs[0]], node.groups), wanted[node.name].reshape(node.groups, -1)
            uses.setdefault(path, []).append((kept[node.name], *ends))
        elif node.kernels and alive[node.name].any() and wanted[node.name].any():
            whole = {path: math.prod(shape) for path, shape in node.kernels.items()}
            counts |= {path: int(np.count_nonzero(mask[path])) if path in mask else size for path, size in whole.items()}
    for path, shared in uses.items():
        blocks = zip(*(_joined(*use) for use in shared), strict=True)
        counts[path] = sum(int(np.count_nonzero(functools.reduce(np.logical_or, parts))) for parts in blocks)
    return counts


def _grouped(channels: np.ndarray, groups: int) -> np.ndarray:
    return channels.reshape(groups, -1).T


def _joined(kept: np.ndarray, alive: np.ndarray, wanted: np.ndarray | np.bool) -> Iterator[np.ndarray]:
    """Where `kept` (bool [places, inputs, groups, outputs]) joins a live input ([inputs, groups]) and a wanted output ([groups,
    outputs]), in blocks of inputs."""
    step = max(1, _BLOCK // kept[:, 0].size)
    for start in range(0, kept.shape[1], step):
        rows = slice(start, start + step)
        yield kept[:, rows] & (alive[rows, :, None] & wanted)
