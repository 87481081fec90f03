"""The report's charts: Vega-Lite, by Altair. The same definition is a chart with hover values in the page, a PNG and an SVG."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import vl_convert

from lottery.results.listing import Row
from lottery.tables import csv_text

WIDTH, HEIGHT = 760, 320
COLOURS = ("#3b7dd8", "#e0812b", "#2f9e5f", "#c94f9b", "#8a63d2", "#a0892c", "#d24b4b", "#4aa3a3")
GREY = "#8a8a8a"
LINE = "#8a8a8a55"
FEW = 12  # masks, which can be told by name in the width of a page
SHOWN = 0.1  # how far below the dense network an accuracy may lie to be shown where it is
Tip = tuple[str, str, str]  # a column, its kind, its format
NAMES = ("accuracy", "early_stop", "differences", "layers", "magnitudes", "courses", "training")
TABLES = (*NAMES, "thresholds")
ZOOMING = "Drag to move, turn the wheel with Shift held to zoom."
RESOLUTION = 150  # pixels an inch of a PNG


@dataclasses.dataclass(frozen=True)
class Chart:
    """What is drawn of `rows`, and what it is called: `name` in files, `title` in the page, `explained` below it there."""

    name: str
    title: str
    explained: str
    rows: Sequence[Row]
    drawing: alt.TopLevelMixin
    others: Mapping[str, Sequence[Row]] = dataclasses.field(default_factory=dict)
    """What else is drawn, by the name of its table."""

    def specification(self) -> dict[str, Any]:
        """Vega-Lite's, with the data inside."""
        return dict(_styled(self.drawing).to_dict())

    def tables(self) -> dict[str, str]:
        """What is drawn, as CSV by name."""
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


def accuracy(rows: Sequence[Row]) -> Chart:
    """Accuracy against density from `tidy.accuracies`."""
    chosen = alt.selection_point(fields=["series"], bind="legend")
    opacity = alt.when(chosen).then(alt.value(1)).otherwise(alt.value(0.12))
    least = _least(rows, "sd_low")
    found = _raised(rows, ("validation", "sd_low", "sd_high"), least)
    between = {"y": alt.Y("sd_low_shown:Q").scale(zero=False), "y2": "sd_high_shown:Q"}
    band = alt.Chart(alt.InlineData(_dense(found))).mark_rect(color=GREY, opacity=0.2).encode(**between)
    bars = _pruned(found).mark_rule().encode(**between, opacity=opacity)
    line, tickets, marks = _against_density(found, "validation_shown", "validation accuracy", _TIPS)
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
    )


