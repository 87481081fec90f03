"""When masks are settled: those that a family would have cut at each snapshot of the dense training, compared with the next."""

import itertools
from collections.abc import Iterable, Mapping

from lottery.experiment import cutting
from lottery.experiment.family import Family
from lottery.experiment.grids import Grid, Quantile
from lottery.pruning import overlap, settling
from lottery.pruning.overlap import Packed
from lottery.results import lookup
from lottery.rundir.run import Run

Courses = dict[str, dict[int, Mapping[str, Packed]]]


def courses(run: Run, number: int, family: Family) -> Courses:
    """The masks of a family in a replicate by their label, each at the steps of the recipe's snapshots, ascending. Raises
    InputError where a snapshot is missing or damaged, or a mask cannot be cut."""
    replicate, planned = run.replicate(number), run.plan()
    found: Courses = {value.label: {} for value in family.grid}
    for step in planned.snapshot_steps():
        state = lookup.snapshot(replicate, step, optimizer=False)
        for label, mask in cutting.at_once(run.recipe.pruning, family, state, replicate.read_topology()):
            found[label][step] = overlap.pack(mask)
    return found


def settled(run: Run, number: int, name: str, quantiles: Iterable[Quantile]) -> dict[str, int]:
    """The step of the first snapshot from which on each mask of one shot is settled, by its label. Raises InputError as
    `courses`."""
    family = run.recipe.families[name].model_copy(update={"quantiles": Grid.of(quantiles)})
    return {label: _settled(course) for label, course in courses(run, number, family).items()}


def _settled(course: Mapping[int, Mapping[str, Packed]]) -> int:
    masks = [*course.values()]
    distances = [settling.distance(*pair).replaced for pair in itertools.pairwise(masks)]
    return [*course][settling.settled(distances)]
