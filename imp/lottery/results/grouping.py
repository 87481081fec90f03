"""The rows of a run by group of replicates, with their means and verdicts."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import pandas

from lottery.experiment.graph import DENSE, TICKET
from lottery.results import frame, verdicts
from lottery.results.frame import FIGURES, KIND, ROWS
from lottery.rundir.run import Run

GROUPS = {
    **{name: ROWS[name] for name in (*KIND, "rewind", "collapse", "against", "density")},
    "count": "Int64",  # networks that are done, of as many
    "planned": "Int64",
    **{name: ROWS[name] for name in ("validation_accuracy", "test_accuracy", "test_accuracy_there", "difference")},
    "least_validation_loss_step": "Float64",
    "spread": "Float64",  # the standard deviation of validation accuracies
    "low": "Float64",  # one-sided 95 % bounds of the mean difference
    "high": "Float64",
    "deviation": "Float64",  # the standard deviation of differences
    "needed": "Int64",  # replicates that would call a network exactly as good matching in 80 % of cases
    "verdict": "string",
}


def groups(run: Run, networks: pandas.DataFrame) -> pandas.DataFrame:
    """Means and verdicts over the replicates of each kind of network: dense first, then family by family from dense to sparse.

    Means are over the `count` networks that are done; a verdict is undecided while one is missing, failed or diverged.
    """
    members: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in frame.dicts(networks):
        members.setdefault(tuple(row[name] for name in KIND), []).append(row)
    found = [_group(alike, run.recipe.delta) for alike in members.values()]
    return frame.table(sorted(found, key=frame.order(run)), GROUPS)


def _group(members: list[dict[str, Any]], delta: float) -> dict[str, Any]:
    first, finished = members[0], [row for row in members if row["status"] == "done"]
    differences = [row["difference"] for row in finished if row["difference"] is not None]
    deviation = verdicts.deviation(differences).item()
    verdict = verdicts.judge(differences, delta) if len(differences) == len(members) else "undecided"
    group = {name: first[name] for name in (*KIND, "rewind")} | {
        "collapse": next((row["collapse"] for row in members if row["collapse"]), None),
        "against": next((row["against"] for row in members if row["against"]), None),
        "density": mean(row["density"] for row in members),
        "count": len(finished),
        "planned": len(members),
        **{name: mean(row[name] for row in finished) for name in (*FIGURES, "difference")},
        "spread": statistics.stdev(row["validation_accuracy"] for row in finished) if len(finished) > 1 else None,
        "verdict": None if first["variant"] == DENSE else verdict,
    }
    if math.isnan(deviation):
        return group
    low, high = map(float, verdicts.bounds(differences))
    needed = verdicts.replicates_needed(deviation, delta)
    return group | {"low": low, "high": high, "deviation": deviation, "needed": needed}


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def tickets(found: pandas.DataFrame) -> dict[tuple[str, str], list[Any]]:
    """The groups of tickets by (family, rewind point), each from dense to sparse."""
    series: dict[tuple[str, str], list[Any]] = {}
    for group in frame.each(found):
        if group.variant == TICKET:
            series.setdefault((group.family, group.rewind), []).append(group)
    return series


def standing(series: Sequence[Any]) -> list[Any]:
    """Of the tickets of one series, from dense to sparse: those before the first that does not match."""
    ends = [place for place, group in enumerate(series) if group.verdict == "not matching"]
    return list(series[: ends[0] if ends else None])


def sparsest_matching(series: Sequence[Any]) -> Any | None:
    """Of the tickets of one series: the sparsest that matches with none denser *not* matching; None where none does."""
    return next((group for group in reversed(standing(series)) if group.verdict == "matching"), None)
