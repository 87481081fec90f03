"""The deciding metric against arithmetic."""

import altair as alt

from lottery.experiment.graph import TICKET
from lottery.results import curves
from lottery.results.block import Block
from lottery.results.drawing import HEIGHT, WIDTH, ZOOMING, Chart, zoom
from lottery.results.findings import Findings
from lottery.rundir import wording


def section(findings: Findings) -> Block | None:
    """The deciding metric against what is left of the multiply-accumulates, where that is not the density."""
    rows, metric = findings.figures, findings.run.metric
    tickets = rows[(rows["network"] == TICKET) & rows["macs_share"].notna()]
    if (tickets["macs_share"] - tickets["density"]).abs().lt(0.001).all():
        return None
    scaled = curves.scaled(curves.told_apart(rows), "validation", "validation", "validation")
    across, line, marks = curves.against(scaled.rows, scaled.y(f"validation {wording.title(metric)}"), "macs_share")
    off = curves.below(scaled.rows, HEIGHT, "macs_share", **curves.placed(scaled.rows, "macs_share"))
    drawing = alt.layer(across, line, marks.add_params(zoom()), *off).properties(width=WIDTH, height=HEIGHT)
    return Block(
        "macs",
        wording.worded("{Metric} against arithmetic", metric),
        charts=[Chart("macs", drawing, subtitle=scaled.subtitle)],
        explained=f"Final validation {wording.title(metric)} against the share of multiply-accumulates that the kept weights "
        f"need: how families compare at equal arithmetic rather than at equal density.{scaled.told} {ZOOMING}",
        frames={"macs": rows},
    )
