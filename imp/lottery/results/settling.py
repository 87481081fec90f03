"""When masks are settled: those that a family would have cut at each snapshot of the dense training, compared with the next."""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas

from lottery.experiment import cutting
from lottery.experiment.family import Family
from lottery.experiment.grids import Grid, Quantile
from lottery.experiment.plan import LEAST_SNAPSHOTS
from lottery.pruning import overlap, settling
from lottery.pruning.overlap import Packed
from lottery.pruning.settling import Distance
from lottery.results import frame, lookup
from lottery.results.tables import percent
from lottery.rundir.run import Run

Course = Mapping[int, Mapping[str, Packed]]  # a mask by the step of the network that it is cut from, ascending

CUTTING = "criterion", "iterations", "units", "unit_score", "target", "per_mac", "allocation", "densities"
NORMS = "replaced", "hamming"
BOUNDS = {"first": min, "last": max}  # of replicates
DISTANCES = dict.fromkeys(Distance._fields, "Float64")  # to the mask of the snapshot before
ROWS = {
    **dict.fromkeys(("family", "mask"), "string"),
    **dict.fromkeys(("replicate", "step"), "Int64"),
    **dict.fromkeys(("epoch", "density"), "Float64"),
    **DISTANCES,
    **{f"{name}_to_final": "Float64" for name in NORMS},
}
GROUPS = {
    **dict.fromkeys(("family", "mask"), "string"),
    "density": "Float64",
    "replicates": "Int64",
    "end": "Float64",  # in epochs, as are the next
    **{f"{name}_{bound}": "Float64" for name in NORMS for bound in BOUNDS},
    **{f"{name}_{figure}": "Float64" for name in NORMS for figure in ("to_final", "by_chance")},
}
HEADINGS = (
    *("family", "mask", "density", "replicates"),
    *("settled from epoch", "to the final mask", "by chance"),
    *("by Hamming from epoch", "Hamming to the final mask", "Hamming by chance"),
)


def courses(run: Run, number: int, family: Family, steps: Sequence[int]) -> dict[str, Course]:
    """The masks that a family cuts in a replicate from the dense network at these steps, by their label. Raises InputError
    where a snapshot is missing or damaged, or a mask cannot be cut."""
    replicate, found = run.replicate(number), dict[str, dict[int, Mapping[str, Packed]]]()
    for step in steps:
        state = lookup.snapshot(replicate, step, optimizer=False)
        for label, mask in cutting.at_once(run.recipe.pruning, family, state, replicate.read_topology()):
            found.setdefault(label, {})[step] = overlap.pack(mask)
    return dict(found)


def settled(run: Run, number: int, name: str, quantiles: Iterable[Quantile]) -> dict[str, int]:
    """The step of the first snapshot from which on each mask of one shot is settled, by its label. Raises InputError as
    `courses`."""
    family = run.recipe.families[name].model_copy(update={"quantiles": Grid.of(quantiles)})
    found = courses(run, number, family, run.plan().snapshot_steps())
    return {label: [*course][settling.settled([one.replaced for one in _apart(course)])] for label, course in found.items()}


def _apart(course: Course) -> list[Distance]:
    return [settling.distance(*pair) for pair in itertools.pairwise(course.values())]


def rows(run: Run, numbers: Sequence[int]) -> pandas.DataFrame:
    """A row for each mask of a family that weights alone decide, at each snapshot that the dense networks of these replicates
    all have; of families that cut the same masks only the first. None where there are too few snapshots. Raises InputError as
    `courses`."""
    planned, saved = run.trained_plan(), [set(run.replicate(number).snapshot_steps()) for number in numbers]
    steps = sorted(set.intersection(*saved)) if planned and saved else []
    families = _distinct(run.recipe.families) if len(steps) >= LEAST_SNAPSHOTS else {}
    return frame.table(
        (
            {"family": name, "replicate": number, "mask": label, **row}
            for name, family in families.items()
            for number in numbers
            for label, course in courses(run, number, family, steps).items()
            for row in _rows(course, planned.steps_per_epoch if planned else 1)
        ),
        ROWS,
    )


def _distinct(families: Mapping[str, Family]) -> dict[str, Family]:
    found = dict[Any, tuple[str, Family]]()
    for name, family in families.items():
        key = *(str(getattr(family, key)) for key in CUTTING), family.rate if family.rounds else None, *family.grid
        if family.is_of_weights:
            found.setdefault(key, (name, family))
    return dict(found.values())


def _rows(course: Course, steps_per_epoch: int) -> Iterator[dict[str, Any]]:
    *_, final = course.values()
    apart = [dict.fromkeys(Distance._fields), *(one._asdict() for one in _apart(course))]  # of the first there is none
    for (step, mask), before in zip(course.items(), apart, strict=True):
        kept, size = sum(one.kept for one in mask.values()), sum(math.prod(one.shape) for one in mask.values())
        left = settling.distance(mask, final)
        row = {"step": step, "epoch": step / steps_per_epoch, "density": kept / max(size, 1)}
        yield row | before | {f"{name}_to_final": getattr(left, name) for name in NORMS}


def groups(found: pandas.DataFrame) -> pandas.DataFrame:
    """A row for each mask, from a frame of `rows`: where it is settled in the earliest and in the latest replicate, and how far
    it is from the final one there; means over replicates."""
    places = []
    for (family, label), alike in found.groupby(["family", "mask"], sort=False):
        each = [one.reset_index(drop=True) for _, one in alike.groupby("replicate")]
        row: dict[str, Any] = {"family": family, "mask": label, "replicates": len(each), "end": alike["epoch"].max()}
        row["density"] = alike["density"].mean()
        for name in NORMS:
            at = [one.loc[settling.settled(one[name].tolist()[1:])] for one in each]
            row |= {f"{name}_{bound}": pick(one["epoch"] for one in at) for bound, pick in BOUNDS.items()}
            row |= {f"{name}_to_final": statistics.fmean(one[f"{name}_to_final"] for one in at)}
            row |= {f"{name}_by_chance": statistics.fmean(one[f"{name}_by_chance"].iloc[-1] for one in each)}
        places.append(row)
    return frame.table(places, GROUPS)


def cells(found: pandas.DataFrame) -> list[tuple[str, ...]]:
    """A line for each row, under `HEADINGS`."""
    return [
        (row.family, row.mask, percent(row.density), str(row.replicates), *_cells(row, "replaced"), *_cells(row, "hamming"))
        for row in frame.each(found)
    ]


def _cells(row: Any, name: str) -> tuple[str, ...]:
    epochs = (getattr(row, f"{name}_{bound}") for bound in BOUNDS)
    told = dict.fromkeys("the end" if epoch == row.end else f"{epoch:.3g}" for epoch in epochs)
    figures = (percent(getattr(row, f"{name}_{figure}")) for figure in ("to_final", "by_chance"))
    return " .. ".join(told), *figures
