"""The report's charts: Vega-Lite, by Altair. The same definition is a chart with hover values in the page, a PNG and an SVG.

A chart is a function from what was found to it, None where there is nothing to draw, and an entry in `CHARTS`.
"""

from collections.abc import Callable
from typing import Any

import altair as alt
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

SHOWN = 0.1  # how far below the dense network a figure may lie to be shown where it is
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
_SPREAD = {"y": alt.Y("sd_low_shown:Q").scale(zero=False), "y2": alt.Y2("sd_high_shown:Q")}


def by_density(findings: Findings) -> Chart | None:
    """The deciding metric, whose name the chart has, against density: of several families the tickets together, then each
    series with its controls."""
    rows, metric = findings.figures, findings.run.metric
    if (rows["network"] == DENSE).all():
        return None
    raised, cut = _raised(rows, "sd_low", "validation", "sd_low", "sd_high")
    together = _told_apart(raised)
    chosen = alt.selection_point(fields=[_key(rows)], bind="legend")
    opacity = alt.when(chosen).then(alt.value(1)).otherwise(alt.value(0.12))
    bars = _pruned(together).mark_rule().encode(**_SPREAD, opacity=opacity)
    line, tickets, marks = _against(together, "validation_shown", f"validation {wording.title(metric)}")
    marks = marks.encode(opacity=opacity).add_params(chosen, zoom())
    drawing: Any = alt.layer(_band(raised), bars, line, tickets.encode(opacity=opacity), marks)
    drawing, below = drawing.properties(width=WIDTH, height=HEIGHT), ""
    if len(together) < len(raised):
        drawing = alt.vconcat(drawing, _by_series(findings.run, raised))
        drawing = drawing.resolve_scale(strokeDash="independent", shape="independent")
        below = " Below, the same tickets family by family with their controls, the tickets of the others in grey."
    return Chart(
        metric,
        wording.worded("{Metric} against density", metric),
        f"Final validation {wording.title(metric)}, means over runs, bars of one standard deviation; the dense network as a "
        f"band. Sparser to the right.{cut}{below} Click a line's name to see it alone; hold the pointer over a mark for its "
        f"values. {ZOOMING}",
        {metric: rows},
        drawing,
        is_answer=True,
    )


def _band(rows: pandas.DataFrame) -> alt.Chart:
    """The standard deviation of the dense network."""
    return chart_of(rows[rows["network"] == DENSE]).mark_rect(color=GREY, opacity=0.2).encode(**_SPREAD)


def _key(rows: pandas.DataFrame) -> str:
    """What a line has its colour by: its family, where there are several."""
    return "family" if rows.loc[rows["network"] != DENSE, "family"].nunique() > 1 else "series"


def _told_apart(rows: pandas.DataFrame) -> pandas.DataFrame:
    """What can be told apart in one panel: of several families the tickets alone."""
    return rows[rows["network"].isin([DENSE, TICKET])] if _key(rows) == "family" else rows


