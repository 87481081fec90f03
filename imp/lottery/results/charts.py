"""The report's charts: Vega-Lite, by Altair. The same definition is a chart with hover values in the page, a PNG and an SVG.

A chart is a function from what was found to it, None where there is nothing to draw, and an entry in `CHARTS`.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
import pandas
import vl_convert

from lottery.experiment import controls
from lottery.experiment.graph import DENSE, TICKET
from lottery.pruning.interpolation import STABLE
from lottery.results import criteria, frame, grouping
from lottery.results.tidy import SPLITS, Findings
from lottery.rundir.run import Run

WIDTH, HEIGHT = 760, 320
COLOURS = (
    *("#3b7dd8", "#e0812b", "#2f9e5f", "#c94f9b", "#8a63d2", "#a0892c", "#d24b4b", "#4aa3a3"),
    *("#1f4577", "#8a4a10", "#175c35", "#7c2a5e", "#4d3480", "#5c4e16", "#7d2323", "#245f5f"),
)
PANEL, COLUMNS = 215, 3  # the width of one of several panels, and how many fit beside each other
GREY = "#8a8a8a"
LINE = "#8a8a8a55"
FEW = 12  # masks, which can be told by name in the width of a page
SHOWN = 0.1  # how far below the dense network an accuracy may lie to be shown where it is
ZOOMING = "Drag to move, turn the wheel with Shift held to zoom."
RESOLUTION = 150  # pixels an inch of a PNG
_NETWORK = ("network", "family", "mask", "density", "rewind")
_ACCURACY = (
    *_NETWORK,
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
_FORMATS = {
    **dict.fromkeys(("density", "validation", "test", "early_test"), ".2%"),
    **dict.fromkeys(("accuracy", "train_accuracy", "validation_accuracy", "test_accuracy"), ".2%"),
    **dict.fromkeys(("weights", "kept", "early_step", "step"), ",.0f"),
    "difference": "+.2%",
    **dict.fromkeys(("share", "macs_share"), ".3%"),
    **dict.fromkeys(("epoch", "cost"), ".3~g"),
    "threshold": ".4~g",
    **dict.fromkeys(("overlap", "chance"), ".2%"),
    "beyond_chance": "+.1%",
    "runs": "d",
    **dict.fromkeys(("low", "high", "train", "error"), ".2%"),
}


@dataclasses.dataclass(frozen=True)
class Chart:
    """A drawing of `tables`, which have names: its `name` in files, its `title` in the page, and the text `explained` below it
    there; `is_answer`: it stands before the tables of the page."""

    name: str
    title: str
    explained: str
    tables: Mapping[str, pandas.DataFrame]
    drawing: alt.TopLevelMixin
    is_answer: bool = False

    @functools.cached_property
    def specification(self) -> dict[str, Any]:
        """The Vega-Lite specification, with the data inside: a transparent background, colours visible on light and dark."""
        styled: Any = self.drawing.configure(background="transparent", font="system-ui, sans-serif")
        styled = styled.configure_view(stroke=LINE).configure_axis(gridColor=LINE, domainColor=GREY, tickColor=GREY)
        return dict(styled.to_dict())

    @functools.cached_property
    def svg(self) -> str:
        return str(vl_convert.vegalite_to_svg(self.specification | {"background": "white"}))

    @property
    def png(self) -> bytes:
        return bytes(vl_convert.svg_to_png(self.svg, ppi=RESOLUTION))


@functools.cache
def script() -> str:
    """The JavaScript that draws specifications: Vega, Vega-Lite and Vega-Embed, whole."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def accuracy(findings: Findings) -> Chart | None:
    """Accuracy against density: of several families the tickets together, then each series with its controls."""
    rows = findings.accuracies
    if (rows["network"] == DENSE).all():
        return None
    raised, cut = _raised(rows, "sd_low", "validation", "sd_low", "sd_high")
    together = _told_apart(raised)
    chosen = alt.selection_point(fields=[_key(rows)], bind="legend")
    opacity = alt.when(chosen).then(alt.value(1)).otherwise(alt.value(0.12))
    bars = _pruned(together).mark_rule().encode(**_SPREAD, opacity=opacity)
    line, tickets, marks = _against(together, "validation_shown", "validation accuracy")
    marks = marks.encode(opacity=opacity).add_params(chosen, _zoom())
    drawing: Any = alt.layer(_band(raised), bars, line, tickets.encode(opacity=opacity), marks)
    drawing, below = drawing.properties(width=WIDTH, height=HEIGHT), ""
    if len(together) < len(raised):
        drawing = alt.vconcat(drawing, _by_series(findings.run, raised))
        drawing = drawing.resolve_scale(strokeDash="independent", shape="independent")
        below = " Below, the same tickets family by family with their controls, the tickets of the others in grey."
    return Chart(
        "accuracy",
        "Accuracy against density",
        "Final validation accuracy, means over runs, bars of one standard deviation; the dense network as a band. Sparser to "
        f"the right.{cut}{below} Click a line's name to see it alone; hold the pointer over a mark for its values. {ZOOMING}",
        {"accuracy": rows},
        drawing,
        is_answer=True,
    )


