"""Several families ranked: where they keep as many weights, and by what their tickets cost to train and to find."""

from typing import Any

import altair as alt

from lottery.experiment.graph import TICKET
from lottery.results import curves, frame, grouping
from lottery.results.block import Block, Cells
from lottery.results.curves import TOLD
from lottery.results.drawing import COLUMNS, PANEL, Chart, chart_of, tooltips
from lottery.results.findings import Findings
from lottery.results.tables import points
from lottery.rundir import wording

EXPLAINED = (
    "Tickets of the same density by mean validation {metric}, the best first. Behind best: how far a ticket is behind the "
    "first, in points, paired by replicate; a star marks a distance whose {student_intervals} does not reach zero (in "
    "ranking.csv; not corrected for their number). Verdict: against the dense network, as in the table of networks."
)
COSTS = (
    "\n\nWhat a ticket costs, in epochs of the dense network, counted in multiply-accumulates as by Evci et al. 2020 (appendix "
    "H): a step is three passes through what the mask keeps. Before: all that had to be trained and scored first, such as "
    "the dense network up to where weights or scores were taken from it, and earlier rounds. ✓: no other ticket of that "
    "density has a higher mean {metric} at that cost (a tenth more counts as the same) or less."
)


def section(findings: Findings) -> Block | None:
    """A line for each ticket of a density that several families have, and a panel for each density where costs are known."""
    rows = findings.ranking
    if rows.empty:
        return None
    charts, caption = _charts(findings)
    names = rows["rewind"].nunique() > 1
    return Block(
        "ranking",
        "Families at equal density",
        charts=charts,
        caption=caption,
        table=[_line(row, names) for row in frame.each(rows)],
        explained=findings.run.worded(EXPLAINED + (COSTS if rows["best_for_cost"].notna().any() else "")),
        frames={"ranking": rows},
    )


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


def _charts(findings: Findings) -> tuple[list[Chart], str]:
    """The deciding metric against what a ticket costs in all, a panel for each density; and what is said below it."""
    metric = wording.title(findings.run.metric)
    scaled = curves.scaled(curves.told_apart(findings.figures), "validation", "sd_low", "sd_high")
    densities = grouping.equally_dense(scaled.rows[scaled.rows["network"].eq(TICKET) & scaled.rows["cost"].notna()])
    if not densities:
        return [], ""
    x = alt.X("cost:Q", title="cost in all, dense epochs").scale(zero=True)
    places: dict[str, Any] = {"x": x, "color": curves.colour(scaled.rows)}
    y, height = scaled.y(f"validation {metric}").axis(format=".4~p"), PANEL * 3 // 4
    panels = []
    for alike in densities:
        base = chart_of(alike).encode(**places)
        marks = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, tooltip=tooltips(*TOLD, "cost"))
        layers = alt.layer(scaled.band(), scaled.bars(base), marks, *curves.below(alike, height, "cost", **places))
        panels.append(layers.properties(width=PANEL, height=height, title=f"{alike['density'].iloc[0]:.1%} kept"))
    caption = (
        f"Final validation {metric} against what a ticket costs to train and to find, in epochs of the dense network, counted "
        f"in multiply-accumulates; the dense network is the grey line. Upper left is better.{scaled.told}"
    )
    return [Chart("ranking", alt.concat(*panels, columns=COLUMNS), subtitle=scaled.subtitle)], caption


def _line(row: Any, names: bool) -> Cells:
    return {
        "density": f"{row.density:.2%}",
        "family": _name(row, names),
        "validation": points(row.validation),
        "behind best": points(row.behind, "{:+.2f}") + " *" * row.clear,
        "verdict": row.verdict,
        "before": points(row.finding_cost, scale=1),
        "training": points(row.training_cost, scale=1),
        "in all": points(row.cost, scale=1),
        "best at its cost": "✓" if row.best_for_cost else "",
    }


def _name(row: Any, with_rewind: bool) -> str:
    return f"{row.family} from {row.rewind}" if with_rewind else str(row.family)
