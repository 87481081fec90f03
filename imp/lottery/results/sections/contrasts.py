"""Each ticket against all that it is compared with, figure by figure."""

import pandas

from lottery.results import cells, frame
from lottery.results.block import Block, Cells
from lottery.results.findings import Findings
from lottery.results.tables import interval

EXPLAINED = (
    "Differences in points (in the last column, in steps): means over the replicates that have both networks, with "
    "{student_intervals}. A star marks an interval that does not reach zero. The columns: final {metric} on validation "
    "{example}s and on test {example}s, test {metric} at the step of lowest validation loss, and that step. The intervals are "
    "not corrected for their number."
)
HEADINGS = {
    "validation": "validation",
    "test": "test",
    "test_there": "test at lowest loss",
    "least_validation_loss_step": "step of lowest loss",
}


def section(findings: Findings) -> Block | None:
    contrasts, metric = findings.contrasts, findings.run.metric
    if contrasts.empty:
        return None
    pairs = contrasts.groupby(["family", "mask", "rewind", "against"], sort=False)
    return Block(
        "contrasts",
        "Differences, paired by replicate",
        table=[_line(figures) for _, figures in pairs],
        explained=findings.run.worded(EXPLAINED),
        frames={"contrasts": frame.named(contrasts, metric)},
    )


def _line(figures: pandas.DataFrame) -> Cells:
    """The differences of one pair, a column for each figure."""
    rows = frame.each(figures)
    line = {
        "ticket": f"{rows[0].family} {rows[0].mask}",
        "density": cells.density(rows[0]),
        "rewound to": rows[0].rewind,
        "compared with": f"{rows[0].against}{' !' if rows[0].collapse_against else ''}",
        "runs": str(rows[0].count),
    }
    for row in (row for row in rows if row.figure in HEADINGS):
        form = ("{:+.0f}", 1) if row.figure == "least_validation_loss_step" else ("{:+.2f}", 100)
        line[HEADINGS[row.figure]] = interval(row.mean, row.low, row.high, *form) + (" *" if row.clear else "")
    return line
