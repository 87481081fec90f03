"""The masks of different families compared."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas

from lottery.results.block import Block
from lottery.results.drawing import COLUMNS, GREY, Chart, chart_of, tooltips
from lottery.results.findings import Findings


def section(findings: Findings) -> Block | None:
    """How much the masks of two families have in common, a panel for each mask."""
    rows = findings.overlaps
    if rows.empty:
        return None
    names = list(dict.fromkeys([*rows["first"], *rows["second"]]))
    rounds = rows["mask"].str.startswith("round").any()
    pool = " In rounds, chance draws from round 1, where both masks lie in it." if rounds else ""
    wholes = any(family.units.plural != "weights" for family in findings.run.recipe.families.values())
    pool += " Where both prune the same units, such as channels, these are counted in place of weights." if wholes else ""
    panels = [_overlaps_of(part, str(mask), names) for mask, part in rows.groupby("mask", sort=False)]
    return Block(
        "overlaps",
        "What the masks of different families share",
        charts=[Chart("overlaps", alt.concat(*panels, columns=COLUMNS))],
        explained="The share of the weights of one mask that are in the other too, in per cent (the overlap coefficient): "
        "means over replicates. By chance, two masks share what is said above each panel, given how many weights they keep "
        f"of each layer. White: no more than by chance. Blue: more, up to the same mask. Red: less.{pool}",
        frames={"overlaps": rows},
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
