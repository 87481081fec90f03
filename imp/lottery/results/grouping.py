"""The rows of a run by group of replicates, with means and verdicts; groups compared with each other, paired by replicate; the
controls that follow from the groups."""

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from lottery.experiment.family import Family
from lottery.experiment.graph import DENSE, TICKET, Ticket
from lottery.experiment.plan import Plan
from lottery.experiment.rule import Rule
from lottery.results import frame
from lottery.results.frame import ANSWERS, COSTS, DECIDING, EXTENDED, FIGURES, KIND, ROWS, SPENT
from lottery.rundir import predictions
from lottery.rundir.run import Run

Kind = tuple[str, str, str, int]  # variant, family, mask, step of the rewind point
Networks = dict[int, dict[str, Any]]  # rows by replicate
Right = Callable[[str], NDArray[np.bool_] | None]  # `is_right` of a network in a folder
GROUPS = {
    **{name: ROWS[name] for name in (*KIND, "rewind", "collapse", "against", "density")},
    "count": "Int64",  # networks that are done, of as many
    "planned": "Int64",
    **{name: ROWS[name] for name in (*DECIDING, "test_there", "difference")},
    "least_validation_loss_step": "Float64",
    **dict.fromkeys((*ANSWERS, *COSTS, *SPENT), "Float64"),
    "spread": "Float64",  # the standard deviation of `validation`, and that of `test`
    "test_spread": "Float64",
    **dict.fromkeys(("low", "high", "deviation"), "Float64"),  # these and the following: a `Judgement` of the differences
    "needed": "Int64",
    "verdict": "object",
    **dict.fromkeys(("image_low", "image_high"), "Float64"),
    "image_verdict": "object",
}
CONTRASTED = (*FIGURES, "worst_class_accuracy", "calibration_error")
SAME_DENSITY = 0.005  # a relative difference that does not count, as between rounds and quantiles
_TICKET = ("family", "method", "mask", "round", "rewind", "rewind_step")
CONTRASTS = {
    **{name: ROWS[name] for name in (*_TICKET, "density", "collapse")},
    "against": "string",  # what tickets are compared with: dense, a control, an earlier rewind point, another family
    "collapse_against": "string",
    "figure": "string",  # one of CONTRASTED
    "mean": "Float64",  # of the differences, with their two-sided interval
    "low": "Float64",
    "high": "Float64",
    "count": "Int64",
    "clear": "boolean",  # whether the interval lies on one side of zero
}


def groups(run: Run, networks: pandas.DataFrame, rule: Rule | None = None) -> pandas.DataFrame:
    """Means and verdicts over the replicates of each kind of network: dense first, then family by family from dense to sparse.

    Means are over the `count` networks that are done; a verdict is undecided while one is missing, failed or diverged.
    They are judged by the run's rule, unless by another `rule`.
    """
    kinds = (frame.dicts(alike) for _, alike in networks.groupby(KIND, sort=False))
    right = functools.cache(partial(is_right, run))
    found = [_group(alike, right, rule or run.rule) for alike in kinds]
    return frame.table(sorted(found, key=frame.order(run)), GROUPS)


def _group(members: list[dict[str, Any]], right: Right, rule: Rule) -> dict[str, Any]:
    first, finished = members[0], [row for row in members if row["status"] == "done"]
    differences = [row["difference"] for row in finished if row["difference"] is not None]
    images = single_differences([(row["folder"], row["against_folder"]) for row in members if row["against_folder"]], right)
    judgement = {} if first["variant"] == DENSE else rule.judge(differences, len(members), images)._asdict()
    return {name: first[name] for name in (*KIND, "rewind")} | {
        "collapse": _first(members, "collapse"),
        "against": _first(members, "against"),
        "density": mean(row["density"] for row in members),
        "count": len(finished),
        "planned": len(members),
        **{name: mean(row[name] for row in finished) for name in (*FIGURES, *ANSWERS, *COSTS, *SPENT, "difference")},
        "spread": _spread(finished, "validation"),
        "test_spread": _spread(finished, "test"),
        **judgement,
    }


