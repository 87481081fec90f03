"""What a measurement has found: a table, a figure, and the machine; for a terminal, as JSON, and as files of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import altair as alt

    Figure = alt.LayerChart | alt.FacetChart

Rows = list[dict[str, Any]]

WIDTH, HEIGHT = 480, 260
BAR = 26  # pixels of height
LABEL = 260  # pixels of width at most
GENERATOR = b'<meta name="generator" content="imp bench">'  # tells our index.html from somebody else's


class Column(NamedTuple):
    """A value of each row under a heading; a number is written in `form`, None as nothing."""

    name: str
    heading: str
    form: str = ",.0f"

    def cell(self, row: Mapping[str, Any]) -> str:
        value = row[self.name]
        if isinstance(value, bool):
            return "yes" if value else "no"
        return "" if value is None else value if isinstance(value, str) else format(value, self.form)


def rate(name: str, heading: str, form: str = ",.0f") -> list[Column]:
    """The columns of `timing.spread` where more is faster."""
    return [Column(name, heading, form), Column("low", "slowest", form), Column("high", "fastest", form)]


def duration(name: str, heading: str, form: str) -> list[Column]:
    """The columns of `timing.spread` where less is faster."""
    return [Column(name, heading, form), Column("low", "fastest", form), Column("high", "slowest", form)]


def bars(rows: Rows, label: str, value: str, axis: str, spread: bool = False) -> "Figure":
    """A bar for each row, as long as `value`; with its `spread`, from `low` to `high`."""
    import altair as alt

    y = alt.Y(f"{label}:N", title=None).sort(None).axis(labelLimit=LABEL)
    base = alt.Chart(alt.InlineData([row for row in rows if row[value] is not None])).encode(y=y)
    layers = [base.mark_bar(size=BAR // 2).encode(x=alt.X(f"{value}:Q", title=axis))]
    if spread:
        layers.append(base.mark_rule().encode(x="low:Q", x2="high:Q"))
    return alt.layer(*layers).properties(width=WIDTH, height=alt.Step(BAR))


def lines(rows: Rows, x: str, y: str, series: str, axes: tuple[str, str], legend: str, target: float | None = None) -> "Figure":
    """`y` over `x`, a line for each `series`; `target` is a dashed line across."""
    import altair as alt

    whole = alt.Axis(tickMinStep=1) if all(isinstance(row[x], int) for row in rows) else alt.Axis()
    base = alt.Chart(alt.InlineData(rows)).encode(
        x=alt.X(f"{x}:Q", title=axes[0]).axis(whole),
        y=alt.Y(f"{y}:Q", title=axes[1]).scale(zero=False),
        color=alt.Color(f"{series}:N", title=legend).sort(None),
    )
    layers = [base.mark_line(point=True)]
    if target is not None:
        layers.append(alt.Chart().mark_rule(strokeDash=[6, 4]).encode(y=alt.YDatum(target)))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def heat(rows: Rows, x: str, y: str, value: str, axes: tuple[str, str, str]) -> "Figure":
    """`value` as a colour, and as a number with one decimal, at (`x`, `y`)."""
    import altair as alt

    values = [row[value] for row in rows if row[value] is not None]
    base = alt.Chart(alt.InlineData(rows)).transform_filter(f"isValid(datum.{value})")
    base = base.encode(x=alt.X(f"{x}:O", title=axes[0]).axis(labelAngle=0), y=alt.Y(f"{y}:O", title=axes[1]).sort("descending"))
    bright = f"datum.{value} > {(min(values, default=0) + max(values, default=0)) / 2}"
    number = alt.when(bright).then(alt.value("black")).otherwise(alt.value("white"))
    colour = alt.Color(f"{value}:Q", title=axes[2]).scale(scheme="viridis", zero=False)
    text = base.mark_text().encode(text=alt.Text(f"{value}:Q", format=".1f"), color=number)
    return alt.layer(base.mark_rect().encode(color=colour), text).properties(width=WIDTH, height=HEIGHT)


def content(
    name: str,
    title: str,
    machine: Mapping[str, Any],
    columns: Sequence[Column],
    rows: Rows,
    notes: Sequence[str],
    extras: Mapping[str, float],
) -> dict[str, Any]:
    """What the command `name` has found, for JSON: the values of all `rows`, those `columns` of them that a table shows as text
    (`cells`), and what belongs under it (`remarks`): notes, single figures (`extras`), the machine."""
    single = [f"{key.replace('_', ' ')}: {value:.3g}" for key, value in extras.items()]
    cores = f"{machine['processor']}, {machine['cores']} cores, {', '.join(machine['gpus']) or 'no GPU'}"
    versions = [f"{key} {machine['packages'][key]}" for key in ("tensorflow", "keras", "numpy")]
    return {
        "name": name,
        "title": title,
        "machine": machine,
        "columns": {one.name: one.heading for one in columns},
        "rows": rows,
        "notes": notes,
        "extras": extras,
        "cells": [[column.cell(row) for column in columns] for row in rows],
        "remarks": [*notes, *single, f"{cores}; Python {machine['python']}, {', '.join(versions)}"],
    }


def write(found: Mapping[str, Any], figure: "Figure", folder: Path) -> list[str]:
    """NAME.md, .png, .json and .html of a `content` in `folder`, made if missing, and its index.html anew, with all that was
    measured there. Returns a line for each file that is in the way of that."""
    from lottery.base import files
    from lottery.results import measurements, pages
    from lottery.results.drawing import Chart

    name, title = found["name"], found["title"]
    chart = Chart(name, title, "", {}, figure.properties(title=title))
    table = [list(found["columns"].values()), ["---"] * len(found["columns"]), *found["cells"]]
    text = [f"| {' | '.join(cells)} |" for cells in table]
    page = [f"# {title}", "", *text, "", *(f"- {remark}" for remark in found["remarks"]), "", f"![{title}]({name}.png)", ""]
    folder.mkdir(parents=True, exist_ok=True)
    files.write_bytes(folder / f"{name}.png", chart.png)
    files.write_text(folder / f"{name}.md", "\n".join(page))
    files.write_json(folder / f"{name}.json", found)
    every, problems = measurements.read(folder)
    own = [measurement for measurement in every if measurement.name == name]
    files.write_text(folder / f"{name}.html", pages.fill("bench/page.html", name=name, shown=own))
    index = folder / "index.html"
    if index.exists() and GENERATOR not in index.read_bytes():
        return [*problems, f"{index} is none of `imp bench`: left as it is; measure with another --out for a page of all"]
    files.write_text(index, pages.fill("bench/page.html", name=None, shown=every))
    return problems