def early_stop(rows: Sequence[Row]) -> Chart:
    """Where the validation loss was least, and the test accuracy there (Frankle & Carbin 2019, figure 4)."""
    tips = (*_TIPS[:4], ("early_step", "Q", ",.0f"), ("early_test", "Q", ".2%"), *_TIPS[4:])
    step = _against_density(rows, "early_step", "step of least validation loss", tips)
    least = _least(rows, "early_test")
    reached = _against_density(_raised(rows, ("early_test",), least), "early_test_shown", "test accuracy there", tips)
    panels = [alt.layer(*layers).properties(width=WIDTH // 2 - 40, height=HEIGHT) for layers in (step, reached)]
    return Chart(
        "early_stop",
        "Early stopping",
        f"The step of least validation loss, and the test accuracy there.{_cut(rows, 'early_test', least)}",
        rows,
        alt.hconcat(*panels),
    )


def _least(rows: Sequence[Row], figure: str) -> float:
    """The least accuracy that is shown where it is: one ticket that learnt nothing must not press the others together."""
    return float(max(min(row[figure] for row in rows), min(row[figure] for row in _dense(rows)) - SHOWN))


def _raised(rows: Sequence[Row], figures: Sequence[str], least: float) -> list[Row]:
    """The rows with where each of `figures` is shown."""
    return [row | {f"{figure}_shown": max(row[figure], least) for figure in figures} for row in rows]


def _cut(rows: Sequence[Row], figure: str, least: float) -> str:
    below = sum(row[figure] < least and row["density"] > 0 for row in rows)
    return f" Marks at {least:.1%} ({below}) lie below that." if below else ""


def _against_density(
    rows: Sequence[Row], figure: str, title: str, tips: Sequence[Tip]
) -> tuple[alt.Chart, alt.Chart, alt.Chart]:
    """`figure` of the dense network across, a line for each series of tickets, a mark for each network."""
    y = alt.Y(f"{figure}:Q", title=title).scale(zero=False)
    y = y if figure == "early_step" else y.axis(format=".1%")
    networks = list(dict.fromkeys(row["network"] for row in rows if row["network"] != "dense"))
    shape = alt.Shape("network:N", title=None).scale(domain=networks)
    across = alt.Chart(alt.InlineData(_dense(rows))).mark_rule(color=GREY).encode(y=y, tooltip=_tooltips(tips))
    tickets = _pruned(rows).transform_filter(alt.datum.network == "ticket").mark_line().encode(y=y, detail="series:N")
    marks = _pruned(rows).mark_point(filled=True, size=60, opacity=1).encode(y=y, shape=shape, tooltip=_tooltips(tips))
    return across, tickets, marks


def _dense(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["network"] == "dense"]


def _pruned(rows: Sequence[Row]) -> alt.Chart:
    """Tickets and controls by density, a colour for each series."""
    found = [row for row in rows if row["network"] != "dense" and row["density"] > 0]  # where a logarithm ends
    named = list(dict.fromkeys(row["series"] for row in found))
    colour = alt.Color("series:N", title=None).scale(domain=named, range=list(COLOURS))
    return alt.Chart(alt.InlineData(found)).encode(x=_density(found), color=colour)


def _tooltips(columns: Sequence[Tip]) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{name}:{kind}", format=form) for name, kind, form in columns]


_TIPS = (
    ("network", "N", ""),
    ("mask", "N", ""),
    ("density", "Q", ".2%"),
    ("rewind", "N", ""),
    ("validation", "Q", ".2%"),
    ("test", "Q", ".2%"),
    ("difference", "Q", "+.2%"),
    ("verdict", "N", ""),
    ("runs", "Q", ""),
)


def _density(rows: Sequence[Row]) -> alt.X:
    ticks = sorted({row["density"] for row in rows})
    axis = alt.Axis(values=ticks, format=".3~p", labelOverlap="greedy", grid=False)
    scale = alt.Scale(type="log", reverse=True, nice=False, padding=20)
    return alt.X("density:Q", title="density: share of prunable weights kept", scale=scale, axis=axis)


def differences(rows: Sequence[Row]) -> Chart:
    """How far each ticket is from the dense network, by mask and rewind point, from `tidy.accuracies`."""
    found = [row for row in rows if row["network"] == "ticket" and row["difference"] is not None]
    tickets = [row | {"points": 100 * row["difference"]} for row in found]
    masks = list(dict.fromkeys(row["mask"] for row in sorted(tickets, key=lambda row: -row["density"])))
    series = list(dict.fromkeys(row["series"] for row in sorted(tickets, key=lambda row: row["rewind_step"])))
    worst = max((abs(row["points"]) for row in tickets), default=1.0)
    most = min(max(worst, 0.5), 10.0)
    base = alt.Chart(alt.InlineData(tickets)).encode(
        x=alt.X("mask:N", title=None).sort(masks).axis(labelAngle=0 if len(masks) <= FEW else -60),
        y=alt.Y("series:N", title=None).sort(series),
        tooltip=_tooltips(_TIPS),
    )
    cells = base.mark_rect().encode(
        color=alt.Color("points:Q", title="points").scale(scheme="redblue", domain=[-most, most], clamp=True)
    )
    number = "format(datum.points, '+.2f') + ' ' + " if len(masks) <= FEW else ""
    signs = base.mark_text(fontSize=10).encode(
        text="sign:N",
        color=alt.when(f"abs(datum.points) > {0.6 * most}").then(alt.value("white")).otherwise(alt.value("#222")),
    )
    signs = signs.transform_calculate(
        sign=f"{number}(datum.verdict == 'matching' ? '✓' : datum.verdict == 'not matching' ? '✗' : '?')"
    )
    return Chart(
        "differences",
        "Masks and rewind points",
        "Validation accuracy against the dense network, in points: ✓ matching, ✗ not matching, ? undecided.",
        tickets,
        alt.layer(cells, signs).properties(width=_step(len(masks)), height=alt.Step(28)),
    )


def layers(rows: Sequence[Row]) -> Chart:
    """What each mask keeps of each layer, from `tidy.layers`: those of one replicate."""
    shown = _of_one_replicate(rows)
    sources = list(dict.fromkeys(row["masks"] for row in shown))
    found = [_layers_of([row for row in shown if row["masks"] == source], source) for source in sources]
    return Chart(
        "layers",
        "What each mask keeps of each layer",
        f"Of replicate {rows[0]['replicate']}, layers in the order of the network (or of their names, where it is unknown). "
        "Red: collapsed, hardly anything or nothing is left of the layer.",
        rows,
        alt.vconcat(*found),
    )


def _layers_of(rows: Sequence[Row], source: str) -> alt.Chart:
    masks = list(dict.fromkeys(row["mask"] for row in sorted(rows, key=lambda row: -row["density"])))
    named = list(dict.fromkeys(row["layer"] for row in rows))
    share = alt.Color("share:Q", title="kept").scale(type="symlog", constant=0.01, domain=[0, 1], scheme="viridis")
    return (
        alt.Chart(alt.InlineData(rows), title="" if source == "oneshot" else source)
        .mark_rect()
        .encode(
            x=alt.X("mask:N", title=None).sort(masks).axis(labelAngle=0 if len(masks) <= FEW else -60),
            y=alt.Y("layer:N", title=None).sort(named),
            color=alt.when(alt.datum.collapsed).then(alt.value("#e5484d")).otherwise(share.legend(format="%")),
            tooltip=["layer:N", "mask:N", alt.Tooltip("share:Q", format=".3%"), "kept:Q", "weights:Q", "collapsed:N"],
        )
        .properties(width=_step(len(masks)), height=alt.Step(14))
    )


def _of_one_replicate(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["replicate"] == rows[0]["replicate"]]


def _step(count: int) -> alt.Step:
    """Cells as wide as lets `count` of them fit the page."""
    return alt.Step(max(12, min(56, WIDTH // max(count, 1))))


def magnitudes(rows: Sequence[Row], thresholds: Sequence[Row]) -> Chart:
    """The histogram of log10 |w| with the thresholds on it, from `tidy.magnitudes`: those of one replicate."""
    cuts = [row for row in thresholds if row["replicate"] == rows[0]["replicate"]]
    named = [row["mask"] for row in cuts]
    shown = alt.Legend() if len(named) <= FEW else None
    bars = (
        alt.Chart(alt.InlineData(_of_one_replicate(rows)))
        .mark_bar(color=GREY, opacity=0.7)
        .encode(
            x=alt.X("log10_from:Q", title="|w|").bin("binned").axis(labelExpr="format(pow(10, datum.value), '.1~e')"),
            x2="log10_to:Q",
            y=alt.Y("weights:Q", title="weights"),
            tooltip=["from:N", "to:N", alt.Tooltip("weights:Q", format=",")],
        )
        .transform_calculate(**{end: f"format(pow(10, datum.log10_{end}), '.2~e')" for end in ("from", "to")})
    )
    lines = (
        alt.Chart(alt.InlineData(cuts))
        .mark_rule(strokeWidth=2)
        .encode(
            x="log10:Q",
            color=alt.Color("mask:N", title="threshold").scale(scheme="plasma").sort(named).legend(shown),
            tooltip=["mask:N", alt.Tooltip("threshold:Q", format=".4~g")],
        )
    )
    told = "; each mask drops what lies left of its threshold" if cuts else ""
    return Chart(
        "magnitudes",
        "Where the weights sit",
        f"The prunable weights of replicate {rows[0]['replicate']}'s dense network by magnitude{told}.",
        rows,
        alt.layer(bars, lines).properties(width=WIDTH, height=HEIGHT * 2 // 3),
        {"thresholds": thresholds},
    )


def courses(rows: Sequence[Row]) -> Chart:
    """Validation accuracy over training, a line for each network, from `tidy.courses`."""
    there = list(dict.fromkeys(row["network"] for row in rows))
    x = alt.X("step:Q", title="step")
    y = alt.Y("validation_accuracy:Q", title="validation accuracy").scale(zero=False).axis(format=".0%")
    near = alt.selection_point(fields=["label"], on="pointerover", nearest=True, empty=False)
    labelled = [row | {"label": " ".join(row[key] for key in ("network", "method", "mask", "rewind"))} for row in rows]
    lines = alt.Chart(alt.InlineData(labelled)).encode(x=x, y=y, detail="label:N")
    density = alt.Color("density:Q", title="density").scale(
        type="log", scheme="viridis", domain=[min(row["density"] for row in rows if row["density"] > 0), 1.0], clamp=True
    )
    shown = alt.when(alt.datum.network == "dense").then(alt.value(GREY)).otherwise(density.legend(format=".3~p"))
    drawn = lines.mark_line().encode(
        color=shown,
        strokeDash=alt.StrokeDash("network:N", title=None).scale(domain=there, range=[_DASHES[name] for name in there]),
        size=alt.when(near).then(alt.value(4)).otherwise(alt.value(1.5)),
    )
    points = lines.mark_point(opacity=0).encode(tooltip=_tooltips(_COURSE))
    return Chart(
        "courses",
        "Training curves",
        "Validation accuracy of every network, means over replicates, by the step of the schedule: a ticket begins at its "
        f"rewind point. The nearest line shows its values. {ZOOMING}",
        rows,
        alt.layer(drawn, points.add_params(near, _zoom())).properties(width=WIDTH, height=HEIGHT),
    )


_DASHES = {
    "ticket": [1, 0],
    "dense": [8, 0],
    "reinit": [7, 3],
    "shuffle": [2, 2],
    "random": [7, 2, 2, 2],
    "extended": [12, 4],
}


def _zoom() -> alt.Parameter:
    """Moving and zooming, without taking the wheel from who scrolls the page."""
    return alt.selection_interval(bind="scales", zoom="wheel![event.shiftKey]")


_COURSE = (
    ("network", "N", ""),
    ("method", "N", ""),
    ("mask", "N", ""),
    ("density", "Q", ".2%"),
    ("rewind", "N", ""),
    ("epoch", "Q", ".3~g"),
    ("step", "Q", ""),
    ("train_accuracy", "Q", ".2%"),
    ("validation_accuracy", "Q", ".2%"),
    ("test_accuracy", "Q", ".2%"),
)


def training(rows: Sequence[Row]) -> Chart:
    """Accuracies of the dense trainings by epoch; rows of `replicate`, `epoch`, `split`, `accuracy`."""
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
            tooltip=["replicate:N", "split:N", "epoch:Q", alt.Tooltip("accuracy:Q", format=".2%")],
        )
        .properties(width=WIDTH, height=HEIGHT),
    )


def _styled(drawing: alt.TopLevelMixin) -> Any:
    """On whatever lies below, in colours that can be seen on light and dark."""
    return (
        drawing.configure(background="transparent", font="system-ui, sans-serif")
        .configure_view(stroke=LINE)
        .configure_axis(gridColor=LINE, domainColor=GREY, tickColor=GREY)
    )
