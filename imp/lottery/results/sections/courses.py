"""The course of every training."""

from typing import Any

import altair as alt
import pandas

from lottery.experiment.graph import DENSE, TICKET
from lottery.results.block import Block
from lottery.results.drawing import (
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
from lottery.results.findings import SPLITS, Findings
from lottery.rundir import wording
from lottery.rundir.run import Run


def section(findings: Findings) -> Block | None:
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
    return Block(
        "courses",
        "Training curves",
        charts=[Chart("courses", drawing)],
        explained=f"Validation {wording.title(findings.run.metric)} of every network, means over replicates, by the step of "
        f"the schedule: a ticket begins at its rewind point. The nearest line shows its values. {ZOOMING}",
        frames={"courses": rows},
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
