"""The rows of a run by group of replicates, with their means and verdicts."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from lottery import verdicts
from lottery.results.listing import Row, place


@dataclasses.dataclass(frozen=True)
class Group:
    """All replicates of one (variant, quantile or round, rewind point): means over the `count` of `planned` networks that are
    done. `early_step` is where the validation loss was least, `early_test_accuracy` the test accuracy there.

    The figures are NaN before one is done. `low` and `high` are the one-sided 95 % bounds of the mean difference, infinite
    without a `deviation`, which is the standard deviation of the differences over replicates, None where they have no spread.
    `needed` is how many replicates with that deviation would call a network exactly as good as the one it is held `against`
    matching in 80 % of cases. The verdict is undecided while a network is missing, failed or diverged.
    """

    variant: str
    method: str
    quantile: float | None
    level: int | None
    density: float
    collapse: str | None
    rewind: str
    rewind_step: int
    count: int
    planned: int
    validation_accuracy: float
    spread: float | None
    test_accuracy: float
    early_step: float
    early_test_accuracy: float
    against: str | None
    difference: float
    low: float
    high: float
    deviation: float | None
    needed: int | None
    verdict: verdicts.Verdict | None

    @property
    def title(self) -> str:
        """What its members are called in sentences and figures."""
        if self.variant == "dense":
            return "dense"
        where = f"quantile {self.quantile:g}" if self.level is None else f"{self.method}, round {self.level}"
        return f"{self.variant}, {where}, rewound to {self.rewind}"


def mask_name(quantile: float | None, method: str, level: int | None) -> str:
    """What tables call a mask; nothing for that of a dense network."""
    if quantile is not None:
        return f"q{quantile:g}"
    return "" if level is None else f"{method} {level}"


def groups(found: Sequence[Row], delta: float) -> list[Group]:
    """The networks of `rows` by group: dense first, then from dense to sparse."""
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in found:
        where = (row["variant"] != "dense", *place(row), row["variant"] != "ticket", row["variant"])
        members.setdefault(where, []).append(row)
    return [_group(members[where], delta) for where in sorted(members)]


def _group(members: list[Row], delta: float) -> Group:
    first, finished = members[0], [row for row in members if row["status"] == "done"]
    accuracies = [row["validation_accuracy"] for row in finished]
    differences = [row["difference"] for row in finished if row["difference"] is not None]
    low, high = map(float, verdicts.bounds(differences))
    deviation = verdicts.deviation(differences).item()
    has_spread = not math.isnan(deviation)
    verdict = verdicts.judge(differences, delta) if len(differences) == len(members) else "undecided"
    return Group(
        variant=first["variant"],
        method=first["method"],
        quantile=first["quantile"],
        level=first["level"],
        density=_mean([row["density"] for row in members if row["density"] is not None]),
        collapse=next((row["collapse"] for row in members if row["collapse"]), None),
        rewind=first["rewind"],
        rewind_step=first["rewind_step"],
        count=len(finished),
        planned=len(members),
        validation_accuracy=_mean(accuracies),
        spread=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        test_accuracy=_mean([row["test_accuracy"] for row in finished]),
        early_step=_mean([row["least_validation_loss_step"] for row in finished]),
        early_test_accuracy=_mean([row["test_accuracy_there"] for row in finished]),
        against=first["against"],
        difference=_mean(differences),
        low=low,
        high=high,
        deviation=deviation if has_spread else None,
        needed=verdicts.replicates_needed(deviation, delta) if has_spread else None,
        verdict=None if first["variant"] == "dense" else verdict,
    )


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def series(found: Sequence[Group]) -> dict[tuple[str, str], list[Group]]:
    """The tickets by (method, rewind point), each from dense to sparse."""
    lines: dict[tuple[str, str], list[Group]] = {}
    for group in found:
        if group.variant == "ticket":
            lines.setdefault((group.method, group.rewind), []).append(group)
    return lines


def standing(tickets: Sequence[Group]) -> list[Group]:
    """Of the tickets of one series, from dense to sparse: those before the first that does not match."""
    return list(itertools.takewhile(lambda group: group.verdict != "not matching", tickets))


def sparsest_matching(tickets: Sequence[Group]) -> Group | None:
    """Of the tickets of one series: the sparsest that matches with none denser *not* matching; None where none does."""
    return next((group for group in reversed(standing(tickets)) if group.verdict == "matching"), None)


def undecided(found: Sequence[Group]) -> list[Group]:
    """The one-shot tickets that more replicates could decide: none of theirs is missing or failed."""
    tickets = [group for group in found if group.variant == "ticket" and group.method == "oneshot"]
    return [group for group in tickets if group.verdict == "undecided" and group.count == group.planned]
