"""Of several families, tickets of the same density by what they cost to train and to find."""

from typing import Any

import altair as alt
import pandas

from lottery.experiment.graph import TICKET
from lottery.results import curves, frame, grouping, ranking
from lottery.results.block import Block, Cells
from lottery.results.curves import TOLD
from lottery.results.drawing import COLUMNS, PANEL, Chart, chart_of, tooltips
from lottery.results.findings import Findings
from lottery.results.tables import interval
from lottery.rundir import wording

EXPLAINED = (
    "What a ticket costs, in epochs of the dense network, counted in multiply-accumulates as by Evci et al. 2020 (appendix "
    "H): a step is three passes through what the mask keeps. Before: all that had to be trained and scored first, such as "
    "the dense network up to where weights or scores were taken from it, and earlier rounds. Difference and verdict: "
    "against the dense network, as in the table of networks. ✓: no other ticket of that density has a higher mean {metric} "
    "at that cost (a tenth more counts as the same) or less."
)


def section(findings: Findings) -> Block | None:
    """The deciding metric of several families against what a ticket costs in all, a panel for each density."""
    metric = findings.run.metric
    scaled = curves.scaled(curves.told_apart(findings.figures), "validation", "sd_low", "sd_high")
    densities = grouping.equally_dense(scaled.rows[scaled.rows["network"].eq(TICKET) & scaled.rows["cost"].notna()])
    if not densities:
        return None
    rows = pandas.concat(densities)[findings.figures.columns]
    x = alt.X("cost:Q", title="cost in all, dense epochs").scale(zero=True)
    places: dict[str, Any] = {"x": x, "color": curves.colour(scaled.rows)}
    y, height = scaled.y(f"validation {wording.title(metric)}").axis(format=".4~p"), PANEL * 3 // 4
    panels = []
    for alike in densities:
        base = chart_of(alike).encode(**places)
        marks = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, tooltip=tooltips(*TOLD, "cost"))
        layers = alt.layer(scaled.band(), scaled.bars(base), marks, *curves.below(alike, PANEL, height, "cost", **places))
        panels.append(layers.properties(width=PANEL, height=height, title=f"{alike['density'].iloc[0]:.1%} kept"))
    return Block(
        "equal_cost",
        wording.worded("{Metric} at equal cost", metric),
        charts=[Chart("equal_cost", alt.concat(*panels, columns=COLUMNS), subtitle=scaled.subtitle)],
        caption=f"Final validation {wording.title(metric)} against what a ticket costs to train and to find, in epochs of "
        "the dense network, counted in multiply-accumulates; the dense network is the grey line. Upper left is "
        f"better.{scaled.told}",
        table=_table(findings.groups),
        explained=wording.worded(EXPLAINED, metric),
        frames={"equal_cost": rows},
    )


def _table(groups: pandas.DataFrame) -> list[Cells]:
    tickets = groups[(groups["variant"] == TICKET) & (groups["count"] > 0)].dropna(subset=list(frame.SPENT))
    tickets = tickets.assign(cost=tickets["training_cost"] + tickets["finding_cost"])
    return [
        {
            "density": f"{row.density:.2%}",
            "mask": f"{row.family} {row.mask}",
            "rewound to": row.rewind,
            "validation": f"{row.validation:.2%}",
            "difference": interval(row.difference, row.low, row.high),
            "verdict": row.verdict,
            "before": f"{row.finding_cost:.2f}",
            "training": f"{row.training_cost:.2f}",
            "in all": f"{row.cost:.2f}",
            "best at its cost": "✓" if row.validation >= ranking.best_at(alike, row.cost) else "",
        }
        for alike in grouping.equally_dense(tickets)
        for row in frame.each(alike.sort_values("cost"))
    ]
