"""Where masks cut the weights."""

import altair as alt

from lottery.results.block import Block
from lottery.results.drawing import FEW, GREY, HEIGHT, WIDTH, Chart, chart_of, tooltips
from lottery.results.findings import Findings


def section(findings: Findings) -> Block | None:
    """The histogram of log10 |w| with the thresholds on it: those of one replicate."""
    rows, cuts = findings.magnitudes, findings.thresholds
    if rows.empty:
        return None
    replicate = rows["replicate"].iloc[0]
    shown = cuts[cuts["replicate"] == replicate]
    named = shown.sort_values("log10")["mask"].unique().tolist()
    bars = chart_of(rows[rows["replicate"] == replicate]).mark_bar(color=GREY, opacity=0.7)
    bars = bars.transform_calculate(**{end: f"format(pow(10, datum.log10_{end}), '.2~e')" for end in ("from", "to")}).encode(
        x=alt.X("log10_from:Q", title="|w|").bin("binned").axis(labelExpr="format(pow(10, datum.value), '.1~e')"),
        x2="log10_to:Q",
        y=alt.Y("weights:Q", title="weights"),
        tooltip=tooltips("from", "to", "weights"),
    )
    colour = alt.Color("mask:N", title="threshold").scale(scheme="plasma").sort(named)
    colour = colour.legend(alt.Legend() if len(named) <= FEW else None)
    lines = chart_of(shown).mark_rule(strokeWidth=2)
    if shown["family"].nunique() > 1:
        lines = lines.encode(strokeDash=alt.StrokeDash("family:N", title=None).sort(shown["family"].unique().tolist()))
    lines = lines.encode(x="log10:Q", color=colour, tooltip=tooltips("family", "mask", "threshold"))
    told = "; each mask drops what lies left of its threshold" if len(shown) else ""
    drawing = alt.layer(bars, *([lines] if len(shown) else [])).properties(width=WIDTH, height=HEIGHT * 2 // 3)
    return Block(
        "magnitudes",
        "Where the weights sit",
        charts=[Chart("magnitudes", drawing)],
        explained=f"The prunable weights of replicate {replicate}'s dense network by magnitude{told}.",
        frames={"magnitudes": rows, "thresholds": cuts},
    )
