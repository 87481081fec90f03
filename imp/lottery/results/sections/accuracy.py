"""The deciding metric against density."""

from typing import Any

import altair as alt

from lottery.experiment.graph import DENSE, TICKET
from lottery.results import criteria, curves
from lottery.results.block import Block
from lottery.results.curves import TOLD, Scaled
from lottery.results.drawing import COLUMNS, GREY, HEIGHT, PANEL, WIDTH, ZOOMING, Chart, chart_of, line_dashes, tooltips, zoom
from lottery.results.findings import Findings
from lottery.rundir import wording
from lottery.rundir.run import Run


def section(findings: Findings) -> Block | None:
    """The deciding metric, whose name the chart has, against density: of several families the tickets together, then each
    series with its controls."""
    rows, metric = findings.figures, findings.run.metric
    if (rows["network"] == DENSE).all():
        return None
    scaled = curves.scaled(rows, "validation", "sd_low", "sd_high")
    together = curves.told_apart(scaled.rows)
    chosen = alt.selection_point(fields=[curves.colour_key(rows)], bind="legend")
    opacity = alt.when(chosen).then(alt.value(1)).otherwise(alt.value(0.12))
    line, tickets, marks = curves.against(together, scaled.y(f"validation {wording.title(metric)}"))
    marks = marks.encode(opacity=opacity).add_params(chosen, zoom())
    off = (layer.encode(opacity=opacity) for layer in curves.below(together, HEIGHT, **curves.placed(together)))
    bars = scaled.bars(curves.pruned(together)).encode(opacity=opacity)
    margin = scaled.margin(findings.run.recipe.delta)
    drawing: Any = alt.layer(scaled.band(), bars, line, tickets.encode(opacity=opacity), marks, *off, margin)
    drawing, below = drawing.properties(width=WIDTH, height=HEIGHT), ""
    if len(together) < len(rows):
        drawing = alt.vconcat(drawing, _by_series(findings.run, scaled))
        drawing = drawing.resolve_scale(strokeDash="independent", shape="independent")
        below = " Below, the same tickets family by family with their controls, the tickets of the others in grey."
    spread = " Bars and the grey band are one standard deviation." if "bars" in scaled.subtitle else ""
    return Block(
        metric,
        wording.worded("{Metric} against density", metric),
        charts=[Chart(metric, drawing, subtitle=scaled.subtitle)],
        explained=f"Final validation {wording.title(metric)}, sparser to the right.{spread} The margin is "
        f"{findings.run.rule.words['margin']} points below dense.{scaled.told}{below} Click a name to see it alone; hold the "
        f"pointer over a mark for its values. {ZOOMING}",
        frames={metric: rows},
    )


def _by_series(run: Run, scaled: Scaled) -> alt.ConcatChart:
    """A panel for each series of tickets, with its controls. A fresh control of one shot serves all rewind points."""
    rows = scaled.rows[(scaled.rows["network"] == DENSE) | (scaled.rows["density"] > 0)]
    tickets, networks = rows[rows["network"] == TICKET], rows.loc[rows["network"] != DENSE, "network"].unique().tolist()
    y, dashes = scaled.y(None).axis(format=".0%", tickCount=5), line_dashes(run)
    x, colour = curves.left(rows).title(None), curves.colour(rows)
    shape = alt.Shape("network:N", title=None).scale(domain=networks)
    panels = []
    for (name, rewind), _ in tickets.groupby(["family", "rewind"], sort=False):
        family = run.recipe.families[name]
        own = rows[(rows["family"] == name) & ((rows["rewind"] == rewind) | rows["network"].isin(family.shared_controls))]
        others = chart_of(tickets[tickets["family"] != name]).mark_line(color=GREY, opacity=0.4, strokeWidth=1)
        base = chart_of(own).encode(x=x, y=y, color=colour)
        lines = {network: base.transform_filter(alt.datum.network == network) for network in networks}
        layers = (
            scaled.band(),
            others.encode(x=x, y=y, detail="series:N"),
            scaled.bars(base, opacity=0.5),
            *(line.mark_line(strokeDash=dashes[it], strokeWidth=2.5 if it == TICKET else 1.2) for it, line in lines.items()),
            *curves.below(own, PANEL * 3 // 4, x=x, color=colour),
            base.mark_point(filled=True, size=45, opacity=1).encode(shape=shape, tooltip=tooltips(*TOLD)),
        )
        title = name if tickets["rewind"].nunique() == 1 else f"{name}, rewound to {rewind}"
        title = alt.TitleParams(
            title, subtitle=criteria.words(family.chosen_by, family.allocation, family.updates), subtitleColor=GREY
        )
        panels.append(alt.layer(*layers).properties(width=PANEL, height=PANEL * 3 // 4, title=title))
    return alt.concat(*panels, columns=COLUMNS)