def is_right(run: Run, folder: str) -> NDArray[np.bool_] | None:
    """Whether a network, which is not stale, is right about each validation image (bool, [n]); None without predictions."""
    path = run.network_in(folder).predictions
    return predictions.load(path)["validation"].right if path.exists() else None


def single_differences(pairs: Sequence[tuple[str, str]], right: Right) -> NDArray[np.int8] | None:
    """On each validation image 1 where only the first network of a pair is right, -1 where only the second is (int8,
    [pairs, images]); None without pairs, and where some network has no predictions."""
    known = [(right(one), right(other)) for one, other in pairs]
    found = [one.astype(np.int8) - other for one, other in known if one is not None and other is not None]
    return np.stack(found) if found and len(found) == len(known) else None


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _spread(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return statistics.stdev(row[name] for row in rows) if len(rows) > 1 else None


def _first(rows: Iterable[Mapping[str, Any]], name: str) -> Any:
    return next((row[name] for row in rows if row[name]), None)


def tickets(found: pandas.DataFrame) -> dict[tuple[str, str], list[Any]]:
    """The groups of tickets by (family, rewind point), each from dense to sparse."""
    series: dict[tuple[str, str], list[Any]] = {}
    for group in frame.each(found[found["variant"] == TICKET]):
        series.setdefault((group.family, group.rewind), []).append(group)
    return series


def equally_dense(tickets: pandas.DataFrame) -> list[pandas.DataFrame]:
    """The tickets of several families that keep as much, whatever their masks are called; from dense to sparse."""
    left, found = tickets[tickets["density"].notna()].sort_values("density", ascending=False), []
    while len(left):
        is_alike = left["density"] >= left["density"].iloc[0] * (1 - SAME_DENSITY)
        found.append(left[is_alike])
        left = left[~is_alike]
    return [alike for alike in found if alike["family"].nunique() > 1]


def standing(series: Sequence[Any]) -> list[Any]:
    """Of the tickets of one series, from dense to sparse: those before the first that does not match."""
    return list(itertools.takewhile(lambda group: not group.verdict.is_failing, series))


def sparsest_matching(series: Sequence[Any]) -> Any | None:
    """Of the tickets of one series: the sparsest that matches with none denser *not* matching; None where none does."""
    return next((group for group in reversed(standing(series)) if group.verdict.is_matching), None)


def nearest(series: Sequence[Any], delta: float) -> Any | None:
    """Of the tickets of one series where none matches: the sparsest that still may, with a mean not more than `delta` below
    what it is compared with."""
    able = (group for group in reversed(standing(series)) if group.difference is not None and group.difference >= -delta)
    return next(able, None)


def contrasts(run: Run, networks: pandas.DataFrame) -> pandas.DataFrame:
    """Every kind of ticket against the dense network, against what accompanies it, against the ticket of the same mask that was
    rewound to the earliest point, and against those of families further down in the recipe with a mask of that name; a row for
    each of `CONTRASTED` that is known. Only replicates that have both count."""
    done = kinds(run, networks[networks["status"] == "done"])
    found = [
        row
        for kind, tickets in done.items()
        if kind[0] == TICKET
        for against, others in _others(run, done, kind)
        for row in _contrast(run.rule, [(row, others[number]) for number, row in tickets.items() if number in others], against)
    ]
    return frame.table(found, CONTRASTS)


def kinds(run: Run, networks: pandas.DataFrame) -> dict[Kind, Networks]:
    """The rows of each kind of network by replicate: family by family, from dense to sparse."""
    found: dict[Kind, Networks] = {}
    for row in sorted(frame.dicts(networks), key=frame.order(run)):
        found.setdefault((row["variant"], row["family"], row["mask"], row["rewind_step"]), {})[row["replicate"]] = row
    return found


def beside(run: Run, kinds: Mapping[Kind, Networks], ticket: Kind) -> Iterator[tuple[str, Networks]]:
    """The controls of a kind of tickets: a name, and the networks. A fresh control of one shot serves all rewind points."""
    _, name, mask, step = ticket
    family = run.recipe.families[name]
    variants = dict.fromkeys(kind[0] for kind in kinds if kind[1:3] == (name, mask) and kind[0] != TICKET)
    for variant in sorted(variants, key=lambda variant: variant != EXTENDED):
        yield variant, kinds.get((variant, name, mask, 0 if variant in family.shared_controls else step), {})


def _others(run: Run, kinds: Mapping[Kind, Networks], ticket: Kind) -> Iterator[tuple[str, Networks]]:
    """What a kind of tickets is compared with: a name, and the networks."""
    _, name, mask, step = ticket
    yield DENSE, kinds.get((DENSE, "", "", 0), {})
    families = list(run.recipe.families)
    yield from beside(run, kinds, ticket)
    earliest = min(kind[3] for kind in kinds if kind[:3] == (TICKET, name, mask))
    if earliest < step:
        others = kinds[TICKET, name, mask, earliest]
        yield f"rewound to {next(iter(others.values()))['rewind']}", others
    for other in families[families.index(name) + 1 :]:
        yield f"{other} {mask}", kinds.get((TICKET, other, mask, step), {})


def _contrast(rule: Rule, pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], against: str) -> Iterator[dict[str, Any]]:
    for figure in CONTRASTED if pairs else ():
        if any(row[figure] is None for pair in pairs for row in pair):
            continue
        differences = [one[figure] - other[figure] for one, other in pairs]
        low, high = rule.interval(differences)
        yield {name: pairs[0][0][name] for name in _TICKET} | {
            "density": statistics.fmean(one["density"] for one, _ in pairs),
            "collapse": _first((one for one, _ in pairs), "collapse"),
            "against": against,
            "collapse_against": _first((other for _, other in pairs), "collapse"),
            "figure": figure,
            "mean": statistics.fmean(differences),
            "low": low,
            "high": high,
            "count": len(pairs),
            "clear": low is not None and high is not None and (low > 0 or high < 0),
        }


