"""How a family cuts masks, as far as that needs no files: its units, its method, what it keeps at each place of its grid."""

from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction

from lottery.base.errors import InputError
from lottery.experiment.family import Family
from lottery.experiment.grids import Round
from lottery.experiment.recipe import Pruning
from lottery.pruning import costs, criteria, masks, ranking, units
from lottery.pruning.connectivity import Topology
from lottery.pruning.criteria import Criterion
from lottery.pruning.cut import Cutter, Method
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State
from lottery.pruning.units import Pooling, Units


def units_of(pruning: Pruning, family: Family, network: State, topology: Topology | None) -> Units:
    """The units of a family in a `network`. Raises InputError as `units.of`."""
    scope = pruning.prunable(network)
    shapes = {path: array.shape for path, array in (network.weights | scope).items()}
    score: Pooling = "wrapped" if family.criterion == criteria.random.__name__ else family.unit_score
    return units.of(family.units, score, shapes, scope, topology, pruning.streams)


def everything(units: Units, variables: Arrays, scope: Collection[str]) -> Bits:
    """The mask that keeps all that one of `units` covers of the `variables` of a network."""
    return masks.whole({path: variables[path] for path in sorted(units.covered(scope))})


def method_of(family: Family, criterion: Criterion, units: Units, topology: Topology | None) -> Method:
    """Raises InputError as `positions`."""
    each = positions(topology) if family.per_mac else None
    return Method(criterion, family.allocation, family.shares_kept, family.passes, units, each)


def positions(topology: Topology | None) -> Mapping[str, int]:
    """How often each weight of a kernel is multiplied. Raises InputError where that is not known of one."""
    if topology is None or topology.uncounted:
        raise InputError("the multiply-accumulates of this network are not known: leave target = macs and per_mac out")
    return topology.positions


def at_once(pruning: Pruning, family: Family, network: State, topology: Topology | None) -> Iterator[tuple[str, Bits]]:
    """The masks over prunable variables of a family whose criterion only looks at weights, all cut from `network`, each after
    its label: from dense to sparse. Those of rounds keep as many weights as there. Raises InputError as `Cutter.to`."""
    scope, units = pruning.prunable(network), units_of(pruning, family, network, topology)
    within = everything(units, network.weights | scope, scope)
    method = method_of(family, criteria.CRITERIA[family.criterion], units, topology)
    cutter = Cutter(method, network, within, kernels=topology.kernels if topology else None, sort=True)

    def macs(mask: Bits) -> int:
        positions(topology)
        return costs.macs(mask, topology) or 0

    whole = left = method.prunable(within) if family.target == "weights" else macs(within)
    for value in family.grid:
        if isinstance(value, Round):
            left -= round(Fraction(str(family.rate)) / 100 * left)
        else:
            left = whole - ranking.pruned_count(value, whole)
        cut = cutter.leaving(left) if family.target == "weights" else cutter.fitting(left, macs)
        yield value.label, units.ranked(cut.mask)
