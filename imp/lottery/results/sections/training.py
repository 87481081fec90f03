"""The course of the dense trainings."""

import altair as alt

from lottery.results.block import Block
from lottery.results.drawing import COLOURS, GREY, HEIGHT, WIDTH, Chart, chart_of, tooltips
from lottery.results.findings import SPLITS, Findings
from lottery.rundir import wording


def section(findings: Findings) -> Block | None:
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
    data = findings.run.recipe.data
    is_augmented = metric == wording.ACCURACY and any((data.crop, data.resized_crop, data.flip, data.cutout))
    augmented = "augmented " if is_augmented else ""
    explained = wording.worded(f"{{Metric}} on {augmented}training {{example}}s, validation and test {{example}}s.", metric)
    charts = [Chart("training", drawn)]
    return Block("training", "The dense trainings", charts=charts, explained=explained, frames={"training": rows})
