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
from typing import Any, Literal

import numpy as np

from data_prep.errors import InputError
from lottery.pruning.masks import Mask
from lottery.pruning.state import Arrays

Kind = Literal["input", "linear", "scale", "add", "multiply", "concatenate", "reshape", "mix"]
Met = tuple[tuple[bool, ...], ...]  # for each axis of a kernel's window and each place on it, whether it meets the map
# Of a kernel, bool: its mask [places, inputs, groups, outputs], the live inputs [inputs, groups], the wanted outputs [groups,
# outputs].
Use = tuple[np.ndarray, np.ndarray, np.ndarray]

_BLOCK = 1 << 18  # weights that are looked at together: temporaries stay in the cache


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation with `width` output channels (of features, where there are no positions) on the outputs of `inputs`.

    - `linear`: a convolution or dense layer with one of `kernels` (path -> shape [..., in / groups, out], depthwise
      [..., in, multiplier] with as many groups as inputs; `transposed` [..., out, in]). Where some places of its window only
      ever read padding, `met` says which do not: those that are met along each axis of the window.
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

    @property
    def window(self) -> np.ndarray:
        """Which places of the window are met, bool [*window]. Only for a node that has `met`."""
        return functools.reduce(np.logical_and.outer, map(np.array, self.met))


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
    def layers(self) -> list[str]:
        """The names of the layers that have kernels or factors, as the network goes through them."""
        paths = [path for node in self.nodes for path in (*node.kernels, node.gamma) if path]
        return list(dict.fromkeys(path.rpartition("/")[0] for path in paths))

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold; values that equal their default are left out."""
        usual = {field.name: field.default for field in dataclasses.fields(Node)}
        rows = [{key: value for key, value in vars(node).items() if value and value != usual[key]} for node in self.nodes]
        return {"nodes": rows, "outputs": list(self.outputs)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Topology":
        def node(row: dict[str, Any]) -> Node:
            kernels = {path: tuple(shape) for path, shape in row.get("kernels", {}).items()}
            lists = {key: tuple(row.get(key, ())) for key in ("inputs", "gates")}
            met = tuple(map(tuple, row.get("met", ())))
            return Node(**{**row, **lists, "kernels": kernels, "met": met})

        return cls(tuple(map(node, content["nodes"])), tuple(content["outputs"]))


@dataclasses.dataclass(frozen=True)
class Connectivity:
    """`connected`: by kernel path, how many kept weights are connected to both the input and the output.

    `disconnected`: whether the output no longer depends on the input at all.
    """

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


def effective(topology: Topology, mask: Mask) -> Connectivity:
    """What `mask` (path -> bool array, True where kept) leaves connected. Kernels that it lacks are wholly kept.

    Raises InputError when an array of `mask` has not its kernel's shape.
    """
    for path, shape in topology.kernels.items():
        if path in mask and mask[path].shape != shape:
            raise InputError(
                f"the mask of {path} has shape {mask[path].shape}, its kernel {shape}: they are of different networks"
            )
    widths = {node.name: node.width for node in topology.nodes}
    kept = {node.name: _arranged(node, widths[node.inputs[0]], mask) for node in topology.nodes if node.kind == "linear"}
    pairs = {name: array[0] if len(array) == 1 else np.logical_or.reduce(array) for name, array in kept.items()}
    alive: Arrays = {}
    for node in topology.nodes:
        alive[node.name] = _forward(node, [alive[name] for name in node.inputs], mask, pairs)
    wanted = _wanted(topology, alive, mask, pairs)
    disconnected = not any(alive[output].any() for output in topology.outputs)
    return Connectivity(_count(topology, mask, kept, alive, wanted), disconnected)


def _arranged(node: Node, incoming: int, mask: Mask) -> np.ndarray:
    """The mask of a linear node's kernel as bool [places, inputs / groups, groups, outputs / groups], False at places that
    are not met; copied only at need."""
    ((path, shape),) = node.kernels.items()
    arranged = (incoming // node.groups, node.groups, node.width // node.groups)
    places = math.prod(shape) // math.prod(arranged)
    kept = mask.get(path, np.broadcast_to(np.True_, shape))
    kept = (kept.swapaxes(-1, -2) if node.transposed else kept).reshape(places, *arranged)
    return kept & node.window.reshape(-1, 1, 1, 1) if node.met else kept


def _forward(node: Node, alive: list[np.ndarray], mask: Mask, pairs: Arrays) -> np.ndarray:
    """Which output channels (bool [width]) receive something when `alive` are those of the inputs."""
    match node.kind:
        case "input":
            return np.ones(node.width, bool)
        case "linear":
            return _outputs(pairs[node.name], _grouped(alive[0], node.groups)).ravel()
        case "scale":
            return alive[0] & mask.get(node.gamma, True)
        case "add":
            return functools.reduce(np.logical_or, (_fit(each, node.width) for each in alive))
        case "multiply":
            merge = np.logical_or if len(node.gates) == len(alive) else np.logical_and
            return functools.reduce(merge, _factors(node, alive))
        case "concatenate":
            return np.concatenate(alive)
        case "reshape":
            return _fit(alive[0], node.width)
        case "mix":
            return np.full(node.width, any(each.any() for each in alive))


def _backward(node: Node, wanted: np.ndarray, alive: list[np.ndarray], mask: Mask, pairs: Arrays) -> list[np.ndarray]:
    """Which channels of each input are read when `wanted` are those of the output; `alive` are the live inputs."""
    match node.kind:
        case "linear":
            return [_inputs(pairs[node.name], wanted.reshape(node.groups, -1)).T.ravel()]
        case "scale":
            return [wanted & mask.get(node.gamma, True)]
        case "multiply" if len(node.gates) < len(alive):
            wanted = functools.reduce(np.logical_and, _factors(node, alive), wanted)
        case "concatenate":
            return np.split(wanted, np.cumsum([each.size for each in alive])[:-1])
        case "mix":
            return [np.full(each.size, wanted.any()) for each in alive]
    return [_fit(wanted, each.size) for each in alive]


def _wanted(topology: Topology, alive: Arrays, mask: Mask, pairs: Arrays) -> Arrays:
    """Which channels of each node lead to the output: bool [width] by node name."""
    wanted = {node.name: np.full(node.width, node.name in topology.outputs) for node in topology.nodes}
    for node in reversed(topology.nodes):
        incoming = [alive[name] for name in node.inputs]
        for name, channels in zip(node.inputs, _backward(node, wanted[node.name], incoming, mask, pairs), strict=True):
            wanted[name] |= channels
    return wanted


def _factors(node: Node, alive: list[np.ndarray]) -> list[np.ndarray]:
    """The live channels of each factor of a product, without its gates unless it has nothing else."""
    needed = [place for place in range(len(alive)) if place not in node.gates] or node.gates
    return [_fit(alive[place], node.width) for place in needed]


def _fit(channels: np.ndarray, width: int) -> np.ndarray:
    """`channels` where values in the same order are divided among `width` channels: i meets j when both leave the same
    remainder by the greatest common divisor. Covers flattening (repeats), its inverse (folds), and broadcasting from one."""
    if channels.size == width:
        return channels
    common = math.gcd(channels.size, width)
    return np.tile(channels.reshape(-1, common).any(axis=0), width // common)


def _grouped(channels: np.ndarray, groups: int) -> np.ndarray:
    return channels.reshape(groups, -1).T


def _outputs(pairs: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """Of `pairs` (bool [inputs, groups, outputs]) the outputs (bool [groups, outputs]) that a live input reaches."""
    reached = np.zeros(pairs.shape[1:], bool)
    for rows in _blocks(len(pairs), reached.size):
        reached |= (pairs[rows] & alive[rows, :, None]).any(axis=0)
    return reached


def _inputs(pairs: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Of `pairs` (bool [inputs, groups, outputs]) the inputs (bool [inputs, groups]) that a wanted output reads."""
    return np.concatenate([(pairs[rows] & wanted).any(axis=2) for rows in _blocks(len(pairs), wanted.size)])


