"""The verdict of a criterion: does its score find the weights that matter, or only how many each layer should keep?

The control `shuffle` keeps as many weights of each layer, chosen at random. Where it does as well as the ticket, the score has
only allocated (Frankle et al. 2021, "Pruning Neural Networks at Initialization: Why Are We Missing the Mark?", arXiv
2009.08576).
"""

import functools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas

from lottery.experiment.graph import TICKET
from lottery.results import frame, grouping, verdicts
from lottery.results.frame import ROWS
from lottery.results.grouping import Networks
from lottery.rundir.run import Run

SHUFFLE = "shuffle"
CONTROLS = (SHUFFLE, "reinit", "invert")
ONLY, MORE, UNDECIDED = "only an allocation", "more than an allocation", verdicts.UNDECIDED
CHECKS = {
    "family": "string",
    "criterion": "string",
    "allocation": "string",
    **{name: ROWS[name] for name in ("mask", "round", "rewind", "rewind_step", "density")},
    "control": "string",
    "count": "Int64",  # replicates that have both networks, of as many that are to have the control
    "planned": "Int64",
    "mean": "Float64",  # of the differences control - ticket in `validation`, with their one-sided 95 % bounds
    "low": "Float64",
    "high": "Float64",
    "verdict": "string",  # whether the control matches the ticket
    "series_verdict": "string",  # of the criterion, over all densities of the series
}


def checks(run: Run, networks: pandas.DataFrame) -> pandas.DataFrame:
    """Every ticket's controls against it, paired by replicate, for each series (family, rewind point) that has `shuffle`."""
    kinds, series = grouping.kinds(run, networks), dict[tuple[str, int], list[dict[str, Any]]]()
    right = functools.cache(functools.partial(grouping.is_right, run))
    for kind, tickets in kinds.items():
        judges = kind[0] == TICKET and not run.recipe.families[kind[1]].changes_masks  # else the training chose, too
        beside = dict(grouping.beside(run, kinds, kind)) if judges else {}
        rows = series.setdefault((kind[1], kind[3]), [])
        rows += [_check(run, right, tickets, beside[name], name) for name in CONTROLS if beside.get(name)]
    shuffled = {place: [row for row in rows if row["control"] == SHUFFLE] for place, rows in series.items()}
    judged = {place: _judged(rows) for place, rows in shuffled.items() if any(row["count"] for row in rows)}
    return frame.table((row | {"series_verdict": told} for place, told in judged.items() for row in series[place]), CHECKS)


def _check(run: Run, right: grouping.Right, tickets: Networks, controls: Networks, name: str) -> dict[str, Any]:
    pairs = [(controls[number], tickets[number]) for number in controls if number in tickets]
    done = [(one, ticket) for one, ticket in pairs if one["status"] == ticket["status"] == "done"]
    differences = [one["validation"] - ticket["validation"] for one, ticket in done]
    bounded = verdicts.deviation(differences) > 0
    low, high = map(float, verdicts.bounds(differences)) if bounded else (None, None)
    images = grouping.single_differences([(one["folder"], ticket["folder"]) for one, ticket in done], right)
    first = next(iter(tickets.values()))
    family = run.recipe.families[first["family"]]
    return {column: first[column] for column in ("family", "mask", "round", "rewind", "rewind_step")} | {
        "criterion": family.chosen_by,
        "allocation": family.allocation,
        "density": grouping.mean(row["density"] for row in tickets.values()),
        "control": name,
        "count": len(done),
        "planned": len(controls),
        "mean": statistics.fmean(differences) if done else None,
        "low": low,
        "high": high,
        "verdict": grouping.verdict(differences, len(controls), images, run.recipe.delta, verdicts.CONFIDENCE),
    }


def _judged(shuffled: Sequence[Mapping[str, Any]]) -> str:
    found = {row["verdict"] for row in shuffled}
    return MORE if "not matching" in found else ONLY if found == {"matching"} else UNDECIDED


def series(checks: pandas.DataFrame) -> Iterator[tuple[tuple[str, str], list[Any]]]:
    """The rows of each series, from dense to sparse, by its family and rewind point."""
    for _, rows in checks.groupby(["family", "rewind_step"], sort=False):
        found = frame.each(rows)
        yield (found[0].family, found[0].rewind), found


def words(criterion: str, allocation: str, updates: str = "none") -> str:
    """What a family prunes by: its criterion, or how its masks change in training (`updates`), and its allocation."""
    return f"{criterion.rpartition(':')[2] if updates == 'none' else updates}, {allocation}"


def sentence(rows: Sequence[Any]) -> str:
    """The verdict of one series in a sentence."""
    found, name = rows[0].series_verdict, f"criterion ({words(rows[0].criterion, rows[0].allocation)})"

    def places(verdict: str) -> str:
        shuffled = [row for row in rows if row.control == SHUFFLE and row.verdict == verdict]
        return ", ".join(row.mask if row.density is None else f"{row.density:.2%}" for row in shuffled)

    if found == UNDECIDED:
        open_at, worse_at = map(places, verdicts.OPEN)
        told = [f"so is the control `{SHUFFLE}` at {open_at}"] if open_at else []
        told += [f"the control `{SHUFFLE}` is worse than this ticket on these images at {worse_at}"] if worse_at else []
        return f"Whether its {name} is more than an allocation is undecided: {'; '.join(told)}."
    matches, verdict = ("matches", "matching") if found == ONLY else ("does not match", "not matching")
    return f"Its {name} is {found}: the control `{SHUFFLE}` {matches} the ticket at {places(verdict)}."
