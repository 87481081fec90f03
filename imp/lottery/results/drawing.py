"""What every chart is made with: its size and colours, formats of figures, and the `Chart` itself."""

import collections
import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import altair as alt
import pandas
import vl_convert

from lottery.experiment import controls
from lottery.experiment.graph import DENSE, TICKET
from lottery.results import frame
from lottery.rundir.run import Run

WIDTH, HEIGHT = 760, 320
COLOURS = (
    *("#3b7dd8", "#e0812b", "#2f9e5f", "#c94f9b", "#8a63d2", "#a0892c", "#d24b4b", "#4aa3a3"),
    *("#8fb8f0", "#f0b98a", "#86cfa5", "#e3a1cc", "#bda8ea", "#cdbb76", "#e99a9a", "#94cccc"),
)
SMALL, LARGE = 12, 13  # sizes of text, in pixels, which is read at 700 pixels and on slides too
PANEL, COLUMNS = 215, 3  # the width of one of several panels, and how many fit beside each other
GREY = "#8a8a8a"
LINE = "#8a8a8a55"
FEW = 12  # masks, which can be told by name in the width of a page
NETWORK = ("network", "family", "mask", "density", "rewind")
ZOOMING = "Drag to move, turn the wheel with Shift held to zoom."
RESOLUTION = 150  # pixels an inch of a PNG
_FORMATS = {
    **dict.fromkeys(("density", "validation", "test", "early_test"), ".2%"),
    **dict.fromkeys(("weights", "kept", "early_step", "step"), ",.0f"),
    "difference": "+.2%",
    **dict.fromkeys(("share", "macs_share"), ".3%"),
    **dict.fromkeys(("epoch", "cost"), ".3~g"),
    **dict.fromkeys(("overlap", "chance"), ".2%"),
    "beyond_chance": "+.1%",
    "runs": "d",
    **dict.fromkeys(("low", "high", "train", "error"), ".2%"),
}


@dataclasses.dataclass(frozen=True)
class Chart:
    """A drawing, and its name in files. Those have a `title` and a `subtitle`, too, which is what a page says around it."""

    name: str
    drawing: alt.TopLevelMixin
    title: str = ""
    subtitle: str = ""

    @functools.cached_property
    def specification(self) -> dict[str, Any]:
        """The Vega-Lite specification, with the data inside: a transparent background, colours visible on light and dark."""
        styled: Any = self.drawing.configure(background="transparent", font="system-ui, sans-serif")
        styled = styled.configure_view(stroke=LINE).configure_title(fontSize=LARGE, subtitleFontSize=SMALL)
        styled = styled.configure_axis(
            gridColor=LINE, domainColor=GREY, tickColor=GREY, labelFontSize=SMALL, titleFontSize=LARGE, titleFontWeight="normal"
        )
        styled = styled.configure_legend(
            labelFontSize=LARGE,
            titleFontSize=LARGE,
            titleFontWeight="normal",
            symbolSize=100,
            orient="top",
            offset=8,
            labelLimit=320,
        )
        return dict(styled.to_dict())

    @functools.cached_property
    def svg(self) -> str:
        title = {"text": self.title, "subtitle": self.subtitle, "anchor": "start", "fontSize": 18, "offset": 12}
        return str(vl_convert.vegalite_to_svg(self.specification | {"background": "white", "title": title}))

    @property
    def png(self) -> bytes:
        return bytes(vl_convert.svg_to_png(self.svg, ppi=RESOLUTION))


@functools.cache
def script() -> str:
    """The JavaScript that draws specifications: Vega, Vega-Lite and Vega-Embed, whole."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def chart_of(rows: pandas.DataFrame, **more: Any) -> alt.Chart:
    return alt.Chart(alt.InlineData(frame.dicts(rows)), **more)


def tooltips(*columns: str, shares: Iterable[str] = ()) -> list[alt.Tooltip]:
    """What is told of a mark when the pointer is on it: numbers in their format, `shares` in per cent, all else as text."""
    forms = {name: _FORMATS.get(name, "") for name in columns} | dict.fromkeys(shares, ".2%")
    return [alt.Tooltip(f"{name}:{'Q' if form else 'N'}", format=form) for name, form in forms.items()]


def zoom(name: str = "zoom") -> alt.Parameter:
    """Moving and zooming; the wheel alone still scrolls the page."""
    return alt.selection_interval(name, bind="scales", zoom="wheel![event.shiftKey]")


def line_dashes(run: Run) -> dict[str, list[int]]:
    """How the lines of networks are dashed."""
    named = [controls.of(name) for family in run.recipe.families.values() for name in family.controls]
    dashes = {one.name: one.dash for one in (*controls.CONTROLS.values(), *named)} | {TICKET: (1, 0), DENSE: (8, 0)}
    return collections.defaultdict(lambda: list(controls.Control.dash), {name: list(dash) for name, dash in dashes.items()})


def masks_across(rows: pandas.DataFrame, width: int = WIDTH) -> tuple[alt.X, alt.Step]:
    """Masks across, from dense to sparse, and a cell width with which they fit `width`."""
    named = rows.sort_values("density", ascending=False, kind="stable")["mask"].unique().tolist()
    x = alt.X("mask:N", title=None).sort(named)
    step = max(12, min(64, width // len(named)))
    return x.axis(labelAngle=0 if step > 7 * max(map(len, named)) else -60), alt.Step(step)