def _count(topology: Topology, mask: Mask, kept: Arrays, alive: Arrays, wanted: Arrays) -> dict[str, int]:
    """Connected weights by kernel. One that several nodes share is connected where it is in any of them."""
    counts = dict.fromkeys(topology.kernels, 0)
    uses: dict[str, list[Use]] = {}
    for node in topology.nodes:
        if node.kind == "linear":
            (path,) = node.kernels
            incoming, outgoing = _grouped(alive[node.inputs[0]], node.groups), wanted[node.name].reshape(node.groups, -1)
            uses.setdefault(path, []).append((kept[node.name], incoming, outgoing))
        elif node.kernels and alive[node.name].any() and wanted[node.name].any():
            whole = {path: math.prod(shape) for path, shape in node.kernels.items()}
            counts |= {path: int(np.count_nonzero(mask[path])) if path in mask else size for path, size in whole.items()}
    return counts | {path: _connected(found) for path, found in uses.items()}


def _connected(uses: list[Use]) -> int:
    """How many kept weights join a live input and a wanted output in one of a kernel's `uses`."""
    total, first = 0, uses[0][0]
    for rows in _blocks(first.shape[1], first[:, 0].size):
        parts = (kept[:, rows] & (alive[rows, :, None] & wanted) for kept, alive, wanted in uses)
        total += int(np.count_nonzero(functools.reduce(np.logical_or, parts)))
    return total


def _blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices of `rows` rows of `width` weights that hold about `_BLOCK` of them each."""
    step = max(1, _BLOCK // width)
    return (slice(start, start + step) for start in range(0, rows, step))