def _by_series(run: Run, rows: pandas.DataFrame) -> alt.ConcatChart:
    """A panel for each series of tickets, with its controls. A fresh control of one shot serves all rewind points."""
    rows = rows[(rows["network"] == DENSE) | (rows["density"] > 0)]
    tickets, networks = rows[rows["network"] == TICKET], rows.loc[rows["network"] != DENSE, "network"].unique().tolist()
    extent = [rows["sd_low_shown"].min(), rows["sd_high_shown"].max()]
    y = alt.Y("validation_shown:Q", title=None).scale(domain=extent, nice=True).axis(format=".0%", tickCount=5)
    x, colour, dashes = _left(rows).title(None), _colour(rows), line_dashes(run)
    shape = alt.Shape("network:N", title=None).scale(domain=networks)
    panels = []
    for (name, rewind), _ in tickets.groupby(["family", "rewind"], sort=False):
        family = run.recipe.families[name]
        own = rows[(rows["family"] == name) & ((rows["rewind"] == rewind) | rows["network"].isin(family.shared_controls))]
        others = chart_of(tickets[tickets["family"] != name]).mark_line(color=GREY, opacity=0.4, strokeWidth=1)
        base = chart_of(own).encode(x=x, y=y, color=colour)
        lines = {network: base.transform_filter(alt.datum.network == network) for network in networks}
        layers = (
            _band(rows),
            others.encode(x=x, y=y, detail="series:N"),
            base.mark_rule(opacity=0.5).encode(**_SPREAD),
            *(line.mark_line(strokeDash=dashes[it], strokeWidth=2.5 if it == TICKET else 1.2) for it, line in lines.items()),
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
    raised, cut = _raised(_told_apart(rows), "early_test", "early_test")
    step = _against(raised, "early_step", "step of least validation loss")
    reached = _against(raised, "early_test_shown", f"test {metric} there")
    panels = [alt.layer(*layers).properties(width=WIDTH // 2 - 40, height=HEIGHT) for layers in (step, reached)]
    of = " of tickets (those of controls are in the CSV)" if len(raised) < len(rows) else ""
    explained = f"The step of least validation loss{of}, and the test {metric} there.{cut}"
    return Chart("early_stop", "Early stopping", explained, {"early_stop": rows}, alt.hconcat(*panels))


def macs(findings: Findings) -> Chart | None:
    """The deciding metric against what is left of the multiply-accumulates, where that is not the density."""
    rows, metric = findings.figures, findings.run.metric
    tickets = rows[(rows["network"] == TICKET) & rows["macs_share"].notna()]
    if (tickets["macs_share"] - tickets["density"]).abs().lt(0.001).all():
        return None
    raised, cut = _raised(_told_apart(rows), "validation", "validation")
    across, line, marks = _against(raised, "validation_shown", f"validation {wording.title(metric)}", "macs_share")
    return Chart(
        "macs",
        wording.worded("{Metric} against arithmetic", metric),
        f"Final validation {wording.title(metric)} against the share of multiply-accumulates that the kept weights need: how "
        f"families compare at equal arithmetic rather than at equal density.{cut} {ZOOMING}",
        {"macs": rows},
        alt.layer(across, line, marks.add_params(zoom())).properties(width=WIDTH, height=HEIGHT),
        is_answer=True,
    )


def equal_cost(findings: Findings) -> Chart | None:
    """The deciding metric of several families against what a ticket costs in all, a panel for each density."""
    metric = findings.run.metric
    raised, cut = _raised(_told_apart(findings.figures), "sd_low", "validation", "sd_low", "sd_high")
    densities = grouping.equally_dense(raised[raised["network"].eq(TICKET) & raised["cost"].notna()])
    if not densities:
        return None
    rows = pandas.concat(densities)[findings.figures.columns]
    x = alt.X("cost:Q", title="cost in all, dense epochs").scale(zero=True)
    y = alt.Y("validation_shown:Q", title=f"validation {wording.title(metric)}").scale(zero=False).axis(format=".4~p")
    panels = []
    for alike in densities:
        base = chart_of(alike).encode(x=x, color=_colour(raised))
        marks = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, tooltip=tooltips(*_TOLD, "cost"))
        layers = alt.layer(_band(raised), base.mark_rule(opacity=0.5).encode(**_SPREAD), marks)
        panels.append(layers.properties(width=PANEL, height=PANEL * 3 // 4, title=f"{alike['density'].iloc[0]:.1%} kept"))
    return Chart(
        "equal_cost",
        wording.worded("{Metric} against cost", metric),
        f"Final validation {wording.title(metric)} against what a ticket costs to train and to find, in epochs of the dense "
        f"network, counted in multiply-accumulates; the dense network as a band. Upper left is better.{cut}",
        {"equal_cost": rows},
        alt.concat(*panels, columns=COLUMNS),
        is_answer=True,
    )


def _raised(rows: pandas.DataFrame, lowest: str, *figures: str) -> tuple[pandas.DataFrame, str]:
    """The rows with the height at which each of `figures` is drawn, so that one ticket that learned nothing does not compress
    the rest; and a sentence about those whose first figure is lower than drawn. `lowest` is what should be seen of all."""
    dense = rows.loc[rows["network"] == DENSE, lowest].min()
    least = float(max(rows[lowest].min(), dense - SHOWN))
    below = ((rows[figures[0]] < least) & (rows["density"] > 0)).sum()
    raised = rows.assign(**{f"{figure}_shown": rows[figure].clip(lower=least) for figure in figures})
    return raised, f" Marks at {least:.1%} ({below}) lie below that." if below else ""


def _against(rows: pandas.DataFrame, figure: str, title: str, over: str = "density") -> tuple[alt.Chart, alt.Chart, alt.Chart]:
    """`figure` of the dense network across, a line for each series of tickets, a mark for each network."""
    y = alt.Y(f"{figure}:Q", title=title).scale(zero=False)
    y = y if figure == "early_step" else y.axis(format=".1%")
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
    shown = rows[(rows["network"] != DENSE) & (rows[over] > 0)]  # where a logarithm ends
    return chart_of(shown).encode(x=_left(shown, over), color=_colour(shown))


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
    base = chart_of(tickets).encode(x=x, y=alt.Y("series:N", title=None).sort(series), tooltip=tooltips(*_TOLD))
    cells = base.mark_rect().encode(
        color=alt.Color("points:Q", title="points").scale(scheme="redblue", domain=[-most, most], clamp=True)
    )
    number = "format(datum.points, '+.2f') + ' ' + " if tickets["mask"].nunique() <= FEW else ""
    signs = base.mark_text(fontSize=10).encode(
        text="sign:N",
        color=alt.when(f"abs(datum.points) > {0.6 * most}").then(alt.value("white")).otherwise(alt.value("#222")),
    )
    signs = signs.transform_calculate(
        sign=f"{number}(datum.verdict == 'matching' ? '✓' : datum.verdict == 'not matching' ? '✗' : '?')"
    )
    against, metric = " or ".join(tickets["against"].unique()), wording.title(findings.run.metric)
    return Chart(
        "differences",
        "Masks and rewind points",
        f"Validation {metric} against that of {against}, in points: ✓ matching, ✗ not matching, ? undecided.",
        {"differences": tickets},
        alt.layer(cells, signs).properties(width=width, height=alt.Step(28)),
        is_answer=True,
    )


CHARTS: tuple[Callable[[Findings], Chart | None], ...] = (
    *(by_density, differences, macs, equal_cost, early_stop, layers, overlaps, magnitudes, courses, stability, training),
)
TABLES = (*(chart.__name__ for chart in CHARTS), "thresholds", "lines")
