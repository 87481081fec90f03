"""The masks by layer."""

import altair as alt
import pandas

from lottery.results.block import Block
from lottery.results.drawing import COLUMNS, WIDTH, Chart, chart_of, masks_across, tooltips
from lottery.results.findings import Findings


def section(findings: Findings) -> Block | None:
    """What each mask keeps of each layer: those of one replicate."""
    rows = findings.layers
    if rows.empty:
        return None
    shown = rows[rows["replicate"] == rows["replicate"].iloc[0]]
    parts = [(source if shown["masks"].nunique() > 1 else "", part) for source, part in shown.groupby("masks", sort=False)]
    width = WIDTH if len(parts) == 1 else WIDTH // COLUMNS
    panels = [_layers_of(*part, width, at % COLUMNS == 0) for at, part in enumerate(parts)]
    return Block(
        "layers",
        "What each mask keeps of each layer",
        charts=[Chart("layers", alt.concat(*panels, columns=COLUMNS))],
        explained=f"Of replicate {shown['replicate'].iloc[0]}, layers in the order of the network (or of their names, where "
        "it is unknown). Red: collapsed, hardly anything or nothing is left of the layer.",
        frames={"layers": rows},
    )


def _layers_of(source: str, rows: pandas.DataFrame, width: int, named: bool) -> alt.Chart:
    share = alt.Color("share:Q", title="kept").scale(type="symlog", constant=0.01, domain=[0, 1], scheme="viridis")
    share = share.legend(format=".0%", values=[0, 0.01, 0.1, 1])
    x, step = masks_across(rows, width)
    cells = chart_of(rows, title=source).mark_rect().properties(width=step, height=alt.Step(14))
    return cells.encode(
        x=x,
        y=alt.Y("layer:N", title=None).sort(rows["layer"].unique().tolist()).axis(labels=named, ticks=named),
        color=alt.when(alt.datum.collapsed).then(alt.value("#e5484d")).otherwise(share),
        tooltip=tooltips("layer", "mask", "share", "kept", "weights", "collapsed"),
    )
