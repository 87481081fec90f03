"""What the charts of figures against what masks keep have in common: scales, lines, marks, and what lies below the scale."""

from typing import Any, NamedTuple

import altair as alt
import pandas

from lottery.experiment.graph import DENSE, TICKET
from lottery.results.drawing import COLOURS, GREY, LARGE, NETWORK, SMALL, chart_of, tooltips

SHOWN = 0.1  # how far below the highest of its chart a figure may lie to be shown where it is
TOLD = (
    *NETWORK,
    "macs_share",
    "validation",
    "test",
    "difference",
    "against",
    "verdict",
    "early_step",
    "early_test",
    "runs",
)
_LEFT = {
    "density": "density: share of prunable weights kept",
    "macs_share": "share of the dense network's multiply-accumulates",
}
_LINE = 15  # the height of a mark below the scale, in pixels
_BESIDE = 20  # the room on both sides of a chart, in pixels


class Scaled(NamedTuple):
    """Rows with a figure of theirs: `shown` where it is on the `scale`, `below` where it is less; and a sentence about the
    latter, empty where there are none."""

    rows: pandas.DataFrame
    scale: alt.Scale
    told: str

    def y(self, title: str | None) -> alt.Y:
        return alt.Y("shown:Q", title=title, scale=self.scale).axis(format=".1%")

    def bars(self, networks: alt.Chart, **mark: Any) -> alt.Chart:
        """One standard deviation of those on the scale that have replicates, as far as it reaches."""
        has_spread = "datum.shown != null && datum.sd_high > datum.sd_low"
        return self.spread(networks.transform_filter(has_spread).mark_rule(clip=True, **mark))

    def band(self) -> alt.Chart:
        """The standard deviation of the dense network."""
        dense = self.rows[(self.rows["network"] == DENSE) & self.rows["shown"].notna()]
        return self.spread(chart_of(dense).mark_rect(color=GREY, opacity=0.2, clip=True))

    def margin(self, delta: float) -> Any:
        """Where a ticket is `delta` worse than the dense network; nothing where that is off the scale."""
        dense = self.rows[(self.rows["network"] == DENSE) & self.rows["shown"].notna()]
        dense = dense.assign(limit=dense["shown"] - delta)
        base = chart_of(dense[dense["limit"] >= self.scale.domain[0]]).encode(y=alt.Y("limit:Q", scale=self.scale))
        name = base.mark_text(color=GREY, align="left", dx=6, dy=6, fontSize=SMALL, clip=False)
        name = name.encode(x=alt.value("width"), text=alt.value("margin"))
        return alt.layer(base.mark_rule(color=GREY, strokeDash=[3, 4]), name)

    @property
    def subtitle(self) -> str:
        """What a picture says below its title: over how many runs means are, what bars are, and what lies below the scale."""
        runs = sorted({1, *self.rows["runs"]})
        means = f"means over {'up to ' * (len(set(self.rows['runs'])) > 1)}{runs[-1]} runs" if len(runs) > 1 else "one run"
        bars = ", bars: one standard deviation" if (self.rows["sd_high"] > self.rows["sd_low"]).any() else ""
        return means + bars + (", ▼ below the scale" if self.rows["below"].notna().any() else "")

    def spread(self, marks: alt.Chart) -> alt.Chart:
        return marks.encode(y=alt.Y("sd_low:Q", scale=self.scale), y2="sd_high:Q")


def colour_key(rows: pandas.DataFrame) -> str:
    """What a line has its colour by: its family, where there are several, or else its rewind point, or else its network."""
    pruned = rows[rows["network"] != DENSE]
    if pruned["family"].nunique() > 1:
        return "family"
    return "series" if pruned.loc[pruned["network"] == TICKET, "series"].nunique() > 1 else "network"


def told_apart(rows: pandas.DataFrame) -> pandas.DataFrame:
    """What can be told apart in one panel: of several families the tickets alone."""
    return rows[rows["network"].isin([DENSE, TICKET])] if colour_key(rows) == "family" else rows


def scaled(rows: pandas.DataFrame, figure: str, low: str, high: str) -> Scaled:
    """The rows by `figure`, on a scale from at most `SHOWN` below the highest `low` to the highest `high` of what is on it:
    neither a ticket that learned nothing nor a dense network that failed in one replicate stretches it."""
    least = float(max(rows[low].min(), rows[low].max() - SHOWN))
    is_below = rows[figure] < least
    found = rows.assign(shown=rows[figure].mask(is_below), below=rows[figure].where(is_below))
    is_dense = rows["network"] == DENSE
    count = (is_below & ~is_dense & (rows["density"] > 0)).sum()
    told = f" ▼ marks a network below the scale ({count}); the pointer and the chart's CSV tell its value." if count else ""
    told += "".join(f" The dense network ({value:.1%}) is below the scale." for value in found.loc[is_dense, "below"].dropna())
    return Scaled(found, alt.Scale(domain=[least, float(rows.loc[~is_below, high].max())], nice=True), told)


