"""Channels: what must go together for one to be gone from a network. Pure NumPy.

A channel is the filters that make it, its entries in BatchNorm, the depthwise filter behind it, and the inputs of each kernel
that reads it. Where branches are added or multiplied, their channels are one by one the same (Fang et al. 2023, "DepGraph:
Towards Any Structural Pruning", arXiv 2301.12900, section 3.2): those of a residual stream go together over all its blocks. A
network without one computes the same as with its inputs at 0, whatever its filters are."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from lottery.pruning.connectivity import Node, Topology
from lottery.pruning.masks import Bits

STAYS = -1  # in place of the number of a channel: of images, of answers, and of what mixes all channels


@dataclasses.dataclass(frozen=True)
class Channels:
    """The `count` channels of a network that may go, by number. For the kernel at each path, `inputs` and `outputs` say to
    which its own belong, or `STAYS`: int [inputs / groups, groups] and [groups, outputs / groups], as `Node.arranged` has them.
    `vectors` say so of variables of one axis, such as biases: int [channels]; `by_node` of the outputs of each node."""

    topology: Topology
    count: int
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    vectors: dict[str, np.ndarray]
    by_node: dict[str, np.ndarray]

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """By the path of each kernel, the first that uses it."""
        return {path: node for node in reversed(self.topology.nodes) if node.kind == "linear" for path in node.kernels}

    def spread(self, kept: np.ndarray) -> Bits:
        """The weights of the channels that are `kept` (bool [count]) and of all that stay: a mask of each variable that holds
        something of channels that may go."""
        every = np.append(kept, True)  # which `STAYS` is the place of
        mask = {path: every[numbers] for path, numbers in self.vectors.items() if (numbers != STAYS).any()}
        for path, node in self.nodes.items():
            if (self.inputs[path] != STAYS).any() or (self.outputs[path] != STAYS).any():
                joined, shape = every[self.inputs[path]][..., None] & every[self.outputs[path]], node.kernels[path]
                mask[path] = node.restored(np.broadcast_to(joined, (math.prod(shape[:-2]), *joined.shape)), shape)
        return mask

    def total(self, path: str, array: np.ndarray) -> np.ndarray:
        """The sum of what an `array` of the shape of the variable at `path` holds of each channel, and at last of what stays:
        float64 [count + 1]. A weight that belongs to two channels counts in both."""
        if path in self.vectors:
            return self._sums(self.vectors[path], array)
        if path not in self.nodes:
            return np.zeros(self.count + 1)
        inputs, outputs = self.inputs[path], self.outputs[path]
        joined = self.nodes[path].arranged(array, inputs.size).sum(0, dtype=np.float64)
        same = (inputs[..., None] == outputs) * joined  # as in a depthwise filter
        return (
            self._sums(inputs, joined.sum(2))
            + self._sums(outputs, joined.sum(0))
            - self._sums(np.broadcast_to(outputs, joined.shape), same)
        )

    def _sums(self, numbers: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.roll(np.bincount(numbers.ravel() - STAYS, values.ravel(), self.count + 1), STAYS)


def channels(topology: Topology, variables: Mapping[str, tuple[int, ...]], streams: bool = True) -> Channels:
    """The channels of a network, in the order in which it makes them; `variables` are the shapes of its variables by path.
    Without `streams`, those of branches that are added stay. So do a kernel's of several groups of several inputs."""
    first = np.cumsum([0, *(node.width for node in topology.nodes)])
    slots = {node.name: start + np.arange(node.width) for node, start in zip(topology.nodes, first, strict=False)}
    staying, pairs = [slots[name] for name in topology.outputs], []
    used: dict[str, list[np.ndarray]] = {}
    for node in topology.nodes:
        read = [slots[name] for name in node.inputs]
        if _is_free(node, read, streams):
            pairs += _tied(node, slots[node.name], read)
        else:
            staying += [slots[node.name], *read]
        for path in filter(None, (*node.kernels, node.gamma)):  # whose layer may be called more than once
            before = used.setdefault(path, [slots[node.name], *read])
            pairs += zip(before, [slots[node.name], *read], strict=True)
    labels = _components(first[-1], *(np.concatenate(ends) for ends in zip(*pairs, strict=True)))
    free = np.setdiff1d(labels, labels[np.concatenate(staying)])
    numbers = np.full(first[-1], STAYS)
    numbers[free] = np.arange(free.size)
    by_node = {name: numbers[labels[places]] for name, places in slots.items()}
    inputs, outputs, vectors = {}, {}, {}
    for node in topology.nodes:
        for path in node.kernels if node.kind == "linear" else ():
            inputs[path] = by_node[node.inputs[0]].reshape(node.groups, -1).T
            outputs[path] = by_node[node.name].reshape(node.groups, -1)
        for path in _vectors(node, variables):
            vectors[path] = by_node[node.name]
    return Channels(topology, free.size, inputs, outputs, vectors, by_node)


def _vectors(node: Node, variables: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The paths of those `variables` that hold one number for each channel of `node`, in the layer of its kernel or gamma."""
    if node.kind not in ("linear", "scale"):
        return []
    layer = (node.gamma or next(iter(node.kernels))).rpartition("/")[0]
    return [path for path, shape in variables.items() if path.rpartition("/")[0] == layer and shape == (node.width,)]


def _is_free(node: Node, read: Sequence[np.ndarray], streams: bool) -> bool:
    """Whether a channel of `node` may go, and one that it reads."""
    match node.kind:
        case "input" | "mix":
            return False
        case "linear":
            return node.groups in (1, read[0].size)
        case "add":
            return streams and all(places.size == node.width for places in read)
        case "multiply":
            return all(places.size == node.width for places in read)
        case "reshape":
            return max(node.width, read[0].size) % min(node.width, read[0].size) == 0
    return True


def _tied(node: Node, own: np.ndarray, read: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Which channels of `node` (`own`) go together with which that it reads."""
    match node.kind:
        case "linear":
            return [(own, read[0].repeat(node.width // read[0].size))] if node.groups > 1 else []
        case "concatenate":
            return [(own, np.concatenate(read))]
        case "reshape":
            longest = max(own.size, read[0].size)
            return [(np.resize(own, longest), np.resize(read[0], longest))]
    return [(own, places) for places in read]


def _components(count: int, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Of each of `count` places the first that it is joined with by pairs (`one`, `other`), directly or not: int [count]."""
    labels = np.arange(count)
    while (apart := labels[one] != labels[other]).any():
        ends = labels[one[apart]], labels[other[apart]]
        np.minimum.at(labels, np.maximum(*ends), np.minimum(*ends))
        while (further := labels[labels] != labels).any():
            labels[further] = labels[labels[further]]
    return labels
