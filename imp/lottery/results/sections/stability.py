"""How far the copies of a ticket come apart."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas

from lottery.pruning.interpolation import STABLE
from lottery.results import instability
from lottery.results.block import Block
from lottery.results.drawing import COLOURS, COLUMNS, GREY, HEIGHT, PANEL, WIDTH, Chart, chart_of, tooltips
from lottery.results.findings import Findings

CAPTION = (
    "Above: instability on test {example}s, means over replicates with {bounds}; below the dashed line (2 points) a ticket "
    "counts as stable. Below: the error on test {example}s along the line between two trainings, means over pairs. Solid lines "
    "have BatchNorm's statistics interpolated, dashed ones recomputed."
)


def section(findings: Findings) -> Block | None:
    """Instability over rewind points, and the error on the lines between the pairs, ticket by ticket."""
    rows, lines = findings.instability, findings.lines
    if rows.empty:
        return None
    rows, lines = (one.assign(ticket=one["family"] + " " + one["mask"]) for one in (rows, lines[lines["split"] == "test"]))
    points, tickets = _points(rows), rows["ticket"].unique().tolist()
    dash: Any = alt.value([1, 0])
    if rows["statistics"].nunique() > 1:
        dash = alt.StrokeDash("statistics:N", legend=None)
    base = chart_of(rows).encode(
        x=alt.X("rewind:O", title="rewound to", sort=points).axis(labelAngle=0),
        y=alt.Y("test:Q", title="instability, test").axis(format=".2~%"),
        color=alt.Color("ticket:N", title=None).scale(domain=tickets, range=COLOURS),
    )
    bounds = base.mark_rule(opacity=0.5).encode(y=alt.Y("low:Q"), y2="high:Q")
    tips = tooltips("family", "mask", "rewind", "statistics", "test", "low", "high", "train", "verdict", "replicates", "pairs")
    marks = base.mark_line(point=True).encode(strokeDash=dash, tooltip=tips)
    limit = alt.Chart(pandas.DataFrame({"limit": [STABLE]})).mark_rule(color=GREY, strokeDash=[4, 4]).encode(y="limit:Q")
    above = alt.layer(limit, bounds, marks).properties(width=WIDTH, height=HEIGHT)
    panels = [_lines_of(lines[lines["ticket"] == ticket], ticket, points, dash) for ticket in tickets]
    drawing = alt.vconcat(above, alt.concat(*panels, columns=COLUMNS)).resolve_scale(color="independent")
    headings, cells = instability.cells(findings.instability)
    return Block(
        "stability",
        "How stable tickets are",
        instability.answers(findings.instability, findings.groups, findings.run.rule),
        [Chart("stability", drawing)],
        findings.run.worded(CAPTION),
        [dict(zip(headings, line, strict=True)) for line in cells],
        findings.run.worded(instability.EXPLAINED),
        {"stability": rows, "lines": lines},
    )


def _lines_of(rows: pandas.DataFrame, ticket: str, points: Sequence[str], dash: Any) -> alt.Chart:
    drawn = (
        chart_of(rows)
        .mark_line()
        .encode(
            x=alt.X("share:Q", title="share of the second network").axis(format=".0%", tickCount=3),
            y=alt.Y("error:Q", title="error, test").scale(zero=False).axis(format=".2~%", tickCount=5),
            color=alt.Color("rewind:O", title="rewound to", sort=points).scale(scheme="viridis"),
            strokeDash=dash,
            tooltip=tooltips("rewind", "statistics", "share", "error"),
        )
    )
    return drawn.properties(width=PANEL, height=PANEL, title=ticket)


def _points(rows: pandas.DataFrame) -> list[str]:
    """The names of rewind points, from early to late."""
    return list(rows.sort_values("rewind_step")["rewind"].unique())
