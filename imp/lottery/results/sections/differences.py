"""Tickets by mask and rewind point."""

import json

import altair as alt

from lottery.experiment.graph import TICKET
from lottery.results.block import Block
from lottery.results.curves import TOLD
from lottery.results.drawing import FEW, Chart, chart_of, masks_across, tooltips
from lottery.results.findings import Findings
from lottery.rundir import wording


def section(findings: Findings) -> Block | None:
    """How far each ticket is from what it is compared with, by mask and rewind point."""
    rows = findings.figures
    tickets = rows[(rows["network"] == TICKET) & rows["difference"].notna()]
    if tickets.empty:
        return None
    tickets = tickets.assign(points=100 * tickets["difference"])
    families = (alike.sort_values("rewind_step", kind="stable") for _, alike in tickets.groupby("family", sort=False))
    series = list(dict.fromkeys(name for alike in families for name in alike["series"]))
    most = min(max(0.5, tickets["points"].abs().max()), 10.0)
    x, width = masks_across(tickets)
    base = chart_of(tickets).encode(x=x, y=alt.Y("series:N", title=None).sort(series), tooltip=tooltips(*TOLD))
    cells = base.mark_rect().encode(
        color=alt.Color("points:Q", title="points").scale(scheme="redblue", domain=[-most, most], clamp=True)
    )
    number = "format(datum.points, '+.2f') + ' ' + " if tickets["mask"].nunique() <= FEW else ""
    signs = base.mark_text(fontSize=10).encode(
        text="sign:N",
        color=alt.when(f"abs(datum.points) > {0.6 * most}").then(alt.value("white")).otherwise(alt.value("#222")),
    )
    sign = {verdict: verdict.sign for verdict in findings.run.rule.verdicts}
    signs = signs.transform_calculate(sign=f"{number}{json.dumps(sign)}[datum.verdict]")
    against, metric = " or ".join(tickets["against"].unique()), wording.title(findings.run.metric)
    drawing = alt.layer(cells, signs).properties(width=width, height=alt.Step(28))
    return Block(
        "differences",
        "Differences by mask and rewind point",
        charts=[Chart("differences", drawing)],
        explained=f"Validation {metric} against that of {against}, in points: {findings.run.rule.words['signs']}.",
        frames={"differences": tickets},
    )
