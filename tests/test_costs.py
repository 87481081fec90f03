"""What a network costs under a mask, by hand: multiply-accumulates, bytes."""

import dataclasses
import gzip
import zlib

import numpy as np
import pytest
from handmade import TOPOLOGY

from lottery.pruning import masks
from lottery.pruning.connectivity import Topology
from lottery.pruning.costs import costs
from lottery.pruning.state import State

RNG = np.random.default_rng(0)
SHAPES = {"a/kernel": (3, 3, 2, 3), "a/bias": (3,), "b/kernel": (3, 5), "dw/kernel": (3, 3, 3, 1)}
NETWORK = State(
    9, {path: RNG.normal(size=shape).astype(np.float32) for path, shape in SHAPES.items()}, {"mean": np.ones(3)}, {}
)
SIZE = 54 + 3 + 15 + 27 + 3


def mask(**kept):
    found = {path.replace("_", "/"): np.zeros(SHAPES[path.replace("_", "/")], bool) for path in kept}
    for path, bits in found.items():
        bits.reshape(-1)[: kept[path.replace("/", "_")]] = True
    return found


def test_macs_are_kept_weights_times_the_positions_at_which_they_are_used():
    found = costs(mask(a_kernel=10, b_kernel=4), NETWORK, TOPOLOGY)

    assert found.dense_macs == 54 * 16 + 27 * 4 + 15
    assert found.macs == 10 * 16 + 27 * 4 + 4  # what has no mask is whole
    assert found.speedup == pytest.approx(987 / 272)


def test_a_kernel_of_two_nodes_is_used_in_both():
    again = dataclasses.replace(TOPOLOGY.nodes[1], name="again", positions=9)
    shared = Topology((*TOPOLOGY.nodes, again), TOPOLOGY.outputs)

    assert costs(mask(a_kernel=10), NETWORK, shared).macs == 10 * (16 + 9) + 27 * 4 + 15


def test_bytes_are_of_all_weights_and_statistics():
    assert costs(mask(a_kernel=10, b_kernel=4), NETWORK, TOPOLOGY).float32_bytes == 4 * SIZE


def test_gzip_is_of_the_masked_float32_arrays():
    kept = mask(a_kernel=10, b_kernel=4)
    arrays = masks.apply(kept, NETWORK.weights) | NETWORK.statistics
    content = b"".join(np.float32(array).tobytes() for _, array in sorted(arrays.items()))

    packer = zlib.compressobj(wbits=31, strategy=zlib.Z_RLE)
    packed = packer.compress(content) + packer.flush()
    assert costs(kept, NETWORK, TOPOLOGY).gzip_bytes == len(packed)
    assert gzip.decompress(packed) == content


def test_statistics_that_a_mask_of_scope_all_ranks_are_never_pruned():
    ranked = mask(b_kernel=4) | {"mean": np.zeros(3, bool)}

    assert costs(ranked, NETWORK, TOPOLOGY) == costs(mask(b_kernel=4), NETWORK, TOPOLOGY)


@pytest.mark.parametrize("without", [None, "positions"])
def test_macs_that_cannot_be_known_are_none(without):
    nodes = (*TOPOLOGY.nodes[:3], dataclasses.replace(TOPOLOGY.nodes[3], positions=None))
    found = costs(mask(b_kernel=4), NETWORK, Topology(nodes, TOPOLOGY.outputs) if without else None)

    assert (found.dense_macs, found.macs, found.speedup) == (None, None, None)
    assert found.float32_bytes == 4 * SIZE


def test_where_nothing_is_kept_no_speedup_is_told():
    found = costs(mask(a_kernel=0, b_kernel=0, dw_kernel=0), NETWORK, TOPOLOGY)

    assert (found.macs, found.speedup) == (0, None)
