"""The instability of tickets: a row for each ticket and rewind point, over the pairs of its copies and over replicates, and the
answer that follows: the earliest point that is stable, beside the earliest that matches."""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas

from lottery.experiment.graph import TICKET
from lottery.experiment.rule import Rule, known
from lottery.pruning.interpolation import STABLE, instability
from lottery.results import frame
from lottery.rundir import records
from lottery.rundir.lineage import Lineage
from lottery.rundir.records import PairRecord
from lottery.rundir.run import Run

INTERPOLATED, RECOMPUTED, NONE = "interpolated", "recomputed", "none"  # BatchNorm's statistics
GROUPS = {
    **dict.fromkeys(("family", "mask", "rewind"), "string"),
    "rewind_step": "int64",
    "statistics": "string",  # BatchNorm's: interpolated, or recomputed; none without BatchNorm
    "replicates": "int64",
    "pairs": "int64",  # in all
    **dict.fromkeys(("train", "test"), "Float64"),  # instability: the mean over replicates of the mean over pairs
    "low": "Float64",  # one-sided bounds of that on test, over replicates
    "high": "Float64",
    "verdict": "string",
    **dict.fromkeys(("between", "from_start", "angle"), "Float64"),  # distances of the pairs, and degrees
}
HEADINGS = (
    *("ticket", "rewound to", "statistics", "replicates", "pairs", "instability, test", "train", "verdict"),
    *("apart", "from start", "angle"),
)
EXPLAINED = (
    "instability: how far the highest error on the straight line between two trainings, which differ only in the order of "
    "{example}s and their variation, is above the mean error of both ends, in points: the mean over replicates (in each, over "
    "pairs), and in brackets its {t_bounds} over replicates. stable: the upper bound is below 2 points; unstable: "
    "the lower one is above. 2 points are a convention (Frankle et al. 2020, arXiv 1912.05671). The highest of many errors is "
    "a little above the mean of two by chance. statistics: those of BatchNorm on the line are between those of the ends, or "
    "computed anew. apart, from start: Euclidean distances of the weights; angle: between the ways that both took, in degrees."
)


def groups(run: Run) -> pandas.DataFrame:
    """A row for each ticket, rewind point and kind of statistics that has pairs: families as the recipe has them, from dense to
    sparse, from early to late. Pairs of other networks than those that are there are left out."""
    planned, order = run.trained_plan(), frame.order(run)
    found = [
        {**row, "rewind": frame.rewind_name(planned, row["rewind_step"])}
        for members in _alike(run)
        for row in _rows(members, run.rule)
    ]
    return frame.table(sorted(found, key=lambda row: order({**row, "variant": TICKET})), GROUPS)


def curves(run: Run) -> pandas.DataFrame:
    """The error on the line between the ends, by share of the second network: means over replicates and pairs."""
    planned = run.trained_plan()
    found = [
        {
            "family": members[0].family,
            "mask": members[0].mask,
            "rewind": frame.rewind_name(planned, members[0].rewind_step),
            "rewind_step": members[0].rewind_step,
            "statistics": kind,
            "split": split,
            "share": share,
            "error": statistics.fmean(errors),
        }
        for members in _alike(run)
        for kind in _kinds(members)
        for split in _errors(members[0], kind)
        for share, errors in zip(
            members[0].shares, zip(*(_errors(one, kind)[split] for one in members), strict=True), strict=True
        )
    ]
    return pandas.DataFrame(found)


def answers(found: pandas.DataFrame, matching: pandas.DataFrame, rule: Rule) -> list[str]:
    """For each ticket, a sentence: from which rewind point on it is stable (`found`), and from which on it matches by
    `rule` (of the groups of networks `matching`)."""
    sentences = []
    for (family, mask), rows in found.groupby(["family", "mask"], sort=False):
        tickets = matching[(matching["variant"] == TICKET) & (matching["family"] == family) & (matching["mask"] == mask)]
        kinds = dict(list(rows.groupby("statistics", sort=False)))
        told = [f"{_earliest(alike, 'stable')}{f' ({kind})' if len(kinds) > 1 else ''}" for kind, alike in kinds.items()]
        sentences.append(f"{family} {mask}: {', '.join(told)}; {_earliest(tickets, rule.matching)}")
    return sentences


def _earliest(rows: pandas.DataFrame, verdict: str) -> str:
    """From which rewind point on every verdict is this one."""
    late_first = sorted(frame.each(rows), key=lambda row: -row.rewind_step)
    standing = list(itertools.takewhile(lambda row: row.verdict == verdict, late_first))
    return f"{verdict} from {standing[-1].rewind}" if standing else f"not shown to be {verdict} from any point on"


def cells(found: pandas.DataFrame) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Headings and lines of a table for people; instabilities in points."""
    return HEADINGS, [_cells(row) for row in frame.each(found)]


def _cells(row: Any) -> tuple[str, ...]:
    bounds = "" if row.low is None else f" ({100 * row.low:.2f} .. {100 * row.high:.2f})"
    return (
        *(f"{row.family} {row.mask}", row.rewind, row.statistics, str(row.replicates), str(row.pairs)),
        *(f"{100 * row.test:.2f}{bounds}", f"{100 * row.train:.2f}", row.verdict),
        *(f"{row.between:.2f}", f"{row.from_start:.2f}", "" if row.angle is None else f"{row.angle:.0f}°"),
    )


def _alike(run: Run) -> list[list[PairRecord]]:
    """The pairs of each ticket and rewind point of the recipe's families."""
    found: dict[tuple[str, str, int], list[PairRecord]] = {}
    for replicate in map(run.replicate, run.known_numbers()):
        problem = Lineage(replicate).problem
        for path in replicate.pairs():
            one = records.read(path, PairRecord)
            if one.copies and one.family in run.recipe.families and not problem(path):
                found.setdefault((one.family, one.mask, one.rewind_step), []).append(one)
    return list(found.values())


def _kinds(members: Sequence[PairRecord]) -> list[str]:
    return [INTERPOLATED, RECOMPUTED] if members[0].recomputed else [NONE]


def _errors(one: PairRecord, kind: str) -> Mapping[str, list[float]]:
    return one.recomputed if kind == RECOMPUTED else one.errors


def _rows(members: Sequence[PairRecord], rule: Rule) -> Iterator[dict[str, Any]]:
    first, replicates = members[0], len({one.replicate for one in members})
    angles = [one.distances.angle for one in members if one.distances.angle is not None]
    for kind in _kinds(members):
        by_split = {split: _means(members, kind, split) for split in first.errors}
        low, high = known(*rule.bounds(by_split["test"]))
        verdict = {-1: "stable", 0: rule.undecided, 1: "unstable"}[int(rule.side(by_split["test"], STABLE))]
        yield {
            **{name: getattr(first, name) for name in ("family", "mask", "round", "rewind_step")},
            "statistics": kind,
            "replicates": replicates,
            "pairs": len(members),
            "verdict": verdict,
            **{split: statistics.fmean(values) for split, values in by_split.items()},
            "low": low,
            "high": high,
            "between": statistics.fmean(one.distances.between for one in members),
            "from_start": statistics.fmean((one.distances.first + one.distances.second) / 2 for one in members),
            "angle": statistics.fmean(angles) if angles else None,
        }


def _means(members: Iterable[PairRecord], kind: str, split: str) -> list[float]:
    """The mean instability over pairs, of each replicate."""
    found: dict[int, list[float]] = {}
    for one in members:
        found.setdefault(one.replicate, []).append(instability(_errors(one, kind)[split]))
    return [statistics.fmean(values) for values in found.values()]
