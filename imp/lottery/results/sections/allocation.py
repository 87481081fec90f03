"""Each control against its ticket, and what that says of the criterion."""

import itertools
from typing import Any

import pandas

from lottery.results import cells, criteria
from lottery.results.block import Block, Cells
from lottery.results.findings import Findings
from lottery.results.tables import interval, points

EXPLAINED = (
    "How far each control is above its ticket in validation {metric}, in points: the mean over replicates, and in brackets its "
    "lower and upper {t_bounds}. {control_signs}, by the same rules as a ticket and the dense network. `shuffle` keeps as many "
    "weights of each layer as the ticket, chosen at random. A criterion is only an allocation if shuffle matches at every "
    "density that has it (where it is far better, the criterion does harm): what counts is how many weights each layer keeps, "
    "not which. It is more than an allocation if shuffle does not match at one density or more. If `reinit` matches, the "
    "initial weights do not matter; in one shot, one such network serves all rewind points. If `invert` matches, the order of "
    "the scores does not matter. These are the checks of Frankle et al. 2021 (arXiv 2009.08576)."
)


def section(findings: Findings) -> Block | None:
    table, explained = lines(findings.checks), findings.run.worded(EXPLAINED)
    if not table:
        return None
    frames = {"criteria": findings.checks}
    return Block("criteria", "More than an allocation?", table=table, explained=explained, frames=frames)


def lines(checks: pandas.DataFrame) -> list[Cells]:
    """A line for each ticket of a series with the verdict of `shuffle`, a column for each control; the verdict of the whole
    series on its first line."""
    controls, table = checks.loc[checks["mean"].notna(), "control"].unique(), []
    for _, rows in criteria.series(checks):
        for mask, alike in itertools.groupby(rows, lambda row: row.mask):
            by_control = {row.control: row for row in alike}
            first, shuffle = next(iter(by_control.values())), by_control.get(criteria.SHUFFLE)
            line = {
                "family": f"{first.family} ({criteria.words(first.criterion, first.allocation)})",
                "mask": mask,
                "density": points(first.density, "{:.2f}%"),
                "rewound to": first.rewind,
                "runs": cells.runs(first),
            }
            line |= {name: _check(by_control[name]) if name in by_control else "" for name in controls}
            line["verdict"] = shuffle.verdict if shuffle else ""
            table.append(line | {"criterion": first.series_verdict if first is rows[0] else ""})
    return table


def _check(row: Any) -> str:
    return "" if row.mean is None else f"{interval(row.mean, row.low, row.high)} {row.verdict.sign}"
