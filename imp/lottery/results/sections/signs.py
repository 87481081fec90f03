"""Whether tickets keep their signs."""

from typing import Any

import altair as alt
import pandas

from lottery.results import curves, signs
from lottery.results.block import Block
from lottery.results.drawing import COLOURS, COLUMNS, HEIGHT, PANEL, WIDTH, Chart, chart_of, tooltips
from lottery.results.findings import Findings

EXPLAINED = (
    "Of the weights that a ticket keeps, how many have another sign in one network than in another: in per cent, means over "
    "replicates, with {student_intervals}. start: the first step; dense end: the trained dense network; round before: its "
    "ticket's end. Weights that are 0 in one of both are left out. By chance half of the signs would differ. "
    "Zhou et al. 2019 (arXiv 1905.01067) find that tickets need little but the signs of their start; Gadhikar & Burkholz 2024 "
    "(arXiv 2402.19262) that rewinding the learning rate alone is better because it keeps trained signs."
)


def section(findings: Findings) -> Block | None:
    """The share of signs that differ against density, a panel for each family and rewind point."""
    found = signs.groups(findings.run, findings.networks)
    if found.empty:
        return None
    pairs = [name for name in signs.NAMES.values() if name in set(found["pair"])]
    tickets = [*found.groupby(["family", "rewind"], sort=False)]
    width, height = (WIDTH, HEIGHT) if len(tickets) == 1 else (PANEL, PANEL)
    panels = [
        _panel(rows, pairs).properties(width=width, height=height, title=f"{family}, rewound to {rewind}")
        for (family, rewind), rows in tickets
    ]
    return Block(
        "signs",
        "Whether signs stay",
        charts=[Chart("signs", alt.concat(*panels, columns=COLUMNS).resolve_scale(y="shared"))],
        table=signs.cells(found),
        explained=findings.run.worded(EXPLAINED),
        frames={"signs": found},
    )


def _panel(rows: pandas.DataFrame, pairs: list[str]) -> Any:
    x = curves.left(rows.assign(network="ticket")).title("density")
    color = alt.Color("pair:N", title=None).scale(domain=pairs, range=list(COLOURS))
    told = tooltips("pair", "mask", "density", "replicates", shares=("flipped", "low", "high"))
    y = alt.Y("flipped:Q", title="signs that differ").axis(format=".3~p")
    lines = chart_of(rows).mark_line(point=True).encode(x=x, color=color, y=y, tooltip=told)
    spread = rows[rows["low"].notna()]
    if spread.empty:
        return lines
    return alt.layer(chart_of(spread).mark_rule(strokeWidth=0.5).encode(x=x, color=color, y="low:Q", y2="high:Q"), lines)