def rows(run: Run) -> pandas.DataFrame:
    """The rows of a run, including the controls of its headlines."""
    planned = run.trained_plan()
    return frame.rows(run, [*run.tickets(planned), *controls(run, planned, run.families())] if planned else None)


def controls(run: Run, planned: Plan, families: Mapping[str, Family]) -> list[Ticket]:
    """Where the recipe does not say which masks have controls: those of the headline of each series of `families`, in every
    replicate that counts in it; none for a series with a ticket still to be trained."""
    following = {name: family for name, family in families.items() if family.controls_follow}
    if not following:
        return []
    everywhere = dataclasses.replace(run, chosen=())
    asked = planned.tickets(everywhere.numbers(), following)
    networks = frame.rows(everywhere, [ticket for ticket in asked if ticket.variant == TICKET])
    networks = networks[(networks["variant"] == TICKET) & networks["family"].isin(list(following))]
    found: dict[Ticket, None] = {}
    for (name, step), series in networks.groupby(["family", "rewind_step"], sort=False):
        family, left = following[name], series[series["status"] != "done"]
        if family.rounds:  # none follows one that failed or diverged
            left = left.drop_duplicates("replicate")
        best = sparsest_matching(frame.each(groups(run, series)))
        if best and not (left["status"] == "missing").any():
            counted = series.loc[series["mask"] == best.mask, "replicate"].tolist()
            for one in planned.tickets(counted, {name: family}):
                if (one.variant, one.mask.label, one.rewind) == (TICKET, best.mask, step):
                    found |= dict.fromkeys(planned.controls_of(one, family))
    return list(found)
