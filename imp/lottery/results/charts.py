"""The report's charts: Vega-Lite, by Altair. The same definition is a chart with hover values in the page, a PNG and an SVG.

A chart is a function from what was found to it, None where there is nothing to draw, and an entry in `CHARTS`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
import vl_convert

from lottery.experiment import controls
from lottery.experiment.graph import DENSE, TICKET
from lottery.results.tables import csv_text
from lottery.results.tidy import Findings, Row

WIDTH, HEIGHT = 760, 320
COLOURS = (
    *("#3b7dd8", "#e0812b", "#2f9e5f", "#c94f9b", "#8a63d2", "#a0892c", "#d24b4b", "#4aa3a3"),
    *("#1f4577", "#8a4a10", "#175c35", "#7c2a5e", "#4d3480", "#5c4e16", "#7d2323", "#245f5f"),
)
GREY = "#8a8a8a"
LINE = "#8a8a8a55"
FEW = 12  # masks, which can be told by name in the width of a page
SHOWN = 0.1  # how far below the dense network an accuracy may lie to be shown where it is
ZOOMING = "Drag to move, turn the wheel with Shift held to zoom."
RESOLUTION = 150  # pixels an inch of a PNG


@dataclasses.dataclass(frozen=True)
class Chart:
    """A drawing of `rows`: its `name` in files, its `title` in the page, and the text `explained` below it there."""

    name: str
    title: str
    explained: str
    rows: Sequence[Row]
    drawing: alt.TopLevelMixin
    others: Mapping[str, Sequence[Row]] = dataclasses.field(default_factory=dict)
    """What else is drawn, by the name of its table."""
    is_answer: bool = False
    """Whether it stands before the tables of the page."""

    def specification(self) -> dict[str, Any]:
        """The Vega-Lite specification, with the data inside."""
        return dict(_styled(self.drawing).to_dict())

    def tables(self) -> dict[str, str]:
        """What is drawn, as CSV by name of its table."""
        tables = {self.name: self.rows, **self.others}
        return {name: csv_text(list(rows[0]), rows) for name, rows in tables.items() if rows}

    def png(self) -> bytes:
        return bytes(vl_convert.vegalite_to_png(self._on_paper(), ppi=RESOLUTION))

    def svg(self) -> str:
        return str(vl_convert.vegalite_to_svg(self._on_paper()))

    def _on_paper(self) -> dict[str, Any]:
        return self.specification() | {"background": "white"}


@functools.cache
def script() -> str:
    """The JavaScript that draws specifications: Vega, Vega-Lite and Vega-Embed, whole."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def accuracy(findings: Findings) -> Chart | None:
    """Accuracy against density."""
    rows = findings.accuracies
    if not _but_dense(rows):
        return None
    chosen = alt.selection_point(fields=["series"], bind="legend")
    opacity = alt.when(chosen).then(alt.value(1)).otherwise(alt.value(0.12))
    least = _least(rows, "sd_low")
    raised = _raised(rows, ("validation", "sd_low", "sd_high"), least)
    between = {"y": alt.Y("sd_low_shown:Q").scale(zero=False), "y2": "sd_high_shown:Q"}
    band = alt.Chart(alt.InlineData(_dense(raised))).mark_rect(color=GREY, opacity=0.2).encode(**between)
    bars = _pruned(raised).mark_rule().encode(**between, opacity=opacity)
    line, tickets, marks = _against_density(raised, "validation_shown", "validation accuracy")
    drawn = alt.layer(
        band, bars, line, tickets.encode(opacity=opacity), marks.encode(opacity=opacity).add_params(chosen, _zoom())
    )
    return Chart(
        "accuracy",
        "Accuracy against density",
        "Final validation accuracy, means over runs, bars of one standard deviation; the dense network as a band. Sparser to "
        f"the right.{_cut(rows, 'validation', least)} Click a line's name to see it alone; hold the pointer over a mark for "
        f"its values. {ZOOMING}",
        rows,
        drawn.properties(width=WIDTH, height=HEIGHT),
        is_answer=True,
    )


