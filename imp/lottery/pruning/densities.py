"""What a mask keeps of a network: densities, connections, layer collapse. Pure NumPy."""

import dataclasses
from collections.abc import Container

import numpy as np

from lottery.pruning import connectivity, masks
from lottery.pruning.connectivity import Topology
from lottery.pruning.masks import Bits
from lottery.pruning.state import State


@dataclasses.dataclass(frozen=True)
class Density:
    """The share of weights kept, over the `prunable`, the `trainable` and all (`total`) weights of a network. `effective`: of
    the prunable ones, those that are kept and still connected to input and output; None without a topology."""

    prunable: float
    trainable: float
    total: float
    effective: float | None


@dataclasses.dataclass(frozen=True)
class Layer:
    """A prunable variable: its number of `weights`, and how many of them are `kept`. `positions`: how often each is multiplied
    for one image; None where that is not known, or where it is not multiplied with what the layer gets (a bias)."""

    weights: int
    kept: int
    positions: int | None = None

    @property
    def dense_macs(self) -> int | None:
        """Multiply-accumulates of the whole layer for one image."""
        return None if self.positions is None else self.weights * self.positions

    @property
    def macs(self) -> int | None:
        """Those of the kept weights."""
        return None if self.positions is None else self.kept * self.positions


@dataclasses.dataclass(frozen=True)
class Kept:
    """What a mask keeps. `disconnected`: whether no path from input to output is left; None without a topology."""

    density: Density
    layers: dict[str, Layer]
    disconnected: bool | None

    def collapsed(self, least: float) -> list[str]:
        """Paths of kernels that keep nothing, or a smaller share than `least`: layer collapse (Tanaka et al. 2020). Pruned
        biases and scales (scope `all`) do not cut a layer off."""
        kernels = {path: layer for path, layer in self.layers.items() if layer.weights and masks.in_scope(path, (), "kernels")}
        shares = {path: layer.kept / layer.weights for path, layer in kernels.items()}
        return [path for path, share in shares.items() if share == 0 or share < least]

    def warning(self, least: float) -> str | None:
        """What a user must know about the mask, in one line: layer collapse."""
        if self.disconnected:
            return "no path from input to output is left (layer collapse)"
        if collapsed := self.collapsed(least):
            return f"hardly anything is left of {', '.join(collapsed)} (layer collapse)"
        return None


def kept(mask: Bits, state: State, topology: Topology | None, prunable_paths: Container[str] | None = None) -> Kept:
    """What `mask` keeps of the network `state`. It counts the variables of `prunable_paths`, by default all of the mask. What
    is still connected depends on the others too, such as a BatchNorm scale outside the scope. With scope `all` a mask also
    ranks statistics. These are never pruned, and are left out of every count."""
    applied = masks.trainable_part(mask, state.weights)
    applied = {path: bits for path, bits in applied.items() if prunable_paths is None or path in prunable_paths}
    positions = topology.positions if topology else {}
    layers = {path: Layer(bits.size, int(np.count_nonzero(bits)), positions.get(path)) for path, bits in applied.items()}
    prunable = sum(layer.weights for layer in layers.values())
    pruned = prunable - sum(layer.kept for layer in layers.values())
    trainable = sum(array.size for array in state.weights.values())
    total = trainable + sum(array.size for array in state.statistics.values())
    sizes = {"prunable": prunable, "trainable": trainable, "total": total}
    left = {name: 1 - pruned / max(size, 1) for name, size in sizes.items()}
    if topology is None:
        return Kept(Density(**left, effective=None), layers, None)
    connected, disconnected = connectivity.effective(topology, mask)
    effective = sum(connected.get(path, layer.kept) for path, layer in layers.items()) / max(prunable, 1)
    return Kept(Density(**left, effective=effective), layers, disconnected)
