"""How large the weights of a network are, and how they changed during training: tables of magnitudes.

Rows are those of `norms`, with quantiles by their names.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lottery.base.errors import InputError
from lottery.experiment.graph import TICKET
from lottery.experiment.grids import Grid, Point, Quantile
from lottery.pruning import norms
from lottery.pruning.norms import IN_ALL
from lottery.pruning.state import Arrays, State
from lottery.results import lookup
from lottery.rundir.run import Run

QUANTILES = Grid.of(map(Quantile, (50, 75, 90, 99)))
BARS = " ▁▂▃▄▅▆▇█"
HEADINGS = ("step", "epoch", "mean |w|", "norm", "moved", "")

Rows = list[dict[str, Any]]
Lines = list[tuple[str, ...]]


def explore(
    run: Run,
    at: Point | None = None,
    ticket: str | None = None,
    variant: str = TICKET,
    replicate: int = 1,
    quantiles: Grid[Quantile] = QUANTILES,
) -> tuple[str, Rows]:
    """The magnitudes of what is prunable of the dense network `at` a saved point of its training (None: its end), or of the
    trained network `ticket`; under a title. Raises InputError if there is no such network or point."""
    place = lookup.replicate(run, replicate)
    wanted = {str(quantile): quantile for quantile in quantiles}
    if ticket is not None:
        if at:
            raise InputError(f"--at {at}: only the dense network was saved on the way, leave --ticket out")
        _, state = lookup.trained(run, place, ticket, variant)
        name = ticket if variant == TICKET else f"{ticket} {variant}"
    else:
        step = at.step(run.plan().steps_per_epoch if at.unit == "ep" else 0) if at else lookup.end(place)
        state, name = lookup.snapshot(place, step, optimizer=False), "dense"
    weights = _weights(run, state, place.layers())
    return f"{place.folder}, {name}, step {state.step}", norms.table(weights, wanted)


def course(run: Run, replicate: int = 1) -> tuple[str, Rows]:
    """How the dense network's weights changed, snapshot by snapshot; under a title. Raises InputError if there are none yet."""
    place = lookup.replicate(run, replicate)
    steps, layers = lookup.snapshots(place) or [0], place.layers()

    def weights(step: int) -> Arrays:
        return _weights(run, lookup.snapshot(place, step, optimizer=False), layers)

    first = weights(steps[0])
    rows = [row for step in steps for row in norms.movements(step, weights(step), first)]
    return f"{place.folder}, dense, from step {steps[0]}", rows


def _weights(run: Run, state: State, layers: Sequence[str]) -> Arrays:
    """What is prunable, in the order of `layers`."""
    found = run.recipe.pruning.prunable(state)
    return {path: found[path] for path in norms.in_order(found, layers)}


def table(rows: Rows) -> tuple[tuple[str, ...], Lines]:
    """Headings, and a line for each row of `explore`."""
    low, high = (10 ** rows[0][end] for end in ("low", "high"))
    names = [f"q{name}" for name in rows[0]["quantiles"]]
    headings = ("variable", "count", "zeros", "min", "max", "mean", "norm", *names, f"|w| from {low:.2g} to {high:.2g}")
    lines = []
    for row in rows:
        figures = (*(row[name] for name in ("min", "max", "mean", "norm")), *row["quantiles"].values())
        counts = f"{row['count']:,}", f"{row['zeros']:,}"
        lines.append((row["path"], *counts, *map(_figure, figures), bars(row["histogram"])))
    return headings, lines


def in_all(rows: Rows, steps_per_epoch: int) -> Lines:
    """Of the rows of a `course` a line a snapshot, of all weights together."""
    found = [row for row in rows if row["path"] == IN_ALL]
    most = max(row["moved"] or 0.0 for row in found)
    return [
        (
            str(row["step"]),
            f"{row['step'] / steps_per_epoch:.3g}",
            _figure(row["mean"]),
            _figure(row["norm"]),
            _share(row["moved"]),
            ("█" * round(20 * row["moved"] / most) if most else "").ljust(20),
        )
        for row in found
    ]


def bars(values: Sequence[float]) -> str:
    """A small bar for each of `values` (not negative); the highest is full. Only spaces if all are 0."""
    most = max(values, default=0)
    if not most:
        return " " * len(values)
    return "".join(BARS[int(np.ceil(value / most * (len(BARS) - 1)))] for value in values)


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _share(value: float | None) -> str:
    return "from 0" if value is None else f"{value:.1%}"
