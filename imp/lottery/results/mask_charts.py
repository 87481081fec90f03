"""Charts of masks: what they keep of each layer, what those of two families share, and where they cut the weights."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas

from lottery.results.drawing import COLUMNS, FEW, GREY, HEIGHT, WIDTH, Chart, chart_of, masks_across, tooltips
from lottery.results.tidy import Findings


def layers(findings: Findings) -> Chart | None:
    """What each mask keeps of each layer: those of one replicate."""
    rows = findings.layers
    if rows.empty:
        return None
    shown = rows[rows["replicate"] == rows["replicate"].iloc[0]]
    parts = [(source if shown["masks"].nunique() > 1 else "", part) for source, part in shown.groupby("masks", sort=False)]
    width = WIDTH if len(parts) == 1 else WIDTH // COLUMNS
    return Chart(
        "layers",
        "What each mask keeps of each layer",
        f"Of replicate {shown['replicate'].iloc[0]}, layers in the order of the network (or of their names, where it is "
        "unknown). Red: collapsed, hardly anything or nothing is left of the layer.",
        {"layers": rows},
        alt.concat(*(_layers_of(*part, width, at % COLUMNS == 0) for at, part in enumerate(parts)), columns=COLUMNS),
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


def overlaps(findings: Findings) -> Chart | None:
    """How much the masks of two families have in common, a panel for each mask."""
    rows = findings.overlaps
    if rows.empty:
        return None
    names = list(dict.fromkeys([*rows["first"], *rows["second"]]))
    rounds = rows["mask"].str.startswith("round").any()
    pool = " In rounds, chance draws from round 1, where both masks lie in it." if rounds else ""
    panels = [_overlaps_of(part, str(mask), names) for mask, part in rows.groupby("mask", sort=False)]
    return Chart(
        "overlaps",
        "What the masks of different families share",
        "The share of the weights of one mask that are in the other too, in per cent (the overlap coefficient): means over "
        "replicates. By chance, two masks share what is said above each panel, given how many weights they keep of each layer. "
        f"White: no more than by chance. Blue: more, up to the same mask. Red: less.{pool}",
        {"overlaps": rows},
        alt.concat(*panels, columns=COLUMNS),
    )


def _overlaps_of(rows: pandas.DataFrame, mask: str, names: Sequence[str]) -> Any:
    chance = [f"{rows['chance'].agg(which):.1%}" for which in ("min", "max")]
    x = alt.X("first:N", title=None).sort(names).axis(labelAngle=-60)
    base = chart_of(rows).encode(x=x, y=alt.Y("second:N", title=None).sort(names), tooltip=tooltips(*rows.columns))
    beyond = alt.Color("beyond_chance:Q", title="beyond chance").scale(scheme="redblue", domain=[-1, 1], clamp=True)
    cells = base.mark_rect().encode(color=beyond.legend(format=".0%"))
    strong = alt.when("abs(datum.beyond_chance) > 0.6").then(alt.value("white")).otherwise(alt.value("#222"))
    numbers = base.mark_text(fontSize=10).encode(text=alt.Text("overlap:Q", format=".1%"), color=strong)
    title = alt.TitleParams(mask, subtitle=f"chance: {' to '.join(dict.fromkeys(chance))}", subtitleColor=GREY)
    return alt.layer(cells, numbers).properties(width=alt.Step(38), height=alt.Step(28), title=title)


def magnitudes(findings: Findings) -> Chart | None:
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
    return Chart(
        "magnitudes",
        "Where the weights sit",
        f"The prunable weights of replicate {replicate}'s dense network by magnitude{told}.",
        {"magnitudes": rows, "thresholds": cuts},
        alt.layer(bars, *([lines] if len(shown) else [])).properties(width=WIDTH, height=HEIGHT * 2 // 3),
    )
