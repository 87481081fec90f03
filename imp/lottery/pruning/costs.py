"""What a network costs under a mask: multiply-accumulates (MACs) to compute, bytes to store. Pure NumPy.

MACs are counted as by Blalock et al. 2020 ("What is the State of Neural Network Pruning?", section 5): a kept weight of a
kernel once at each position of its layer's output, padding included; biases, BatchNorm and activations not at all. Sparse code
rarely is as much faster as MACs are fewer."""

import dataclasses
import math
import zlib
from collections.abc import Iterator

import numpy as np

from lottery.pruning import masks
from lottery.pruning.connectivity import Topology
from lottery.pruning.masks import Bits
from lottery.pruning.state import State

STEP = 3  # passes through the network of a training step, each as dear as the forward one (Evci et al. 2020, appendix H)
FLOAT = 4  # bytes of a float32
BYTES = ("float32_bytes", "gzip_bytes")


@dataclasses.dataclass(frozen=True)
class Costs:
    """MACs for one image: of the `dense` network and of what the mask keeps; None where a kernel's use is not known.

    Bytes are of all weights and statistics as float32, with zeros; and after gzip that looks for runs alone (zlib's strategy
    RLE): of arrays with many zeros that is faster than level 1 and smaller than level 9."""

    dense_macs: int | None
    macs: int | None
    float32_bytes: int
    gzip_bytes: int

    @property
    def speedup(self) -> float | None:
        """The theoretical speed-up: dense MACs over kept MACs. None where that is not known, or nothing is kept."""
        return self.dense_macs / self.macs if self.dense_macs and self.macs else None


def costs(mask: Bits, state: State, topology: Topology | None) -> Costs:
    """What the network `state` costs under `mask` (path -> bool array; variables that it lacks are whole)."""
    mask = masks.trainable_part(mask, state.weights)
    kept = {path: int(np.count_nonzero(bits)) for path, bits in mask.items()}
    numbers = sum(array.size for array in (state.weights | state.statistics).values())
    dense_macs, macs = _macs(topology, kept)
    return Costs(dense_macs, macs, FLOAT * numbers, _gzipped(mask, state))


def macs(mask: Bits, topology: Topology | None) -> int | None:
    """The MACs for one image of what `mask` keeps; None where a kernel's use is not known."""
    return _macs(topology, {path: int(np.count_nonzero(bits)) for path, bits in mask.items()})[1]


def _macs(topology: Topology | None, kept: dict[str, int]) -> tuple[int, int] | tuple[None, None]:
    if topology is None or topology.uncounted:
        return None, None
    weights = {path: math.prod(shape) for path, shape in topology.kernels.items()}
    used = topology.positions
    dense = sum(count * used[path] for path, count in weights.items())
    return dense, sum(kept.get(path, count) * used[path] for path, count in weights.items())


def _gzipped(mask: Bits, state: State) -> int:
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS, strategy=zlib.Z_RLE)
    packed = [len(packer.compress(array.data)) for array in _masked(mask, state)]
    return sum(packed) + len(packer.flush())


def _masked(mask: Bits, state: State) -> Iterator[np.ndarray]:
    """All arrays in the order of their paths, as float32 with zeros where they are pruned."""
    for path, array in sorted((state.weights | state.statistics).items()):
        values = array.astype(np.float32, copy=False)
        yield np.ascontiguousarray(np.where(mask[path], values, np.float32(0)) if path in mask else values)