def early_stop(findings: Findings) -> Chart | None:
    """Where the validation loss was least, and the test accuracy there (Frankle & Carbin 2019, figure 4)."""
    rows = findings.accuracies
    if not _tickets(rows):
        return None
    least = _least(rows, "early_test")
    step = _against_density(rows, "early_step", "step of least validation loss")
    reached = _against_density(_raised(rows, ("early_test",), least), "early_test_shown", "test accuracy there")
    panels = [alt.layer(*layers).properties(width=WIDTH // 2 - 40, height=HEIGHT) for layers in (step, reached)]
    return Chart(
        "early_stop",
        "Early stopping",
        f"The step of least validation loss, and the test accuracy there.{_cut(rows, 'early_test', least)}",
        rows,
        alt.hconcat(*panels),
    )


def _least(rows: Sequence[Row], figure: str) -> float:
    """The lowest accuracy that is drawn at its own height, so that one ticket that learned nothing does not compress the
    rest."""
    return float(max(min(row[figure] for row in rows), min(row[figure] for row in _dense(rows)) - SHOWN))


def _raised(rows: Sequence[Row], figures: Sequence[str], least: float) -> list[Row]:
    """The rows, with the height at which each of `figures` is drawn."""
    return [row | {f"{figure}_shown": max(row[figure], least) for figure in figures} for row in rows]


def _cut(rows: Sequence[Row], figure: str, least: float) -> str:
    below = sum(row[figure] < least and row["density"] > 0 for row in rows)
    return f" Marks at {least:.1%} ({below}) lie below that." if below else ""


def _against_density(rows: Sequence[Row], figure: str, title: str) -> tuple[alt.Chart, alt.Chart, alt.Chart]:
    """`figure` of the dense network across, a line for each series of tickets, a mark for each network."""
    y = alt.Y(f"{figure}:Q", title=title).scale(zero=False)
    y = y if figure == "early_step" else y.axis(format=".1%")
    networks = list(dict.fromkeys(row["network"] for row in _but_dense(rows)))
    shape = alt.Shape("network:N", title=None).scale(domain=networks)
    across = alt.Chart(alt.InlineData(_dense(rows))).mark_rule(color=GREY).encode(y=y, tooltip=_tips(*_ACCURACY))
    tickets = _pruned(rows).transform_filter(alt.datum.network == TICKET).mark_line().encode(y=y, detail="series:N")
    marks = _pruned(rows).mark_point(filled=True, size=60, opacity=1).encode(y=y, shape=shape, tooltip=_tips(*_ACCURACY))
    return across, tickets, marks


def _dense(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["network"] == DENSE]


def _but_dense(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["network"] != DENSE]


def _tickets(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["network"] == TICKET]


def _pruned(rows: Sequence[Row]) -> alt.Chart:
    """Tickets and controls by density, a colour for each series."""
    shown = [row for row in _but_dense(rows) if row["density"] > 0]  # where a logarithm ends
    named = list(dict.fromkeys(row["series"] for row in shown))
    colour = alt.Color("series:N", title=None).scale(domain=named, range=list(COLOURS))
    return alt.Chart(alt.InlineData(shown)).encode(x=_density(shown), color=colour)


_ACCURACY = (
    *("network", "family", "mask", "density", "rewind", "validation", "test", "difference", "against", "verdict"),
    *("early_step", "early_test", "runs"),
)
_COURSE = (
    *("network", "family", "mask", "density", "rewind", "epoch", "step"),
    *("train_accuracy", "validation_accuracy", "test_accuracy"),
)
_FORMATS = {
    **dict.fromkeys(("density", "validation", "test", "early_test"), ".2%"),
    **dict.fromkeys(("accuracy", "train_accuracy", "validation_accuracy", "test_accuracy"), ".2%"),
    **dict.fromkeys(("weights", "kept", "early_step", "step"), ",.0f"),
    "difference": "+.2%",
    "share": ".3%",
    "epoch": ".3~g",
    "threshold": ".4~g",
    "runs": "d",
}


def _tips(*columns: str) -> list[alt.Tooltip]:
    """What is told of a mark when the pointer is on it: numbers in their format, all else as text."""
    return [alt.Tooltip(f"{name}:{'Q' if name in _FORMATS else 'N'}", format=_FORMATS.get(name, "")) for name in columns]


def _density(rows: Sequence[Row]) -> alt.X:
    ticks = sorted({row["density"] for row in rows})
    axis = alt.Axis(values=ticks, format=".3~p", labelOverlap="greedy", grid=False)
    scale = alt.Scale(type="log", reverse=True, nice=False, padding=20)
    return alt.X("density:Q", title="density: share of prunable weights kept", scale=scale, axis=axis)


def differences(findings: Findings) -> Chart | None:
    """How far each ticket is from what it is held against, by mask and rewind point."""
    tickets = [row for row in _tickets(findings.accuracies) if row["difference"] is not None]
    if not tickets:
        return None
    tickets = [row | {"points": 100 * row["difference"]} for row in tickets]
    count = len({row["mask"] for row in tickets})
    families = list(dict.fromkeys(row["family"] for row in tickets))
    series = sorted(tickets, key=lambda row: (families.index(row["family"]), row["rewind_step"]))
    most = min(max(0.5, *(abs(row["points"]) for row in tickets)), 10.0)
    base = alt.Chart(alt.InlineData(tickets)).encode(
        x=_masks(tickets),
        y=alt.Y("series:N", title=None).sort(list(dict.fromkeys(row["series"] for row in series))),
        tooltip=_tips(*_ACCURACY),
    )
    cells = base.mark_rect().encode(
        color=alt.Color("points:Q", title="points").scale(scheme="redblue", domain=[-most, most], clamp=True)
    )
    number = "format(datum.points, '+.2f') + ' ' + " if count <= FEW else ""
    signs = base.mark_text(fontSize=10).encode(
        text="sign:N",
        color=alt.when(f"abs(datum.points) > {0.6 * most}").then(alt.value("white")).otherwise(alt.value("#222")),
    )
    signs = signs.transform_calculate(
        sign=f"{number}(datum.verdict == 'matching' ? '✓' : datum.verdict == 'not matching' ? '✗' : '?')"
    )
    against = " or ".join(dict.fromkeys(row["against"] for row in tickets))
    return Chart(
        "differences",
        "Masks and rewind points",
        f"Validation accuracy against that of {against}, in points: ✓ matching, ✗ not matching, ? undecided.",
        tickets,
        alt.layer(cells, signs).properties(width=_step(count), height=alt.Step(28)),
        is_answer=True,
    )


def layers(findings: Findings) -> Chart | None:
    """What each mask keeps of each layer: those of one replicate."""
    if not findings.layers:
        return None
    shown = _of_one_replicate(findings.layers)
    sources = list(dict.fromkeys(row["masks"] for row in shown))
    titles = sources if len(sources) > 1 else [""]
    panels = [
        _layers_of([row for row in shown if row["masks"] == source], title)
        for source, title in zip(sources, titles, strict=True)
    ]
    return Chart(
        "layers",
        "What each mask keeps of each layer",
        f"Of replicate {shown[0]['replicate']}, layers in the order of the network (or of their names, where it is unknown). "
        "Red: collapsed, hardly anything or nothing is left of the layer.",
        findings.layers,
        alt.vconcat(*panels),
    )


def _layers_of(rows: Sequence[Row], source: str) -> alt.Chart:
    named = list(dict.fromkeys(row["layer"] for row in rows))
    share = alt.Color("share:Q", title="kept").scale(type="symlog", constant=0.01, domain=[0, 1], scheme="viridis")
    legend = alt.Legend(format=".0%", values=[0, 0.01, 0.1, 1])
    return (
        alt.Chart(alt.InlineData(rows), title=source)
        .mark_rect()
        .encode(
            x=_masks(rows),
            y=alt.Y("layer:N", title=None).sort(named),
            color=alt.when(alt.datum.collapsed).then(alt.value("#e5484d")).otherwise(share.legend(legend)),
            tooltip=_tips("layer", "mask", "share", "kept", "weights", "collapsed"),
        )
        .properties(width=_step(len({row["mask"] for row in rows})), height=alt.Step(14))
    )


def _masks(rows: Sequence[Row]) -> alt.X:
    """Masks across, from dense to sparse."""
    named = list(dict.fromkeys(row["mask"] for row in sorted(rows, key=lambda row: -row["density"])))
    return alt.X("mask:N", title=None).sort(named).axis(labelAngle=0 if len(named) <= FEW else -60)


def _of_one_replicate(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["replicate"] == rows[0]["replicate"]]


def _step(count: int) -> alt.Step:
    """A cell width with which `count` cells fit the page."""
    return alt.Step(max(12, min(56, WIDTH // max(count, 1))))


def magnitudes(findings: Findings) -> Chart | None:
    """The histogram of log10 |w| with the thresholds on it: those of one replicate."""
    if not findings.magnitudes:
        return None
    shown = _of_one_replicate(findings.magnitudes)
    cuts = [row for row in findings.thresholds if row["replicate"] == shown[0]["replicate"]]
    named = list(dict.fromkeys(row["mask"] for row in cuts))
    bars = (
        alt.Chart(alt.InlineData(shown))
        .mark_bar(color=GREY, opacity=0.7)
        .encode(
            x=alt.X("log10_from:Q", title="|w|").bin("binned").axis(labelExpr="format(pow(10, datum.value), '.1~e')"),
            x2="log10_to:Q",
            y=alt.Y("weights:Q", title="weights"),
            tooltip=_tips("from", "to", "weights"),
        )
        .transform_calculate(**{end: f"format(pow(10, datum.log10_{end}), '.2~e')" for end in ("from", "to")})
    )
    lines = (
        alt.Chart(alt.InlineData(cuts))
        .mark_rule(strokeWidth=2)
        .encode(
            x="log10:Q",
            color=alt.Color("mask:N", title="threshold")
            .scale(scheme="plasma")
            .sort(named)
            .legend(alt.Legend() if len(named) <= FEW else None),
            tooltip=_tips("family", "mask", "threshold"),
        )
    )
    told = "; each mask drops what lies left of its threshold" if cuts else ""
    return Chart(
        "magnitudes",
        "Where the weights sit",
        f"The prunable weights of replicate {shown[0]['replicate']}'s dense network by magnitude{told}.",
        findings.magnitudes,
        alt.layer(bars, lines).properties(width=WIDTH, height=HEIGHT * 2 // 3),
        {"thresholds": findings.thresholds},
    )


def courses(findings: Findings) -> Chart | None:
    """Validation accuracy over training, a line for each network."""
    rows = findings.courses
    if not _tickets(rows):
        return None
    there = list(dict.fromkeys(row["network"] for row in rows))
    x = alt.X("step:Q", title="step")
    y = alt.Y("validation_accuracy:Q", title="validation accuracy").scale(zero=False).axis(format=".0%")
    near = alt.selection_point(fields=["label"], on="pointerover", nearest=True, empty=False)
    labelled = [row | {"label": " ".join(row[key] for key in ("network", "family", "mask", "rewind"))} for row in rows]
    lines = alt.Chart(alt.InlineData(labelled)).encode(x=x, y=y, detail="label:N")
    density = alt.Color("density:Q", title="density").scale(
        type="log", scheme="viridis", domain=[min(row["density"] for row in rows if row["density"] > 0), 1.0], clamp=True
    )
    shown = alt.when(alt.datum.network == DENSE).then(alt.value(GREY)).otherwise(density.legend(format=".3~p"))
    drawn = lines.mark_line().encode(
        color=shown,
        strokeDash=alt.StrokeDash("network:N", title=None).scale(domain=there, range=[_dash(name) for name in there]),
        size=alt.when(near).then(alt.value(4)).otherwise(alt.value(1.5)),
    )
    points = lines.mark_point(opacity=0).encode(tooltip=_tips(*_COURSE))
    return Chart(
        "courses",
        "Training curves",
        "Validation accuracy of every network, means over replicates, by the step of the schedule: a ticket begins at its "
        f"rewind point. The nearest line shows its values. {ZOOMING}",
        rows,
        alt.layer(drawn, points.add_params(near, _zoom())).properties(width=WIDTH, height=HEIGHT),
    )


def _dash(network: str) -> list[int]:
    """Tickets are solid lines, controls dashed as each says."""
    known = {TICKET: (1, 0), DENSE: (8, 0), **{one.name: one.dash for one in controls.CONTROLS.values()}}
    return list(known.get(network, controls.Control.dash))


def _zoom() -> alt.Parameter:
    """Moving and zooming; the wheel alone still scrolls the page."""
    return alt.selection_interval(bind="scales", zoom="wheel![event.shiftKey]")


def training(findings: Findings) -> Chart | None:
    """Accuracies of the dense trainings by epoch."""
    rows = findings.training
    if not rows:
        return None
    return Chart(
        "training",
        "The dense trainings",
        "Accuracy on training images (varied as they are), validation and test images.",
        rows,
        alt.Chart(alt.InlineData(rows))
        .mark_line(point=alt.OverlayMarkDef(size=20))
        .encode(
            x=alt.X("epoch:Q"),
            y=alt.Y("accuracy:Q").scale(zero=False).axis(format=".0%"),
            color=alt.Color("split:N", title=None).scale(domain=["train", "validation", "test"], range=[GREY, *COLOURS[:2]]),
            detail="replicate:N",
            tooltip=_tips("replicate", "split", "epoch", "accuracy"),
        )
        .properties(width=WIDTH, height=HEIGHT),
    )


CHARTS: tuple[Callable[[Findings], Chart | None], ...] = (
    *(accuracy, differences, early_stop, layers, magnitudes, courses, training),
)
TABLES = (*(chart.__name__ for chart in CHARTS), "thresholds")


def _styled(drawing: alt.TopLevelMixin) -> Any:
    """On a transparent background, in colours that are visible on light and dark."""
    return (
        drawing.configure(background="transparent", font="system-ui, sans-serif")
        .configure_view(stroke=LINE)
        .configure_axis(gridColor=LINE, domainColor=GREY, tickColor=GREY)
    )
