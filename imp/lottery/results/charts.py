"""The report's charts: Vega-Lite, by Altair. The same definition is a chart with hover values in the page, a PNG and an SVG.

A chart is a function from what was found to it, None where there is nothing to draw, and an entry in `CHARTS`.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas

from lottery.experiment.graph import DENSE, TICKET
from lottery.results import criteria, grouping
from lottery.results.drawing import (
    COLOURS,
    COLUMNS,
    FEW,
    GREY,
    HEIGHT,
    NETWORK,
    PANEL,
    WIDTH,
    ZOOMING,
    Chart,
    chart_of,
    line_dashes,
    masks_across,
    tooltips,
    zoom,
)
from lottery.results.mask_charts import layers, magnitudes, overlaps
from lottery.results.tidy import Findings
from lottery.results.training_charts import courses, stability, training
from lottery.rundir import wording
from lottery.rundir.run import Run

SHOWN = 0.1  # how far below the highest of its chart a figure may lie to be shown where it is
_TOLD = (
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
_LINE = 13  # the height of a value, in pixels


class Scaled(NamedTuple):
    """Rows with a figure of theirs: `shown` where it is on the `scale`, `below` where it is less; and a sentence about the
    latter, empty where there are none."""

    rows: pandas.DataFrame
    scale: alt.Scale
    told: str

    def y(self, title: str | None) -> alt.Y:
        return alt.Y("shown:Q", title=title, scale=self.scale).axis(format=".1%")

    def bars(self, networks: alt.Chart, **mark: Any) -> alt.Chart:
        """One standard deviation of those on the scale, as far as it reaches."""
        return self.spread(networks.transform_filter("datum.shown != null").mark_rule(clip=True, **mark))

    def band(self) -> alt.Chart:
        """The standard deviation of the dense network."""
        dense = self.rows[self.rows["network"] == DENSE]
        return self.spread(chart_of(dense).mark_rect(color=GREY, opacity=0.2, clip=True))

    def spread(self, marks: alt.Chart) -> alt.Chart:
        return marks.encode(y=alt.Y("sd_low:Q", scale=self.scale), y2="sd_high:Q")


def by_density(findings: Findings) -> Chart | None:
    """The deciding metric, whose name the chart has, against density: of several families the tickets together, then each
    series with its controls."""
    rows, metric = findings.figures, findings.run.metric
    if (rows["network"] == DENSE).all():
        return None
    scaled = _scaled(rows, "validation", "sd_low", "sd_high")
    together = _told_apart(scaled.rows)
    chosen = alt.selection_point(fields=[_key(rows)], bind="legend")
    opacity = alt.when(chosen).then(alt.value(1)).otherwise(alt.value(0.12))
    line, tickets, marks = _against(together, scaled.y(f"validation {wording.title(metric)}"))
    marks = marks.encode(opacity=opacity).add_params(chosen, zoom())
    off = (layer.encode(opacity=opacity) for layer in _below(together, WIDTH, HEIGHT, **_placed(together)))
    bars = scaled.bars(_pruned(together)).encode(opacity=opacity)
    drawing: Any = alt.layer(scaled.band(), bars, line, tickets.encode(opacity=opacity), marks, *off)
    drawing, below = drawing.properties(width=WIDTH, height=HEIGHT), ""
    if len(together) < len(rows):
        drawing = alt.vconcat(drawing, _by_series(findings.run, scaled))
        drawing = drawing.resolve_scale(strokeDash="independent", shape="independent")
        below = " Below, the same tickets family by family with their controls, the tickets of the others in grey."
    return Chart(
        metric,
        wording.worded("{Metric} against density", metric),
        f"Final validation {wording.title(metric)}, means over runs, bars of one standard deviation; the dense network as a "
        f"band. Sparser to the right.{scaled.told}{below} Click a line's name to see it alone; hold the pointer over a mark "
        f"for its values. {ZOOMING}",
        {metric: rows},
        drawing,
        is_answer=True,
    )


def _key(rows: pandas.DataFrame) -> str:
    """What a line has its colour by: its family, where there are several."""
    return "family" if rows.loc[rows["network"] != DENSE, "family"].nunique() > 1 else "series"


def _told_apart(rows: pandas.DataFrame) -> pandas.DataFrame:
    """What can be told apart in one panel: of several families the tickets alone."""
    return rows[rows["network"].isin([DENSE, TICKET])] if _key(rows) == "family" else rows


def _by_series(run: Run, scaled: Scaled) -> alt.ConcatChart:
    """A panel for each series of tickets, with its controls. A fresh control of one shot serves all rewind points."""
    rows = scaled.rows[(scaled.rows["network"] == DENSE) | (scaled.rows["density"] > 0)]
    tickets, networks = rows[rows["network"] == TICKET], rows.loc[rows["network"] != DENSE, "network"].unique().tolist()
    y, dashes = scaled.y(None).axis(format=".0%", tickCount=5), line_dashes(run)
    x, colour = _left(rows).title(None), _colour(rows)
    shape = alt.Shape("network:N", title=None).scale(domain=networks)
    panels = []
    for (name, rewind), _ in tickets.groupby(["family", "rewind"], sort=False):
        family = run.recipe.families[name]
        own = rows[(rows["family"] == name) & ((rows["rewind"] == rewind) | rows["network"].isin(family.shared_controls))]
        others = chart_of(tickets[tickets["family"] != name]).mark_line(color=GREY, opacity=0.4, strokeWidth=1)
        base = chart_of(own).encode(x=x, y=y, color=colour)
        lines = {network: base.transform_filter(alt.datum.network == network) for network in networks}
        layers = (
            scaled.band(),
            others.encode(x=x, y=y, detail="series:N"),
            scaled.bars(base, opacity=0.5),
            *(line.mark_line(strokeDash=dashes[it], strokeWidth=2.5 if it == TICKET else 1.2) for it, line in lines.items()),
            *_below(own, PANEL, PANEL * 3 // 4, x=x, color=colour),
            base.mark_point(filled=True, size=45, opacity=1).encode(shape=shape, tooltip=tooltips(*_TOLD)),
        )
        title = name if tickets["rewind"].nunique() == 1 else f"{name}, rewound to {rewind}"
        title = alt.TitleParams(
            title, subtitle=criteria.words(family.chosen_by, family.allocation, family.updates), subtitleColor=GREY
        )
        panels.append(alt.layer(*layers).properties(width=PANEL, height=PANEL * 3 // 4, title=title))
    return alt.concat(*panels, columns=COLUMNS)


def early_stop(findings: Findings) -> Chart | None:
    """Where the validation loss was least, and the test metric there (Frankle & Carbin 2019, figure 4)."""
    rows, metric = findings.figures, wording.title(findings.run.metric)
    if TICKET not in set(rows["network"]):
        return None
    scaled = _scaled(_told_apart(rows), "early_test", "early_test", "early_test")
    step = _against(scaled.rows, alt.Y("early_step:Q", title="step of least validation loss").scale(zero=False))
    reached = _against(scaled.rows, scaled.y(f"test {metric} there"))
    width = WIDTH // 2 - 40
    off = _below(scaled.rows, width, HEIGHT, **_placed(scaled.rows))
    panels = [alt.layer(*layers).properties(width=width, height=HEIGHT) for layers in (step, [*reached, *off])]
    of = " of tickets (those of controls are in the CSV)" if len(scaled.rows) < len(rows) else ""
    explained = f"The step of least validation loss{of}, and the test {metric} there.{scaled.told}"
    return Chart("early_stop", "Early stopping", explained, {"early_stop": rows}, alt.hconcat(*panels))


def macs(findings: Findings) -> Chart | None:
    """The deciding metric against what is left of the multiply-accumulates, where that is not the density."""
    rows, metric = findings.figures, findings.run.metric
    tickets = rows[(rows["network"] == TICKET) & rows["macs_share"].notna()]
    if (tickets["macs_share"] - tickets["density"]).abs().lt(0.001).all():
        return None
    scaled = _scaled(_told_apart(rows), "validation", "validation", "validation")
    across, line, marks = _against(scaled.rows, scaled.y(f"validation {wording.title(metric)}"), "macs_share")
    off = _below(scaled.rows, WIDTH, HEIGHT, "macs_share", **_placed(scaled.rows, "macs_share"))
    return Chart(
        "macs",
        wording.worded("{Metric} against arithmetic", metric),
        f"Final validation {wording.title(metric)} against the share of multiply-accumulates that the kept weights need: how "
        f"families compare at equal arithmetic rather than at equal density.{scaled.told} {ZOOMING}",
        {"macs": rows},
        alt.layer(across, line, marks.add_params(zoom()), *off).properties(width=WIDTH, height=HEIGHT),
        is_answer=True,
    )


def equal_cost(findings: Findings) -> Chart | None:
    """The deciding metric of several families against what a ticket costs in all, a panel for each density."""
    metric = findings.run.metric
    scaled = _scaled(_told_apart(findings.figures), "validation", "sd_low", "sd_high")
    densities = grouping.equally_dense(scaled.rows[scaled.rows["network"].eq(TICKET) & scaled.rows["cost"].notna()])
    if not densities:
        return None
    rows = pandas.concat(densities)[findings.figures.columns]
    x = alt.X("cost:Q", title="cost in all, dense epochs").scale(zero=True)
    places: dict[str, Any] = {"x": x, "color": _colour(scaled.rows)}
    y, height = scaled.y(f"validation {wording.title(metric)}").axis(format=".4~p"), PANEL * 3 // 4
    panels = []
    for alike in densities:
        base = chart_of(alike).encode(**places)
        marks = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, tooltip=tooltips(*_TOLD, "cost"))
        layers = alt.layer(
            scaled.band(), scaled.bars(base, opacity=0.5), marks, *_below(alike, PANEL, height, "cost", **places)
        )
        panels.append(layers.properties(width=PANEL, height=height, title=f"{alike['density'].iloc[0]:.1%} kept"))
    return Chart(
        "equal_cost",
        wording.worded("{Metric} against cost", metric),
        f"Final validation {wording.title(metric)} against what a ticket costs to train and to find, in epochs of the dense "
        f"network, counted in multiply-accumulates; the dense network as a band. Upper left is better.{scaled.told}",
        {"equal_cost": rows},
        alt.concat(*panels, columns=COLUMNS),
        is_answer=True,
    )


def _scaled(rows: pandas.DataFrame, figure: str, low: str, high: str) -> Scaled:
    """The rows by `figure`, on a scale from at most `SHOWN` below the highest `low` to the highest `high` of what is on it:
    neither a ticket that learned nothing nor a dense network that failed in one replicate stretches it."""
    least = float(max(rows[low].min(), rows[low].max() - SHOWN))
    is_below = rows[figure] < least
    found = rows.assign(shown=rows[figure].mask(is_below), below=rows[figure].where(is_below))
    is_dense = rows["network"] == DENSE
    count = (is_below & ~is_dense & (rows["density"] > 0)).sum()
    told = f" ▼ marks a network below the scale, with its value ({count})." if count else ""
    told += "".join(f" The dense network ({value:.1%}) is below the scale." for value in found.loc[is_dense, "below"].dropna())
    return Scaled(found, alt.Scale(domain=[least, float(rows.loc[~is_below, high].max())], nice=True), told)


def _below(rows: pandas.DataFrame, width: int, height: int, over: str = "density", **places: Any) -> list[alt.Chart]:
    """What lies below the scale of a panel of so many pixels, at its lower end: a mark for each network, with its value."""
    rows = _under_masks(rows, over)
    rows = rows.assign(across=rows["cost"] if over == "cost" else -np.log(rows[over]))
    below = rows[rows["below"].notna()].sort_values("across", kind="stable")
    if below.empty:
        return []
    values = [f"{'' if row.network == TICKET else f'{row.network} '}{row.below:.1%}" for row in below.itertuples()]
    levels = _levels(width * below["across"] / (rows["across"].max() or 1), values)
    base = chart_of(below.assign(level=[height - _LINE * (level + 0.5) for level in levels], value=values))
    base = base.encode(**places, y=alt.Y("level:Q", scale=None, axis=None), tooltip=tooltips(*_TOLD))
    marks = base.mark_point(filled=True, size=60, opacity=1, shape="triangle-down")
    return [marks, base.mark_text(align="right", dx=-8, fontSize=10).encode(text="value:N")]


def _levels(ends: Iterable[float], values: Iterable[str]) -> list[int]:
    """The lowest line on which each of `values` has room, counted from 0; they end at so many pixels, from left to right."""
    levels, taken = [], list[float]()  # where the last value of each line ends
    for end, value in zip(ends, values, strict=True):
        begin = end - 16 - 6 * len(value)
        level = next((number for number, last in enumerate(taken) if last < begin), len(taken))
        taken[level : level + 1] = [end]
        levels.append(level)
    return levels


def _against(rows: pandas.DataFrame, y: alt.Y, over: str = "density") -> tuple[alt.Chart, alt.Chart, alt.Chart]:
    """The figure `y` of the dense network across, a line for each series of tickets, a mark for each network."""
    is_dense = rows["network"] == DENSE
    networks = rows.loc[~is_dense, "network"].unique().tolist()
    shape: Any = alt.Shape("network:N", title=None).scale(domain=networks) if len(networks) > 1 else alt.value("circle")
    across = chart_of(rows[is_dense]).mark_rule(color=GREY).encode(y=y, tooltip=tooltips(*_TOLD))
    tickets = _pruned(rows, over).transform_filter(alt.datum.network == TICKET).mark_line().encode(y=y, detail="series:N")
    points = rows.loc[rows["network"] == TICKET].sort_values("rewind_step")["rewind"].unique().tolist()
    if _key(rows) == "family" and len(points) > 1:
        tickets = tickets.encode(strokeDash=alt.StrokeDash("rewind:N", title="rewound to").scale(domain=points))
    marks = _pruned(rows, over).mark_point(filled=True, size=60, opacity=1).encode(y=y, shape=shape, tooltip=tooltips(*_TOLD))
    return across, tickets, marks


def _pruned(rows: pandas.DataFrame, over: str = "density") -> alt.Chart:
    """Tickets and controls by what is left of them, a colour for each family, or else for each series."""
    return chart_of(_under_masks(rows, over)).encode(**_placed(rows, over))


def _placed(rows: pandas.DataFrame, over: str = "density") -> dict[str, Any]:
    """Where tickets and controls are across, and their colours."""
    shown = _under_masks(rows, over)
    return {"x": _left(shown, over), "color": _colour(shown)}


def _under_masks(rows: pandas.DataFrame, over: str) -> pandas.DataFrame:
    return rows[(rows["network"] != DENSE) & (rows[over] > 0)]  # where a logarithm ends


def _colour(rows: pandas.DataFrame) -> alt.Color:
    key = _key(rows)
    named = rows.loc[rows["network"] != DENSE, key].unique().tolist()
    return alt.Color(f"{key}:N", title=None).scale(domain=named, range=list(COLOURS))


def _left(rows: pandas.DataFrame, over: str = "density") -> alt.X:
    """From dense to sparse, as far as `rows` reach."""
    there = sorted(rows.loc[rows["network"] != DENSE, over].unique())
    axis = alt.X(f"{over}:Q", title=_LEFT[over]).axis(
        values=there, format=".3~p", labelOverlap="greedy", labelSeparation=4, grid=False
    )
    reach = [there[0], there[-1]] if there else alt.Undefined
    return axis.scale(type="log", reverse=True, nice=False, padding=20, domain=reach)


def differences(findings: Findings) -> Chart | None:
    """How far each ticket is from what it is compared with, by mask and rewind point."""
    rows = findings.figures
    tickets = rows[(rows["network"] == TICKET) & rows["difference"].notna()]
    if tickets.empty:
        return None
    tickets = tickets.assign(points=100 * tickets["difference"])
    families = (alike.sort_values("rewind_step", kind="stable") for _, alike in tickets.groupby("family", sort=False))
    series = list(dict.fromkeys(name for alike in families for name in alike["series"]))
    most = min(max(0.5, tickets["points"].abs().max()), 10.0)
    x, width = masks_across(tickets)
    words, verdicts = findings.run.rule.words, findings.run.rule.verdicts
    base = chart_of(tickets).encode(x=x, y=alt.Y("series:N", title=None).sort(series), tooltip=tooltips(*_TOLD))
    cells = base.mark_rect().encode(
        color=alt.Color("points:Q", title="points").scale(scheme="redblue", domain=[-most, most], clamp=True)
    )
    number = "format(datum.points, '+.2f') + ' ' + " if tickets["mask"].nunique() <= FEW else ""
    signs = base.mark_text(fontSize=10).encode(
        text="sign:N",
        color=alt.when(f"abs(datum.points) > {0.6 * most}").then(alt.value("white")).otherwise(alt.value("#222")),
    )
    sign = json.dumps({verdict: verdict.sign for verdict in verdicts})
    signs = signs.transform_calculate(sign=f"{number}{sign}[datum.verdict]")
    against, metric = " or ".join(tickets["against"].unique()), wording.title(findings.run.metric)
    return Chart(
        "differences",
        "Masks and rewind points",
        f"Validation {metric} against that of {against}, in points: {words['signs']}.",
        {"differences": tickets},
        alt.layer(cells, signs).properties(width=width, height=alt.Step(28)),
        is_answer=True,
    )


CHARTS: tuple[Callable[[Findings], Chart | None], ...] = (
    *(by_density, differences, macs, equal_cost, early_stop, layers, overlaps, magnitudes, courses, stability, training),
)
TABLES = (*(chart.__name__ for chart in CHARTS), "thresholds", "lines")
