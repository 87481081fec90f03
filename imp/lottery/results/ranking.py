"""Several families ranked: tickets that keep as many weights, by the metric that decides, and by what they cost."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import pandas

from lottery.experiment.graph import TICKET
from lottery.results import frame, grouping
from lottery.results.frame import SPENT
from lottery.results.grouping import GROUPS, Kind, Networks
from lottery.rundir.run import Run

SAME_COST = 1.1  # up to a tenth more counts as the same
OF_GROUP = ("density", "family", "mask", "rewind", "validation", "verdict", *SPENT)
RANKS = {
    "level": "Int64",  # which density it is, from dense to sparse, and the rank there
    "rank": "Int64",
    **{name: GROUPS[name] for name in OF_GROUP},
    "behind": "Float64",  # the first of that density: the mean of the differences from it, with their two-sided interval
    "low": "Float64",
    "high": "Float64",
    "count": "Int64",  # replicates that have both
    "clear": "boolean",  # whether the interval lies below zero
    "cost": "Float64",  # of training and of all before, in epochs of the dense network
    "best_for_cost": "boolean",
}


def ranking(run: Run, networks: pandas.DataFrame, groups: pandas.DataFrame) -> pandas.DataFrame:
    """A row for each ticket of a density that several families have (`RANKS`), from dense to sparse, the best first."""
    tickets = groups[(groups["variant"] == TICKET) & (groups["count"] > 0)]
    tickets = tickets.assign(cost=tickets["training_cost"] + tickets["finding_cost"])
    kinds = grouping.kinds(run, networks[networks["status"] == "done"])
    found = (
        {"level": level, **row}
        for level, alike in enumerate(grouping.equally_dense(tickets), 1)
        for row in _ranked(run, alike.sort_values("validation", ascending=False, kind="stable"), kinds)
    )
    return frame.table(found, RANKS)


def _ranked(run: Run, tickets: pandas.DataFrame, kinds: Mapping[Kind, Networks]) -> Iterator[dict[str, Any]]:
    replicates = [kinds[row.variant, row.family, row.mask, row.rewind_step] for row in frame.each(tickets)]
    are_known = tickets["cost"].notna().sum() > 1  # costs, of tickets that can be compared by them
    for rank, (row, own) in enumerate(zip(frame.each(tickets), replicates, strict=True), 1):
        known = {name: getattr(row, name) for name in (*OF_GROUP, "cost")}
        pairs = [(own[number], replicates[0][number]) for number in own if number in replicates[0]] if rank > 1 else []
        differences = [one["validation"] - first["validation"] for one, first in pairs]
        low, high = run.rule.interval(differences) if pairs else (None, None)
        yield known | {
            "rank": rank,
            "behind": statistics.fmean(differences) if pairs else None,
            "low": low,
            "high": high,
            "count": len(pairs) if rank > 1 else len(own),
            "clear": high is not None and high < 0,
            "best_for_cost": row.validation >= _best_at(tickets, row.cost) if are_known and row.cost is not None else None,
        }


def _best_at(tickets: pandas.DataFrame, cost: float) -> float:
    """The highest value among tickets that cost no more."""
    return float(tickets.loc[tickets["cost"] <= cost * SAME_COST, "validation"].max())
