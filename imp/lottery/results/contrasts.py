"""Networks held against each other, paired by replicate: a ticket and its controls, a rewind point and an earlier one, a
method and another."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lottery import verdicts
from lottery.jobs import FROM_SCRATCH
from lottery.results.listing import Row

METHODS = ("init", "weights", "lr", "finetune")  # each is held against those after it
FIGURES = ("validation_accuracy", "test_accuracy", "test_accuracy_there", "least_validation_loss_step")


@dataclasses.dataclass(frozen=True)
class Difference:
    """The mean of `count` differences, and its two-sided 95 % Student t interval: None under two of them, and where all are the
    same, as those of steps between evaluations may be, which says nothing of their spread."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclasses.dataclass(frozen=True)
class Contrast:
    """What a group of tickets is above `against`, by figure: accuracies (0 .. 1) at the end of training on validation and test
    images, on test images at the step of least validation loss, and that step. `collapse` is the tickets' warning, if any,
    `collapse_against` that of the others."""

    method: str
    quantile: float | None
    level: int | None
    density: float
    collapse: str | None
    rewind: str
    against: str
    collapse_against: str | None
    differences: dict[str, Difference]


def flattened(found: Iterable[Contrast]) -> list[Row]:
    """A row for each figure of each contrast."""
    return [
        {
            **{field.name: getattr(one, field.name) for field in dataclasses.fields(one) if field.name != "differences"},
            "figure": figure,
            **dataclasses.asdict(difference),
            "clear": difference.is_clear,
        }
        for one in found
        for figure, difference in one.differences.items()
    ]


def contrasts(rows: Sequence[Row]) -> list[Contrast]:
    """Every ticket against the dense network, against its controls, against the ticket of the same quantile or round that was
    rewound to the earliest point, and against those that another method made in the same round from the same point; from dense
    to sparse. Only replicates that have both count."""
    done = [row for row in rows if row["status"] == "done"]
    found = []
    for place in sorted({_place(row) for row in done if row["variant"] == "ticket"}):
        tickets = [row for row in done if row["variant"] == "ticket" and _place(row) == place]
        for against, others in _others(done, tickets[0]):
            pairs = [(ticket, others[ticket["replicate"]]) for ticket in tickets if ticket["replicate"] in others]
            if pairs:
                found.append(_contrast(tickets[0], against, pairs))
    return found


def _others(done: Sequence[Row], ticket: Row) -> Iterator[tuple[str, dict[int, Row]]]:
    """What a ticket is held against: a name, and the networks by replicate."""
    yield "dense", _by_replicate(row for row in done if row["variant"] == "dense")
    beside = [row for row in done if row["variant"] != "dense" and _mask(row) == _mask(ticket)]
    for variant in ("extended", "reinit", "shuffle", "random"):
        one_for_all = ticket["method"] == "oneshot" and variant in FROM_SCRATCH
        step = 0 if one_for_all else ticket["rewind_step"]
        yield variant, _by_replicate(row for row in beside if (row["variant"], row["rewind_step"]) == (variant, step))
    tickets = [row for row in beside if row["variant"] == "ticket"]
    earliest = min(tickets, key=lambda row: row["rewind_step"])
    if earliest["rewind_step"] < ticket["rewind_step"]:
        others = _by_replicate(row for row in tickets if row["rewind_step"] == earliest["rewind_step"])
        yield f"rewound to {earliest['rewind']}", others
    if ticket["method"] in METHODS:
        for method in METHODS[METHODS.index(ticket["method"]) + 1 :]:
            place = {**ticket, "method": method}
            yield method, _by_replicate(row for row in done if row["variant"] == "ticket" and _place(row) == _place(place))


def _by_replicate(rows: Iterable[Row]) -> dict[int, Row]:
    return {row["replicate"]: row for row in rows}


def _mask(row: Row) -> tuple[Any, ...]:
    return (row["method"], row["quantile"], row["level"])


def _place(row: Row) -> tuple[Any, ...]:
    return (row["method"] != "oneshot", row["method"], row["rewind_step"], row["quantile"] or 0, row["level"] or 0)


def _contrast(ticket: Row, against: str, pairs: Sequence[tuple[Row, Row]]) -> Contrast:
    return Contrast(
        method=ticket["method"],
        quantile=ticket["quantile"],
        level=ticket["level"],
        density=statistics.fmean(one["density"] for one, _ in pairs),
        collapse=next((one["collapse"] for one, _ in pairs if one["collapse"]), None),
        rewind=ticket["rewind"],
        against=against,
        collapse_against=next((other["collapse"] for _, other in pairs if other["collapse"]), None),
        differences={name: _difference([one[name] - other[name] for one, other in pairs]) for name in FIGURES},
    )


def _difference(values: Sequence[float]) -> Difference:
    low, high = map(float, verdicts.bounds(values, 0.975))
    known = math.isfinite(low)
    return Difference(statistics.fmean(values), low if known else None, high if known else None, len(values))
