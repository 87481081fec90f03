"""What a ticket may cost: a recipe changed so that none costs more, counted in dense trainings."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from lottery.base.errors import InputError
from lottery.experiment.family import LONGEST, Family
from lottery.experiment.graph import TICKET, Mask
from lottery.experiment.grids import Grid
from lottery.experiment.plan import Plan, by_weights
from lottery.experiment.recipe import Pruning, Recipe
from lottery.pruning import allocation, ranking
from lottery.pruning.connectivity import Topology

ROUNDING = 1e-9  # of sums of costs


def parse(text: str) -> float:
    """The number of dense trainings in `3dense`. Raises InputError for anything else."""
    if not (match := re.fullmatch(r"(\d+(?:\.\d+)?)dense", text)) or not 0 < float(match[1]) <= LONGEST:
        raise InputError(f"--budget {text!r} is not a number of dense trainings, {LONGEST} at most: write 3dense, say")
    return float(match[1])


def within(planned: Plan, budget: float) -> tuple[Recipe, list[str]]:
    """The plan's recipe with families whose tickets cost `budget` dense trainings at most, what it takes to find them included,
    and a sentence about each. One whose tickets may train for another time trains them until they cost that. Of another, the
    quantiles or rounds that cost more are left out, by the weights that masks will keep: so the same are left out again when
    masks are cut. Raises InputError where none is left."""
    fitting, told = dict[str, Family](), []
    for name, family in planned.recipe.families.items():
        found = planned.found(planned.tickets([1], {name: family})[0].mask)
        if family.is_stretchable and family.length == 1 and budget > found:
            own = min(family.budget or budget, budget)
            fitting[name] = family.model_copy(update={"budget": own})
            told.append(f"{name} trains each ticket until it has cost {own:g} dense trainings")
        elif grid := _affordable(planned, name, family, budget):
            fitting[name] = family.model_copy(update=grid)
            told.append(f"{name} is left with {', '.join(f'{key} = {value}' for key, value in grid.items())}")
        else:
            told.append(f"{name} is left out: each of its tickets costs more than {budget:g} dense trainings")
    recipe = planned.recipe.model_copy(update={"families": fitting})
    if not fitting:
        raise InputError(f"no ticket of this recipe costs as little as {budget:g} dense trainings: raise --budget")
    dataclasses.replace(planned, recipe=recipe).tickets([1], fitting)  # raises what is wrong with a budget
    return recipe, told


def _affordable(planned: Plan, name: str, family: Family, budget: float) -> Mapping[str, Any]:
    """The grid of what costs no more, by its key; empty where all does."""
    judged = dataclasses.replace(planned, share=by_weights)
    tickets = [one for one in judged.tickets([1], {name: family}) if one.variant == TICKET]
    dear = {one.mask.label for one in tickets if judged.cost(one) > budget * (1 + ROUNDING)}
    left = Grid.of(value for value in family.grid if value.label not in dear)
    if not left:
        return {}
    return {"rounds": len(left)} if family.rounds else {"quantiles": left}


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
