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
from lottery.experiment.rule import Verdict
from lottery.results import cells, frame, grouping
from lottery.results.frame import ROWS
from lottery.results.grouping import Networks
from lottery.rundir.run import Run

SHUFFLE = "shuffle"
CONTROLS = (SHUFFLE, "reinit", "invert")
ONLY, MORE = "only an allocation", "more than an allocation"
CHECKS = {
    "family": "string",
    "criterion": "string",
    "allocation": "string",
    **{name: ROWS[name] for name in ("mask", "round", "rewind", "rewind_step", "density")},
    "control": "string",
    "count": "Int64",  # replicates that have both networks, of as many that are to have the control
    "planned": "Int64",
    "mean": "Float64",  # of the differences control - ticket in `validation`, with their one-sided bounds
    "low": "Float64",
    "high": "Float64",
    "verdict": "object",  # whether the control matches the ticket
    "series_verdict": "string",  # of the criterion, over all densities of the series
}


def checks(run: Run, networks: pandas.DataFrame) -> pandas.DataFrame:
    """Every ticket's controls against it, paired by replicate, for each series (family, rewind point) that has `shuffle`, where
    a score chose the weights: not a draw, a mask that was given, or the training."""
    kinds, series = grouping.kinds(run, networks), dict[tuple[str, int], list[dict[str, Any]]]()
    right = functools.cache(functools.partial(grouping.is_right, run))
    for kind, tickets in kinds.items():
        is_judged = kind[0] == TICKET and run.recipe.families[kind[1]].has_criterion
        beside = dict(grouping.beside(run, kinds, kind)) if is_judged else {}
        rows = series.setdefault((kind[1], kind[3]), [])
        rows += [_check(run, right, tickets, beside[name], name) for name in CONTROLS if beside.get(name)]
    shuffled = {place: [row for row in rows if row["control"] == SHUFFLE] for place, rows in series.items()}
    judged = {
        place: _judged(rows) or run.rule.undecided for place, rows in shuffled.items() if any(row["count"] for row in rows)
    }
    return frame.table((row | {"series_verdict": told} for place, told in judged.items() for row in series[place]), CHECKS)


def _check(run: Run, right: grouping.Right, tickets: Networks, controls: Networks, name: str) -> dict[str, Any]:
    pairs = [(controls[number], tickets[number]) for number in controls if number in tickets]
    done = [(one, ticket) for one, ticket in pairs if one["status"] == ticket["status"] == "done"]
    differences = [one["validation"] - ticket["validation"] for one, ticket in done]
    images = grouping.single_differences([(one["folder"], ticket["folder"]) for one, ticket in done], right)
    judgement = run.rule.judge(differences, len(controls), images)
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
        "low": judgement.low,
        "high": judgement.high,
        "verdict": judgement.verdict,
    }


def _judged(shuffled: Sequence[Mapping[str, Any]]) -> str | None:
    verdicts = [row["verdict"] for row in shuffled]
    return MORE if any(one.is_failing for one in verdicts) else ONLY if all(one.is_matching for one in verdicts) else None


def series(checks: pandas.DataFrame) -> Iterator[tuple[tuple[str, str], list[Any]]]:
    """The rows of each series, from dense to sparse, by its family and rewind point."""
    for _, rows in checks.groupby(["family", "rewind_step"], sort=False):
        found = frame.each(rows)
        yield (found[0].family, found[0].rewind), found


def words(criterion: str, allocation: str, updates: str = "none") -> str:
    """What a family prunes by: its criterion, or how its masks change in training (`updates`), and its allocation."""
    return f"{criterion.rpartition(':')[2] if updates == 'none' else updates}, {allocation}"


def sentence(rows: Sequence[Any]) -> str:
    """The verdict of one series in words."""
    found, places = rows[0].series_verdict, dict[Verdict, list[str]]()
    shuffled = [
        (row.verdict, row.mask if row.density is None else f"{row.density:.2%}") for row in rows if row.control == SHUFFLE
    ]
    for verdict, density in shuffled:
        places.setdefault(verdict, []).append(density)
    at = {verdict: cells.listed(densities) for verdict, densities in places.items()}
    if found in (ONLY, MORE):
        deciding = next(verdict for verdict in at if (verdict.is_matching if found == ONLY else verdict.is_failing))
        said = f"the control `{SHUFFLE}` {deciding.verb} the ticket at {at[deciding]}"
        if found == ONLY:
            return f"Which weights are kept does not matter, only how many in each layer: {said}."
        return f"Which weights are kept matters, not only how many in each layer: {said}."
    tested = cells.listed([density for verdict, density in shuffled if verdict.is_open])
    worse = [places for verdict, places in at.items() if verdict.is_open and verdict != found]
    here = f" On these images alone, the control `{SHUFFLE}` is worse than the ticket at {', '.join(worse)}." if worse else ""
    return f"Does it matter which weights are kept, or only how many in each layer? Not decided yet (tested at {tested}).{here}"
