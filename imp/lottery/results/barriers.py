"""The error barriers between the tickets of one round and the next: a row for each round of each chain, over replicates."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import pandas

from lottery.base.progress import count_of
from lottery.experiment.graph import TICKET
from lottery.experiment.rule import Rule, known
from lottery.pruning.interpolation import STABLE, instability
from lottery.results import frame
from lottery.results.tables import interval
from lottery.rundir import records
from lottery.rundir.lineage import Lineage
from lottery.rundir.records import PairRecord
from lottery.rundir.run import Run

SPLITS = ("train", "test")
LINES = ("barrier", "projected")
NO_BARRIER, BARRIER = "none", "barrier"
GROUPS = {
    **dict.fromkeys(("family", "mask", "rewind"), "string"),
    **dict.fromkeys(("round", "rewind_step", "replicates"), "Int64"),
    **{f"{line}_{split}": "Float64" for line in LINES for split in SPLITS},  # means over replicates
    **{f"{line}_{bound}": "Float64" for line in LINES for bound in ("low", "high")},  # one-sided, on test
    "barrier": "string",  # none, barrier or undecided
    "verdict": "object",  # on the ticket
}
HEADINGS = ("chain", "round", "replicates", "barrier, test", "train", "projected, test", "there is", "the ticket")
EXPLAINED = (
    "barrier: how far the highest error on the straight line from the end of the round before (of the first: from the dense "
    "network) to the end of this one is above the mean error of both ends, in points: the mean over replicates, and in "
    "brackets its {t_bounds}. projected: the same, where the network before has the mask of this round. BatchNorm's "
    "statistics are computed anew at each point. none: the upper bound is below 2 points; barrier: the lower one is above (the "
    "convention of Frankle et al. 2020, arXiv 1912.05671). Paul et al. 2022 (arXiv 2210.03044) say that rounds without a "
    "barrier are exactly those whose tickets match."
)


def groups(run: Run, networks: pandas.DataFrame) -> pandas.DataFrame:
    """A row for each round of each chain that was compared with the one before, and the verdict on its ticket, as `networks` (a
    frame of `grouping.groups`) has it. Pairs of other networks than those that are there are left out."""
    planned, order = run.trained_plan(), frame.order(run)
    verdicts = {(one.family, one.mask, one.rewind_step): one.verdict for one in frame.each(networks) if one.variant == TICKET}
    found: dict[tuple[str, str, int], list[PairRecord]] = {}
    for one in pairs(run):
        found.setdefault((one.family, one.mask, one.rewind_step), []).append(one)
    rows = [
        {**_row(alike, run.rule), "rewind": frame.rewind_name(planned, place[2]), "verdict": verdicts.get(place)}
        for place, alike in found.items()
    ]
    return frame.table(sorted(rows, key=lambda row: order({**row, "variant": TICKET})), GROUPS)


def pairs(run: Run) -> Iterator[PairRecord]:
    """What was found between each round and the one before, of networks that are still there."""
    for replicate in map(run.replicate, run.known_numbers()):
        problem = Lineage(replicate).problem
        for path in replicate.pairs():
            one = records.read(path, PairRecord)
            if not one.copies and one.family in run.recipe.families and not problem(path):
                yield one


def _row(alike: Sequence[PairRecord], rule: Rule) -> dict[str, Any]:
    first = alike[0]
    row: dict[str, Any] = {name: getattr(first, name) for name in ("family", "mask", "round", "rewind_step")}
    lines = {"barrier": [one.recomputed or one.errors for one in alike], "projected": [one.projected for one in alike]}
    heights = {(line, split): [instability(one[split]) for one in errors] for line, errors in lines.items() for split in SPLITS}
    row |= {f"{line}_{split}": statistics.fmean(each) for (line, split), each in heights.items()}
    for line in lines:
        row[f"{line}_low"], row[f"{line}_high"] = known(*rule.bounds(heights[line, "test"]))
    side = int(rule.side(heights["barrier", "test"], STABLE))
    return row | {"barrier": {-1: NO_BARRIER, 0: str(rule.undecided), 1: BARRIER}[side], "replicates": len(alike)}


def sentence(found: pandas.DataFrame) -> str:
    """In how many rounds the barrier says what the verdict says, of those where both are decided."""
    rows = frame.each(found[found["barrier"].isin([NO_BARRIER, BARRIER])])
    decided = [row for row in rows if row.verdict and not row.verdict.is_open]
    agreeing = [row for row in decided if (row.barrier == NO_BARRIER) == row.verdict.is_matching]
    if not decided:
        return "No round has both a decided barrier and a decided ticket yet."
    return (
        f"Barrier and ticket are both decided in {count_of(len(decided), 'round')}. In {len(agreeing)} of them there is no "
        "barrier and the ticket matches, or there is one and it does not."
    )


def cells(found: pandas.DataFrame) -> list[tuple[str, ...]]:
    """A line for each row, under `HEADINGS`; barriers in points."""
    return [_cells(row) for row in frame.each(found)]


def _cells(row: Any) -> tuple[str, ...]:
    def height(line: str) -> str:
        mean, low, high = (getattr(row, f"{line}_{name}") for name in ("test", "low", "high"))
        return interval(mean, low, high, form="{:.2f}")

    chain = f"{row.family} from {row.rewind}"
    heights = height("barrier"), f"{100 * row.barrier_train:.2f}", height("projected")
    return chain, str(row.round), str(row.replicates), *heights, row.barrier, str(row.verdict or "")
