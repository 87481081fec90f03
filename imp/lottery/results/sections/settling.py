"""When the mask is settled."""

from typing import Any

import altair as alt
import pandas

from lottery.pruning.settling import LIMIT, Distance
from lottery.results import settling
from lottery.results.block import Block
from lottery.results.drawing import FEW, GREY, HEIGHT, WIDTH, Chart, chart_of, tooltips
from lottery.results.findings import Findings

TITLES = {"replaced": "replaced, of the kept weights", "hamming": "different, of all weights"}
EXPLAINED = (
    "What if the dense network were pruned at each of its snapshots? settled from epoch: the first snapshot from which on "
    "fewer than 10 % of the kept weights are replaced from one snapshot to the next (of a mask that keeps more than half: of "
    "the pruned weights). Where replicates differ, the earliest and the latest. The dense training could stop there, if only "
    "the pace of the changes counted: to the final mask is how many weights are replaced after that in all. The further "
    "snapshots are apart, the more changes between them.\n\n"
    "Hamming: the weights that differ, of all prunable ones, as You et al. 2020 (arXiv 1909.11957) do with channels. Of sparse "
    "masks this is small, whatever they keep. by chance: so far are two random masks apart that keep as many of each layer."
)


def section(findings: Findings) -> Block | None:
    """How far the masks of successive snapshots are apart, a row of panels for each family."""
    rows = findings.settling
    if rows.empty:
        return None
    found, means = settling.groups(rows), _means(rows)
    are_few = means["density"].nunique() <= FEW
    density: Any = alt.Color(f"density:{'O' if are_few else 'Q'}", title="density")
    density = density.scale(scheme="viridis", type="ordinal" if are_few else "log").legend(
        labelExpr="format(datum.value, '.3~p')"
    )
    families = means.groupby("family", sort=False)
    shown = [alt.hconcat(*(_panel(one, norm, density) for norm in TITLES), title=name) for name, one in families]
    return Block(
        "settling",
        "When the mask is settled",
        charts=[Chart("settling", alt.vconcat(*shown))],
        caption="Each mask compared with that of the snapshot before: means over replicates, with one standard deviation.",
        table=[dict(zip(settling.HEADINGS, line, strict=True)) for line in settling.cells(found)],
        explained=EXPLAINED,
        frames={"settling": rows, "settled": found},
    )


def _means(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Those over replicates of each snapshot but the first, which no other is before; with a standard deviation around them."""
    groups = rows[rows["hamming"].notna()].groupby(["family", "mask", "step", "epoch"], sort=False)
    means = groups[["density", *Distance._fields]].mean().round({"density": 4})
    spread = groups[[*TITLES]].std().fillna(0)
    for name in TITLES:
        means[f"{name}_low"], means[f"{name}_high"] = (means[name] - spread[name]).clip(lower=0), means[name] + spread[name]
    return means.reset_index()


def _panel(rows: pandas.DataFrame, name: str, density: Any) -> Any:
    base = chart_of(rows).encode(x=alt.X("epoch:Q", title="epoch"), color=density, detail="mask:N")
    told = tooltips("mask", "density", "step", "epoch", shares=(name, f"{name}_by_chance"))
    lines = base.mark_line(point=True).encode(y=alt.Y(f"{name}:Q", title=TITLES[name]).axis(format=".3~p"), tooltip=told)
    bounds = base.mark_rule(strokeWidth=0.5).encode(y=f"{name}_low:Q", y2=f"{name}_high:Q")
    limit = alt.Chart(pandas.DataFrame({"limit": [LIMIT]})).mark_rule(color=GREY, strokeDash=[4, 4]).encode(y="limit:Q")
    return alt.layer(limit, bounds, lines).properties(width=WIDTH // 2 - 60, height=HEIGHT * 2 // 3)
