"""What a mask leaves of the dense network's MACs, before it is cut."""

import math

from lottery.experiment.family import Family
from lottery.experiment.graph import Mask
from lottery.experiment.recipe import Pruning
from lottery.pruning import allocation, ranking
from lottery.pruning.connectivity import Topology


def expected_share(mask: Mask, family: Family, pruning: Pruning, topology: Topology) -> float | None:
    """The share of the dense network's MACs that a one-shot `mask` of `family` leaves, where layers that are ranked together
    are pruned alike. None where MACs are not known. Of other units than weights it is that which the mask is asked for."""
    if not family.counts_weights:
        return float(1 - mask.rate / 100)
    used = topology.positions
    shapes = {path: shape for path, shape in topology.kernels.items() if pruning.covers(path, shape)}
    sizes = {path: math.prod(shape) for path, shape in topology.kernels.items()}
    if topology.uncounted:
        return None
    left = {path: sizes[path] for path in shapes}
    keep = sum(left.values()) - ranking.pruned_count(mask.rate, sum(left.values()))
    pruned = 0.0
    for paths, kept in allocation.allocate(family.allocation, left, keep, shapes, family.shares_kept, topology.kernels):
        share = 1 - kept / sum(left[path] for path in paths)
        pruned += share * sum(left[path] * used[path] for path in paths)
    return 1 - pruned / sum(count * used[path] for path, count in sizes.items())
