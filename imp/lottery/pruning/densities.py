"""What a mask keeps of a network: densities, connections, layer collapse. Pure NumPy."""

import dataclasses

import numpy as np

from lottery.pruning import connectivity, masks
from lottery.pruning.connectivity import Topology
from lottery.pruning.masks import Mask
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
    """A prunable variable: its number of `weights`, and how many of them are `kept`."""

    weights: int
    kept: int


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


def kept(mask: Mask, state: State, topology: Topology | None) -> Kept:
    """What `mask` (over all prunable variables) keeps of the network `state`. With scope `all` it also ranks statistics.
    These are never pruned, and are left out of every count."""
    applied = masks.trainable_part(mask, state.weights)
    layers = {path: Layer(bits.size, int(np.count_nonzero(bits))) for path, bits in applied.items()}
    effect = connectivity.effective(topology, mask) if topology else None
    density = _density(applied, state, effect.connected if effect else None)
    return Kept(density, layers, effect.disconnected if effect else None)


def _density(applied: Mask, state: State, connected: dict[str, int] | None) -> Density:
    counts = {path: int(np.count_nonzero(bits)) for path, bits in applied.items()}
    prunable = max(sum(bits.size for bits in applied.values()), 1)
    pruned = sum(bits.size for bits in applied.values()) - sum(counts.values())
    trainable = sum(array.size for array in state.weights.values())
    total = trainable + sum(array.size for array in state.statistics.values())
    effective = None if connected is None else sum(connected.get(path, count) for path, count in counts.items()) / prunable
    return Density(1 - pruned / prunable, 1 - pruned / max(trainable, 1), 1 - pruned / max(total, 1), effective)
