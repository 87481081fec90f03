"""Channels: what must go together for one to be gone from a network. Pure NumPy.

A channel is the filters that make it, its entries in BatchNorm, the depthwise filter behind it, and the inputs of each kernel
that reads it. Where branches are added or multiplied, their channels are one by one the same (Fang et al. 2023, "DepGraph:
Towards Any Structural Pruning", arXiv 2301.12900, section 3.2): those of a residual stream go together over all its blocks.
A network without one computes the same as with its inputs at 0, whatever its filters are.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from lottery.pruning.connectivity import Node, Topology
from lottery.pruning.masks import Bits

STAYS = -1  # in place of the number of a channel: of images, of answers, and of what mixes all channels


@dataclasses.dataclass(frozen=True)
class Channels:
    """The `count` channels of a network that may go, by number. For the kernel at each path, `inputs` and `outputs` say to
    which its own belong, or `STAYS`: int [inputs / groups, groups] and [groups, outputs / groups], as `Node.arranged` has them.
    `factors` say so of BatchNorm's variables, by the path of gamma: int [channels]."""

    topology: Topology
    count: int
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    factors: dict[str, np.ndarray]

    def spread(self, kept: np.ndarray) -> Bits:
        """The weights of the channels that are `kept` (bool [count]) and of all that stay: a mask of each kernel and gamma."""
        every = np.append(kept, True)  # which `STAYS` is the place of
        mask = {path: every[numbers] for path, numbers in self.factors.items()}
        for node in self.topology.nodes:
            for path, shape in node.kernels.items() if node.kind == "linear" else ():
                joined = every[self.inputs[path]][..., None] & every[self.outputs[path]]
                mask[path] = node.restored(np.broadcast_to(joined, (math.prod(shape[:-2]), *joined.shape)), shape)
        return mask


def channels(topology: Topology, streams: bool = True) -> Channels:
    """The channels of a network, in the order in which it makes them. Without `streams`, those of branches that are added
    stay. A kernel's channels stay where it has several groups of several inputs, as each group must keep as many."""
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
    return _by_path(topology, {name: numbers[labels[places]] for name, places in slots.items()}, free.size)


def _by_path(topology: Topology, numbers: Mapping[str, np.ndarray], count: int) -> Channels:
    """`numbers` of the channels of each node, by name."""
    inputs, outputs, factors = {}, {}, {}
    for node in topology.nodes:
        if node.kind == "linear":
            ((path, _),) = node.kernels.items()
            inputs[path] = numbers[node.inputs[0]].reshape(node.groups, -1).T
            outputs[path] = numbers[node.name].reshape(node.groups, -1)
        elif node.gamma:
            factors[node.gamma] = numbers[node.name]
    return Channels(topology, count, inputs, outputs, factors)


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
    """Of each of `count` places the first that it is joined with by the pairs `one` and `other`, directly or by way of others:
    int [count]."""
    labels = np.arange(count)
    while (apart := labels[one] != labels[other]).any():
        ends = labels[one[apart]], labels[other[apart]]
        np.minimum.at(labels, np.maximum(*ends), np.minimum(*ends))
        while (further := labels[labels] != labels).any():
            labels[further] = labels[labels[further]]
    return labels