def _band(rows: pandas.DataFrame) -> alt.Chart:
    """The standard deviation of the dense network."""
    return _chart(rows[rows["network"] == DENSE]).mark_rect(color=GREY, opacity=0.2).encode(**_SPREAD)


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
    x, colour, dashes = _left(rows).title(None), _colour(rows), _dashes(run)
    shape = alt.Shape("network:N", title=None).scale(domain=networks)
    panels = []
    for (name, rewind), _ in tickets.groupby(["family", "rewind"], sort=False):
        family = run.recipe.families[name]
        own = rows[(rows["family"] == name) & ((rows["rewind"] == rewind) | rows["network"].isin(family.shared_controls))]
        others = _chart(tickets[tickets["family"] != name]).mark_line(color=GREY, opacity=0.4, strokeWidth=1)
        base = _chart(own).encode(x=x, y=y, color=colour)
        lines = {network: base.transform_filter(alt.datum.network == network) for network in networks}
        layers = (
            _band(rows),
            others.encode(x=x, y=y, detail="series:N"),
            base.mark_rule(opacity=0.5).encode(**_SPREAD),
            *(line.mark_line(strokeDash=dashes[it], strokeWidth=2.5 if it == TICKET else 1.2) for it, line in lines.items()),
            base.mark_point(filled=True, size=45, opacity=1).encode(shape=shape, tooltip=_tips(*_ACCURACY)),
        )
        title = name if tickets["rewind"].nunique() == 1 else f"{name}, rewound to {rewind}"
        title = alt.TitleParams(title, subtitle=criteria.words(family, family.updates), subtitleColor=GREY)
        panels.append(alt.layer(*layers).properties(width=PANEL, height=PANEL * 3 // 4, title=title))
    return alt.concat(*panels, columns=COLUMNS)


def early_stop(findings: Findings) -> Chart | None:
    """Where the validation loss was least, and the test accuracy there (Frankle & Carbin 2019, figure 4)."""
    rows = findings.accuracies
    if TICKET not in set(rows["network"]):
        return None
    raised, cut = _raised(_told_apart(rows), "early_test", "early_test")
    step = _against(raised, "early_step", "step of least validation loss")
    reached = _against(raised, "early_test_shown", "test accuracy there")
    panels = [alt.layer(*layers).properties(width=WIDTH // 2 - 40, height=HEIGHT) for layers in (step, reached)]
    of = " of tickets (those of controls are in the CSV)" if len(raised) < len(rows) else ""
    explained = f"The step of least validation loss{of}, and the test accuracy there.{cut}"
    return Chart("early_stop", "Early stopping", explained, {"early_stop": rows}, alt.hconcat(*panels))


def macs(findings: Findings) -> Chart | None:
    """Accuracy against what is left of the multiply-accumulates, where that is not the density."""
    rows = findings.accuracies
    tickets = rows[(rows["network"] == TICKET) & rows["macs_share"].notna()]
    if (tickets["macs_share"] - tickets["density"]).abs().lt(0.001).all():
        return None
    raised, cut = _raised(_told_apart(rows), "validation", "validation")
    across, line, marks = _against(raised, "validation_shown", "validation accuracy", "macs_share")
    return Chart(
        "macs",
        "Accuracy against arithmetic",
        "Final validation accuracy against the share of multiply-accumulates that the kept weights need: how families compare "
        f"at equal arithmetic rather than at equal density.{cut} {ZOOMING}",
        {"macs": rows},
        alt.layer(across, line, marks.add_params(_zoom())).properties(width=WIDTH, height=HEIGHT),
        is_answer=True,
    )


def equal_cost(findings: Findings) -> Chart | None:
    """Accuracy of several families against what a ticket costs in all, a panel for each density."""
    raised, cut = _raised(_told_apart(findings.accuracies), "sd_low", "validation", "sd_low", "sd_high")
    densities = grouping.equally_dense(raised[raised["network"].eq(TICKET) & raised["cost"].notna()])
    if not densities:
        return None
    rows = pandas.concat(densities)[findings.accuracies.columns]
    x = alt.X("cost:Q", title="cost in all, dense epochs").scale(zero=True)
    y = alt.Y("validation_shown:Q", title="validation accuracy").scale(zero=False).axis(format=".4~p")
    panels = []
    for alike in densities:
        base = _chart(alike).encode(x=x, color=_colour(raised))
        marks = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, tooltip=_tips(*_ACCURACY, "cost"))
        layers = alt.layer(_band(raised), base.mark_rule(opacity=0.5).encode(**_SPREAD), marks)
        panels.append(layers.properties(width=PANEL, height=PANEL * 3 // 4, title=f"{alike['density'].iloc[0]:.1%} kept"))
    return Chart(
        "equal_cost",
        "Accuracy against cost",
        "Final validation accuracy against what a ticket costs to train and to find, in epochs of the dense network, "
        f"counted in multiply-accumulates; the dense network as a band. Upper left is better.{cut}",
        {"equal_cost": rows},
        alt.concat(*panels, columns=COLUMNS),
        is_answer=True,
    )


def _chart(rows: pandas.DataFrame, **more: Any) -> alt.Chart:
    return alt.Chart(alt.InlineData(frame.dicts(rows)), **more)


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
    across = _chart(rows[is_dense]).mark_rule(color=GREY).encode(y=y, tooltip=_tips(*_ACCURACY))
    tickets = _pruned(rows, over).transform_filter(alt.datum.network == TICKET).mark_line().encode(y=y, detail="series:N")
    points = rows.loc[rows["network"] == TICKET].sort_values("rewind_step")["rewind"].unique().tolist()
    if _key(rows) == "family" and len(points) > 1:
        tickets = tickets.encode(strokeDash=alt.StrokeDash("rewind:N", title="rewound to").scale(domain=points))
    marks = _pruned(rows, over).mark_point(filled=True, size=60, opacity=1).encode(y=y, shape=shape, tooltip=_tips(*_ACCURACY))
    return across, tickets, marks


def _pruned(rows: pandas.DataFrame, over: str = "density") -> alt.Chart:
    """Tickets and controls by what is left of them, a colour for each family, or else for each series."""
    shown = rows[(rows["network"] != DENSE) & (rows[over] > 0)]  # where a logarithm ends
    return _chart(shown).encode(x=_left(shown, over), color=_colour(shown))


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


def _tips(*columns: str) -> list[alt.Tooltip]:
    """What is told of a mark when the pointer is on it: numbers in their format, all else as text."""
    return [alt.Tooltip(f"{name}:{'Q' if name in _FORMATS else 'N'}", format=_FORMATS.get(name, "")) for name in columns]


def differences(findings: Findings) -> Chart | None:
    """How far each ticket is from what it is compared with, by mask and rewind point."""
    rows = findings.accuracies
    tickets = rows[(rows["network"] == TICKET) & rows["difference"].notna()]
    if tickets.empty:
        return None
    tickets = tickets.assign(points=100 * tickets["difference"])
    families = (alike.sort_values("rewind_step", kind="stable") for _, alike in tickets.groupby("family", sort=False))
    series = list(dict.fromkeys(name for alike in families for name in alike["series"]))
    most = min(max(0.5, tickets["points"].abs().max()), 10.0)
    x, width = _masks(tickets)
    base = _chart(tickets).encode(x=x, y=alt.Y("series:N", title=None).sort(series), tooltip=_tips(*_ACCURACY))
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
    against = " or ".join(tickets["against"].unique())
    return Chart(
        "differences",
        "Masks and rewind points",
        f"Validation accuracy against that of {against}, in points: ✓ matching, ✗ not matching, ? undecided.",
        {"differences": tickets},
        alt.layer(cells, signs).properties(width=width, height=alt.Step(28)),
        is_answer=True,
    )


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
    x, step = _masks(rows, width)
    cells = _chart(rows, title=source).mark_rect().properties(width=step, height=alt.Step(14))
    return cells.encode(
        x=x,
        y=alt.Y("layer:N", title=None).sort(rows["layer"].unique().tolist()).axis(labels=named, ticks=named),
        color=alt.when(alt.datum.collapsed).then(alt.value("#e5484d")).otherwise(share),
        tooltip=_tips("layer", "mask", "share", "kept", "weights", "collapsed"),
    )


def _masks(rows: pandas.DataFrame, width: int = WIDTH) -> tuple[alt.X, alt.Step]:
    """Masks across, from dense to sparse, and a cell width with which they fit `width`."""
    named = rows.sort_values("density", ascending=False, kind="stable")["mask"].unique().tolist()
    x = alt.X("mask:N", title=None).sort(named)
    step = max(12, min(56, width // len(named)))
    return x.axis(labelAngle=0 if step > 6 * max(map(len, named)) else -60), alt.Step(step)


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
    base = _chart(rows).encode(x=x, y=alt.Y("second:N", title=None).sort(names), tooltip=_tips(*rows.columns))
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
    bars = _chart(rows[rows["replicate"] == replicate]).mark_bar(color=GREY, opacity=0.7)
    bars = bars.transform_calculate(**{end: f"format(pow(10, datum.log10_{end}), '.2~e')" for end in ("from", "to")}).encode(
        x=alt.X("log10_from:Q", title="|w|").bin("binned").axis(labelExpr="format(pow(10, datum.value), '.1~e')"),
        x2="log10_to:Q",
        y=alt.Y("weights:Q", title="weights"),
        tooltip=_tips("from", "to", "weights"),
    )
    colour = alt.Color("mask:N", title="threshold").scale(scheme="plasma").sort(named)
    colour = colour.legend(alt.Legend() if len(named) <= FEW else None)
    lines = _chart(shown).mark_rule(strokeWidth=2)
    if shown["family"].nunique() > 1:
        lines = lines.encode(strokeDash=alt.StrokeDash("family:N", title=None).sort(shown["family"].unique().tolist()))
    lines = lines.encode(x="log10:Q", color=colour, tooltip=_tips("family", "mask", "threshold"))
    told = "; each mask drops what lies left of its threshold" if len(shown) else ""
    return Chart(
        "magnitudes",
        "Where the weights sit",
        f"The prunable weights of replicate {replicate}'s dense network by magnitude{told}.",
        {"magnitudes": rows, "thresholds": cuts},
        alt.layer(bars, *([lines] if len(shown) else [])).properties(width=WIDTH, height=HEIGHT * 2 // 3),
    )


def courses(findings: Findings) -> Chart | None:
    """Validation accuracy over training, a line for each network, a panel for each family."""
    rows = findings.courses
    if rows.empty or TICKET not in set(rows["network"]):
        return None
    dense = rows["network"] == DENSE
    parts = {name: rows[dense | (rows["family"] == name)] for name in rows.loc[~dense, "family"].unique()}
    panels = [_courses(findings.run, part, rows, number) for number, part in enumerate(parts.values())]
    if len(panels) == 1:
        drawing: Any = panels[0].properties(width=WIDTH, height=HEIGHT)
    else:
        titled = (panel.properties(width=PANEL, height=PANEL, title=name) for name, panel in zip(parts, panels, strict=True))
        drawing = alt.concat(*titled, columns=COLUMNS)
    return Chart(
        "courses",
        "Training curves",
        "Validation accuracy of every network, means over replicates, by the step of the schedule: a ticket begins at its "
        f"rewind point. The nearest line shows its values. {ZOOMING}",
        {"courses": rows},
        drawing,
    )


def _courses(run: Run, rows: pandas.DataFrame, all_rows: pandas.DataFrame, number: int) -> Any:
    """The lines of `rows`, on scales that fit `all_rows`: a panel with its own `number`."""
    accuracies = all_rows["validation_accuracy"]
    y = alt.Y("validation_accuracy:Q", title="validation accuracy").axis(format=".0%")
    y = y.scale(zero=False, domain=[accuracies.min(), accuracies.max()], nice=True)
    near = alt.selection_point(f"near_{number}", fields=["label"], on="pointerover", nearest=True, empty=False)
    lines = _chart(rows.assign(label=rows[["network", "family", "mask", "rewind"]].agg(" ".join, axis=1)))
    lines = lines.encode(x=alt.X("step:Q", title="step"), y=y, detail="label:N")
    networks, dash = all_rows["network"].unique().tolist(), alt.StrokeDash("network:N", title=None)
    sparsest = all_rows.loc[all_rows["density"] > 0, "density"].min()
    density = alt.Color("density:Q", title="density").legend(format=".3~p")
    density = density.scale(type="log", scheme="viridis", domain=[sparsest, 1.0], clamp=True)
    drawn = lines.mark_line().encode(
        color=alt.when(alt.datum.network == DENSE).then(alt.value(GREY)).otherwise(density),
        strokeDash=dash.scale(domain=networks, range=[_dashes(run)[network] for network in networks]),
        size=alt.when(near).then(alt.value(4)).otherwise(alt.value(1.5)),
    )
    points = lines.mark_point(opacity=0).encode(tooltip=_tips(*_NETWORK, "epoch", "step", *map("{}_accuracy".format, SPLITS)))
    return alt.layer(drawn, points.add_params(near, _zoom(f"zoom_{number}")))


def _dashes(run: Run) -> dict[str, list[int]]:
    """How the lines of networks are dashed."""
    named = [controls.of(name) for family in run.recipe.families.values() for name in family.controls]
    dashes = {one.name: one.dash for one in (*controls.CONTROLS.values(), *named)} | {TICKET: (1, 0), DENSE: (8, 0)}
    return collections.defaultdict(lambda: list(controls.Control.dash), {name: list(dash) for name, dash in dashes.items()})


def _zoom(name: str = "zoom") -> alt.Parameter:
    """Moving and zooming; the wheel alone still scrolls the page."""
    return alt.selection_interval(name, bind="scales", zoom="wheel![event.shiftKey]")


def training(findings: Findings) -> Chart | None:
    """Accuracies of the dense trainings by epoch."""
    rows = findings.training
    if rows.empty:
        return None
    lines = _chart(rows).mark_line(point=alt.OverlayMarkDef(size=20)).properties(width=WIDTH, height=HEIGHT)
    drawn = lines.encode(
        x=alt.X("epoch:Q"),
        y=alt.Y("accuracy:Q").scale(zero=False).axis(format=".0%"),
        color=alt.Color("split:N", title=None).scale(domain=list(SPLITS), range=[GREY, *COLOURS[:2]]),
        detail="replicate:N",
        tooltip=_tips("replicate", "split", "epoch", "accuracy"),
    )
    explained = "Accuracy on training images (varied as they are), validation and test images."
    return Chart("training", "The dense trainings", explained, {"training": rows}, drawn)


def stability(findings: Findings) -> Chart | None:
    """Instability over rewind points, and the error on the lines between the pairs, ticket by ticket."""
    rows, lines = findings.instability, findings.lines
    if rows.empty:
        return None
    rows, lines = (one.assign(ticket=one["family"] + " " + one["mask"]) for one in (rows, lines[lines["split"] == "test"]))
    points, tickets = _points(rows), rows["ticket"].unique().tolist()
    dash: Any = alt.value([1, 0])
    if rows["statistics"].nunique() > 1:
        dash = alt.StrokeDash("statistics:N", legend=None)
    base = _chart(rows).encode(
        x=alt.X("rewind:O", title="rewound to", sort=points).axis(labelAngle=0),
        y=alt.Y("test:Q", title="instability, test").axis(format=".2~%"),
        color=alt.Color("ticket:N", title=None).scale(domain=tickets, range=COLOURS),
    )
    bounds = base.mark_rule(opacity=0.5).encode(y=alt.Y("low:Q"), y2="high:Q")
    tips = _tips("family", "mask", "rewind", "statistics", "test", "low", "high", "train", "verdict", "replicates", "pairs")
    marks = base.mark_line(point=True).encode(strokeDash=dash, tooltip=tips)
    limit = alt.Chart(pandas.DataFrame({"limit": [STABLE]})).mark_rule(color=GREY, strokeDash=[4, 4]).encode(y="limit:Q")
    above = alt.layer(limit, bounds, marks).properties(width=WIDTH, height=HEIGHT)
    panels = [_lines_of(lines[lines["ticket"] == ticket], ticket, points, dash) for ticket in tickets]
    return Chart(
        "stability",
        "Stability",
        "Above: instability on test images, means over replicates with one-sided 95 % bounds; below the dashed line (2 points) "
        "a ticket counts as stable. Below: the error on test images along the line between two trainings, means over pairs. "
        "Solid lines have BatchNorm's statistics interpolated, dashed ones recomputed.",
        {"stability": rows, "lines": lines},
        alt.vconcat(above, alt.concat(*panels, columns=COLUMNS)).resolve_scale(color="independent"),
    )


def _lines_of(rows: pandas.DataFrame, ticket: str, points: Sequence[str], dash: Any) -> alt.Chart:
    drawn = (
        _chart(rows)
        .mark_line()
        .encode(
            x=alt.X("share:Q", title="share of the second network").axis(format=".0%", tickCount=3),
            y=alt.Y("error:Q", title="error, test").scale(zero=False).axis(format=".2~%", tickCount=5),
            color=alt.Color("rewind:O", title="rewound to", sort=points).scale(scheme="viridis"),
            strokeDash=dash,
            tooltip=_tips("rewind", "statistics", "share", "error"),
        )
    )
    return drawn.properties(width=PANEL, height=PANEL, title=ticket)


def _points(rows: pandas.DataFrame) -> list[str]:
    """The names of rewind points, from early to late."""
    return list(rows.sort_values("rewind_step")["rewind"].unique())


CHARTS: tuple[Callable[[Findings], Chart | None], ...] = (
    *(accuracy, differences, macs, equal_cost, early_stop, layers, overlaps, magnitudes, courses, stability, training),
)
TABLES = (*(chart.__name__ for chart in CHARTS), "thresholds", "lines")
