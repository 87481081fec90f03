"""A sheet as a picture."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lottery.bench.sheet import Bars, Heat, Lines, Sheet

Rows = Sequence[Mapping[str, Any]]

WIDTH = 8.0
BAR_HEIGHT = 0.4


def png(sheet: Sheet) -> bytes:
    """The figure of `sheet`."""
    height = 1.2 + BAR_HEIGHT * len(sheet.rows) if isinstance(sheet.figure, Bars) else 4.5
    figure = Figure(figsize=(WIDTH, height), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    match sheet.figure:
        case Bars():
            _bars(axes, sheet.figure, sheet.rows)
        case Lines():
            headings = {column.name: column.heading for column in sheet.columns}
            _lines(axes, sheet.figure, sheet.rows, headings.get(sheet.figure.series, sheet.figure.series))
        case Heat():
            figure.colorbar(_heat(axes, sheet.figure, sheet.rows), label=sheet.figure.axes[2])
    axes.set_title(sheet.title, fontsize="medium", loc="left", wrap=True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _bars(axes: Axes, bars: Bars, rows: Rows) -> None:
    rows = [row for row in rows if row[bars.value] is not None]
    values = [row[bars.value] for row in rows]
    spread = None
    if bars.low and bars.high:
        spread = [
            [max(0, value - row[bars.low]) for value, row in zip(values, rows, strict=True)],
            [max(0, row[bars.high] - value) for value, row in zip(values, rows, strict=True)],
        ]
    axes.barh([row[bars.label] for row in rows], values, xerr=spread, capsize=3, color="C0", ecolor="0.3")
    axes.invert_yaxis()
    axes.set_xlabel(bars.axis)
    axes.grid(axis="x", alpha=0.3)


def _lines(axes: Axes, lines: Lines, rows: Rows, heading: str) -> None:
    for name in dict.fromkeys(row[lines.series] for row in rows):
        points = [(row[lines.x], row[lines.y]) for row in rows if row[lines.series] == name]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=str(name))
    if lines.target is not None:
        axes.axhline(lines.target, color="0.4", lw=1, ls="--", label="target")
    if all(isinstance(row[lines.x], int) for row in rows):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(lines.axes[0])
    axes.set_ylabel(lines.axes[1])
    axes.grid(alpha=0.3)
    axes.legend(title=heading, fontsize="small", title_fontsize="small")


def _heat(axes: Axes, heat: Heat, rows: Rows) -> ScalarMappable:
    """Returns what the colours mean."""
    xs, ys = (sorted({row[key] for row in rows}) for key in (heat.x, heat.y))
    found = {(row[heat.x], row[heat.y]): row[heat.value] for row in rows}
    values = [[float("nan") if found.get((x, y)) is None else found[x, y] for x in xs] for y in ys]
    image = axes.imshow(values, origin="lower", aspect="auto", cmap="viridis")
    middle = sum(image.get_clim()) / 2
    for (x, y), value in found.items():
        if value is not None:
            colour = "black" if value > middle else "white"
            axes.text(xs.index(x), ys.index(y), format(value, heat.form), ha="center", va="center", color=colour)
    axes.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
    axes.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
    axes.set_xlabel(heat.axes[0])
    axes.set_ylabel(heat.axes[1])
    return image
