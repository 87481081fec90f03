"""How large the weights of a network are, and how they changed during training: tables of magnitudes."""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from data_prep.errors import InputError
from lottery.experiment import grids
from lottery.pruning import masks, norms
from lottery.pruning.masks import Scope
from lottery.pruning.norms import IN_ALL, Movement, Norms
from lottery.pruning.state import Arrays, State
from lottery.results import lookup
from lottery.rundir.names import Replicate
from lottery.rundir.run import Run
from lottery.rundir.topology import layers_of

END = "end"


@dataclasses.dataclass(frozen=True)
class Explored:
    """The figures of a network's variables, and of all of them together."""

    title: str
    quantiles: list[Fraction]
    norms: list[Norms]

    @property
    def headings(self) -> tuple[str, ...]:
        span = f"|w| from {10 ** self.norms[0].low:.2g} to {10 ** self.norms[0].high:.2g}"
        names = [f"q{grids.quantile_name(quantile)}" for quantile in self.quantiles]
        return ("variable", "count", "zeros", "min", "max", "mean", "norm", *names, span)

    def cells(self, one: Norms) -> tuple[str, ...]:
        figures = (one.min, one.max, one.mean, one.norm, *one.quantiles.values())
        return (one.path, f"{one.count:,}", f"{one.zeros:,}", *map(_figure, figures), norms.bars(one.histogram))

    def as_json(self) -> list[dict[str, Any]]:
        named = ({grids.quantile_name(q): value for q, value in one.quantiles.items()} for one in self.norms)
        return [{**dataclasses.asdict(one), "quantiles": values} for one, values in zip(self.norms, named, strict=True)]


@dataclasses.dataclass(frozen=True)
class Course:
    """How a dense network's variables moved: for each snapshot a row for each of them, and last one of all together."""

    title: str
    steps_per_epoch: int
    movements: list[list[Movement]]

    IN_ALL_HEADINGS = ("step", "epoch", "mean |w|", "norm", "moved", "")
    HEADINGS = ("variable", "norm first", "last", "moved", "norm over the snapshots", "moved over them")

    def in_all(self) -> list[tuple[str, ...]]:
        """A row a snapshot, of all weights together."""
        found = [rows[-1] for rows in self.movements]
        most = max(one.moved for one in found)
        return [
            (
                str(one.step),
                f"{one.step / self.steps_per_epoch:.3g}",
                _figure(one.mean),
                _figure(one.norm),
                _share(one.moved),
                ("█" * round(20 * one.moved / most) if 0 < most < float("inf") else "").ljust(20),
            )
            for one in found
        ]

    def by_variable(self) -> list[tuple[str, ...]]:
        """A row a variable, its snapshots as small bars."""
        return [
            (
                row[0].path,
                _figure(row[0].norm),
                _figure(row[-1].norm),
                _share(row[-1].moved),
                norms.bars([one.norm for one in row]),
                norms.bars([one.moved if one.moved < float("inf") else 0.0 for one in row]),
            )
            for row in zip(*self.movements, strict=True)
        ]

    def as_json(self, in_all: bool) -> list[dict[str, Any]]:
        found = [dataclasses.asdict(one) for rows in self.movements for one in rows if one.path == IN_ALL or not in_all]
        return [one | {"moved": one["moved"] if one["moved"] < float("inf") else None} for one in found]


def explore(
    run: Run,
    at: str = END,
    ticket: str | None = None,
    variant: str = "ticket",
    replicate: int = 1,
    scope: Scope | None = None,
    quantiles: str = "50,75,90,99",
) -> Explored:
    """The magnitudes of the dense network `at` a saved point of its training, or of the trained network `ticket`; over
    `scope`, or else the recipe's. Raises InputError if there is no such network or point."""
    place = lookup.replicate(run, replicate)
    wanted = grids.parse_quantiles(quantiles)
    if ticket is not None:
        if at != END:
            raise InputError(f"--at {at}: only the dense network was saved on the way, leave --ticket out")
        _, state = lookup.trained(run, place, ticket, variant)
        name = ticket if variant == "ticket" else f"{ticket} {variant}"
    else:
        state = lookup.snapshot(place, _step(run, place, at), optimizer=False)
        name = "dense"
    weights = _weights(run, state, scope, layers_of(place))
    return Explored(f"{place.folder}, {name}, step {state.step}", wanted, norms.table(weights, wanted))


def course(run: Run, replicate: int = 1, scope: Scope | None = None) -> Course:
    """How the dense network's weights changed from snapshot to snapshot. Raises InputError if there are none yet."""
    place = lookup.replicate(run, replicate)
    steps, layers = lookup.snapshots(place) or [0], layers_of(place)

    def weights(step: int) -> Arrays:
        return _weights(run, lookup.snapshot(place, step, optimizer=False), scope, layers)

    first = weights(steps[0])
    found = [norms.movements(step, weights(step), first) for step in steps]
    return Course(f"{place.folder}, dense, from step {steps[0]}", run.plan().steps_per_epoch, found)


def _weights(run: Run, state: State, scope: Scope | None, layers: Sequence[str]) -> Arrays:
    """The variables of a scope, in the order of `layers`."""
    settings = run.recipe.pruning
    found = masks.prunable(state, scope or settings.scope, settings.exclude if scope is None else ())
    return {path: found[path] for path in norms.in_order(found, layers)}


def _step(run: Run, place: Replicate, at: str) -> int:
    if at == END:
        return lookup.end(place)
    point = grids.parse_point(at)
    if point.unit == "it":
        return int(point.amount)
    return point.step(run.plan().steps_per_epoch)


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _share(value: float) -> str:
    return f"{value:.1%}" if value < float("inf") else "from 0"