def below(rows: pandas.DataFrame, height: int, over: str = "density", **places: Any) -> list[alt.Chart]:
    """What lies below the scale of a panel of so many pixels, at its lower end: a mark for each network, whose values the
    pointer tells. Those at one place stand one above the other."""
    rows = _under_masks(rows, over)
    below = rows[rows["below"].notna()]
    if below.empty:
        return []
    heights = height - _LINE * (below.groupby(below[over].round(3)).cumcount() + 0.5)
    base = chart_of(below.assign(level=heights)).encode(**places, y=alt.Y("level:Q", scale=None, axis=None))
    marks = base.mark_point(filled=True, size=60, opacity=1, shape="triangle-down").encode(tooltip=tooltips(*TOLD))
    said = alt.Chart(alt.InlineData([{"text": "▼ below the scale"}])).mark_text(color=GREY, align="left", dx=4, fontSize=SMALL)
    return [marks, said.encode(x=alt.value(0), y=alt.value(heights.min() - _LINE), text="text:N")]


def against(rows: pandas.DataFrame, y: alt.Y, over: str = "density") -> tuple[Any, Any, Any]:
    """The figure `y` of the dense network across, with its name; a line for each series of tickets, dashed ones for controls; a
    mark for each network."""
    is_dense = rows["network"] == DENSE
    networks = rows.loc[~is_dense, "network"].unique().tolist()
    shape: Any = alt.Shape("network:N", title=None).scale(domain=networks) if len(networks) > 1 else alt.value("circle")
    dense = chart_of(rows[is_dense]).encode(y=y, tooltip=tooltips(*TOLD))
    name = dense.mark_text(color=GREY, align="left", dx=6, dy=-5, fontSize=LARGE, clip=False).encode(
        x=alt.value("width"), text="network:N"
    )
    across = alt.layer(dense.mark_rule(color=GREY, strokeWidth=2), name.transform_filter(f"isValid(datum.{y.shorthand[:-2]})"))
    lines = pruned(rows, over).encode(y=y, detail=["series:N", "network:N"])
    tickets = lines.transform_filter(alt.datum.network == TICKET).mark_line(strokeWidth=2.5)
    points = rows.loc[rows["network"] == TICKET].sort_values("rewind_step")["rewind"].unique().tolist()
    if colour_key(rows) == "family" and len(points) > 1:
        tickets = tickets.encode(strokeDash=alt.StrokeDash("rewind:N", title="rewound to").scale(domain=points))
    marks = pruned(rows, over).mark_point(filled=True, size=80, opacity=1).encode(y=y, shape=shape, tooltip=tooltips(*TOLD))
    beside = lines.transform_filter(alt.datum.network != TICKET).mark_line(strokeWidth=1.5, strokeDash=[4, 3])
    return across, alt.layer(beside, tickets), marks


def pruned(rows: pandas.DataFrame, over: str = "density") -> alt.Chart:
    """Tickets and controls by what is left of them, a colour for each family, or else for each series."""
    return chart_of(_under_masks(rows, over)).encode(**placed(rows, over))


def placed(rows: pandas.DataFrame, over: str = "density") -> dict[str, Any]:
    """Where tickets and controls are across, and their colours."""
    shown = _under_masks(rows, over)
    return {"x": left(shown, over), "color": colour(shown)}


def _under_masks(rows: pandas.DataFrame, over: str) -> pandas.DataFrame:
    return rows[(rows["network"] != DENSE) & (rows[over] > 0)]  # where a logarithm ends


def colour(rows: pandas.DataFrame) -> alt.Color:
    key = colour_key(rows)
    named = rows.loc[rows["network"] != DENSE, key].unique().tolist()
    return alt.Color(f"{key}:N", title=None).scale(domain=named, range=list(COLOURS))


def left(rows: pandas.DataFrame, over: str = "density") -> alt.X:
    """From dense to sparse, as far as `rows` reach."""
    there = sorted(rows.loc[rows["network"] != DENSE, over].unique())
    axis = alt.X(f"{over}:Q", title=_LEFT[over]).axis(
        values=there, format=".3~p", labelOverlap="greedy", labelSeparation=4, grid=False
    )
    reach = [there[0], there[-1]] if there else alt.Undefined
    return axis.scale(type="log", reverse=True, nice=False, padding=_BESIDE, domain=reach)
