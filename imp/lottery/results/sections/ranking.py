"""Several families ranked: where they keep as many weights, and where their tickets cost as much."""

from collections.abc import Sequence
from typing import Any

from lottery.results import frame
from lottery.results.block import Block, Cells
from lottery.results.findings import Findings
from lottery.results.tables import points
from lottery.rundir import wording

EXPLAINED = (
    "Tickets of the same density by mean validation {metric}, the best first. Behind it: how far the others are behind, in "
    "points, paired by replicate; a star marks a distance whose {student_intervals} does not reach zero (in ranking.csv; not "
    "corrected for their number). Best for its cost: no other ticket of that density is both cheaper and better. The cost is "
    "that of training and of all before, in epochs of the dense network."
)


def section(findings: Findings) -> Block | None:
    """A line for each density that several families have."""
    rows = findings.ranking
    if rows.empty:
        return None
    names = rows["rewind"].nunique() > 1
    table = [_line(frame.each(alike), names) for _, alike in rows.groupby("level", sort=False)]
    explained = findings.run.worded(EXPLAINED)
    return Block("ranking", "Families at equal density", table=table, explained=explained, frames={"ranking": rows})


def sentence(findings: Findings) -> str:
    """Which family is the best at which density, and where clearly; nothing of one family."""
    rows = findings.ranking
    if rows.empty:
        return ""
    names, best, clear = rows["rewind"].nunique() > 1, dict[str, list[str]](), []
    for _, alike in rows.groupby("level", sort=False):
        first, second, *_ = frame.each(alike)
        best.setdefault(_name(first, names), []).append(f"{first.density:.2%}")
        clear += [f"{first.density:.2%}"] if second.clear else []
    led = "; ".join(f"{name} at {', '.join(densities)}" for name, densities in best.items())
    metric = wording.title(findings.run.metric)
    ahead = f"at {', '.join(clear)} density" if clear else "at no density"
    return f"Highest {metric} at equal density: {led}. Clearly ahead of the next best {ahead}."


def _line(rows: Sequence[Any], names: bool) -> Cells:
    first, *others = rows
    cheap = sorted((row for row in rows if row.best_for_cost), key=lambda row: row.cost)
    return {
        "density": f"{first.density:.2%}",
        "best": _name(first, names),
        "validation": points(first.validation),
        "behind it": ", ".join(f"{_name(row, names)} {100 * row.behind:+.2f}{' *' * row.clear}" for row in others),
        "best for its cost": ", ".join(f"{_name(row, names)} ({row.cost:.3g})" for row in cheap) if len(cheap) > 1 else "",
    }


def _name(row: Any, with_rewind: bool) -> str:
    return f"{row.family} from {row.rewind}" if with_rewind else str(row.family)
