"""Charts of trainings: their courses, and how stable they are."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas

from lottery.experiment.graph import DENSE, TICKET
from lottery.pruning.interpolation import STABLE
from lottery.results.drawing import (
    COLOURS,
    COLUMNS,
    GREY,
    HEIGHT,
    NETWORK,
    PANEL,
    WIDTH,
    ZOOMING,
    Chart,
    chart_of,
    line_dashes,
    tooltips,
    zoom,
)
from lottery.results.tidy import SPLITS, Findings
from lottery.rundir import wording
from lottery.rundir.run import Run


def courses(findings: Findings) -> Chart | None:
    """The deciding metric on validation over training, a line for each network, a panel for each family."""
    rows = findings.courses
    if rows.empty or TICKET not in set(rows["network"]):
        return None
    dense = rows["network"] == DENSE
    parts = {name: rows[dense | (rows["family"] == name)] for name in rows.loc[~dense, "family"].unique()}
    panels = [_courses(findings.run, part, rows, number) for number, part in enumerate(parts.values())]
    if len(panels) == 1:
        drawing: Any = panels[0].properties(width=WIDTH, height=HEIGHT)
    else:
        titled = (panel.properties(width=PANEL, height=PANEL, title=name) for name, panel in zip(parts, panels, strict=True))
        drawing = alt.concat(*titled, columns=COLUMNS)
    return Chart(
        "courses",
        "Training curves",
        f"Validation {wording.title(findings.run.metric)} of every network, means over replicates, by the step of the "
        f"schedule: a ticket begins at its rewind point. The nearest line shows its values. {ZOOMING}",
        {"courses": rows},
        drawing,
    )


def _courses(run: Run, rows: pandas.DataFrame, all_rows: pandas.DataFrame, number: int) -> Any:
    """The lines of `rows`, on scales that fit `all_rows`: a panel with its own `number`."""
    names = [f"{split}_{run.metric}" for split in SPLITS]
    reached = all_rows[f"validation_{run.metric}"]
    y = alt.Y(f"{reached.name}:Q", title=f"validation {wording.title(run.metric)}").axis(format=".0%")
    y = y.scale(zero=False, domain=[reached.min(), reached.max()], nice=True)
    near = alt.selection_point(f"near_{number}", fields=["label"], on="pointerover", nearest=True, empty=False)
    lines = chart_of(rows.assign(label=rows[["network", "family", "mask", "rewind"]].agg(" ".join, axis=1)))
    lines = lines.encode(x=alt.X("step:Q", title="step"), y=y, detail="label:N")
    networks, dash = all_rows["network"].unique().tolist(), alt.StrokeDash("network:N", title=None)
    sparsest = all_rows.loc[all_rows["density"] > 0, "density"].min()
    density = alt.Color("density:Q", title="density").legend(format=".3~p")
    density = density.scale(type="log", scheme="viridis", domain=[sparsest, 1.0], clamp=True)
    drawn = lines.mark_line().encode(
        color=alt.when(alt.datum.network == DENSE).then(alt.value(GREY)).otherwise(density),
        strokeDash=dash.scale(domain=networks, range=[line_dashes(run)[network] for network in networks]),
        size=alt.when(near).then(alt.value(4)).otherwise(alt.value(1.5)),
    )
    points = lines.mark_point(opacity=0).encode(tooltip=tooltips(*NETWORK, "epoch", "step", shares=names))
    return alt.layer(drawn, points.add_params(near, zoom(f"zoom_{number}")))


def training(findings: Findings) -> Chart | None:
    """The deciding metric of the dense trainings by epoch."""
    rows, metric = findings.training, findings.run.metric
    if rows.empty:
        return None
    named = alt.Undefined if metric == wording.ACCURACY else wording.title(metric)  # a column's own name is its title
    lines = chart_of(rows).mark_line(point=alt.OverlayMarkDef(size=20)).properties(width=WIDTH, height=HEIGHT)
    drawn = lines.encode(
        x=alt.X("epoch:Q"),
        y=alt.Y(f"{metric}:Q", title=named).scale(zero=False).axis(format=".0%"),
        color=alt.Color("split:N", title=None).scale(domain=list(SPLITS), range=[GREY, *COLOURS[:2]]),
        detail="replicate:N",
        tooltip=tooltips("replicate", "split", "epoch", shares=[metric]),
    )
    explained = wording.worded("{Metric} on training {example}s (varied as they are), validation and test {example}s.", metric)
    return Chart("training", "The dense trainings", explained, {"training": rows}, drawn)


def stability(findings: Findings) -> Chart | None:
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
    return Chart(
        "stability",
        "Stability",
        findings.run.worded(
            "Above: instability on test {example}s, means over replicates with {bounds}; below the dashed line (2 points) a "
            "ticket counts as stable. Below: the error on test {example}s along the line between two trainings, means over "
            "pairs. Solid lines have BatchNorm's statistics interpolated, dashed ones recomputed."
        ),
        {"stability": rows, "lines": lines},
        alt.vconcat(above, alt.concat(*panels, columns=COLUMNS)).resolve_scale(color="independent"),
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
