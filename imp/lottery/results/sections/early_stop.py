"""The step of lowest validation loss."""

import altair as alt

from lottery.experiment.graph import TICKET
from lottery.results import curves
from lottery.results.block import Block
from lottery.results.drawing import HEIGHT, WIDTH, Chart
from lottery.results.findings import Findings
from lottery.rundir import wording


def section(findings: Findings) -> Block | None:
    """The step of lowest validation loss, and the test metric there (Frankle & Carbin 2019, figure 4)."""
    rows, metric = findings.figures, wording.title(findings.run.metric)
    if TICKET not in set(rows["network"]):
        return None
    scaled = curves.scaled(curves.told_apart(rows), "early_test", "early_test", "early_test")
    step = curves.against(scaled.rows, alt.Y("early_step:Q", title="step of lowest validation loss").scale(zero=False))
    reached = curves.against(scaled.rows, scaled.y(f"test {metric} at that step"))
    off = curves.below(scaled.rows, HEIGHT, **curves.placed(scaled.rows))
    panels = [alt.layer(*layers).properties(width=WIDTH // 2 - 40, height=HEIGHT) for layers in (step, [*reached, *off])]
    of = " of tickets (those of controls are in the CSV)" if len(scaled.rows) < len(rows) else ""
    explained = f"The step of lowest validation loss{of}, and the test {metric} at that step.{scaled.told}"
    charts = [Chart("early_stop", alt.hconcat(*panels), subtitle=scaled.subtitle)]
    return Block("early_stop", "Early stopping", charts=charts, explained=explained, frames={"early_stop": rows})
