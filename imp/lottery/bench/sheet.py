"""What a measurement has found: a table, a figure, and the machine; for a terminal, as JSON, and as files of its own."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt

    Drawing = alt.LayerChart | alt.FacetChart

Rows = list[dict[str, Any]]

WIDTH, HEIGHT = 480, 260
BAR = 26  # pixels of height
LABEL = 260  # pixels of width at most
GENERATOR = b'<meta name="generator" content="imp bench">'  # tells our index.html from somebody else's


@dataclasses.dataclass(frozen=True)
class Column:
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


@dataclasses.dataclass(frozen=True)
class Bars:
    """A bar for each row, as long as `value`, with the spread `low` .. `high` where there is one."""

    label: str
    value: str
    axis: str
    low: str | None = None
    high: str | None = None

    def drawing(self, rows: Rows) -> "Drawing":
        import altair as alt

        label = alt.Y(f"{self.label}:N", title=None).sort(None).axis(labelLimit=LABEL)
        base = alt.Chart(alt.InlineData([row for row in rows if row[self.value] is not None])).encode(y=label)
        layers = [base.mark_bar(size=BAR // 2).encode(x=alt.X(f"{self.value}:Q", title=self.axis))]
        if self.low and self.high:
            layers.append(base.mark_rule().encode(x=f"{self.low}:Q", x2=f"{self.high}:Q"))
        return alt.layer(*layers).properties(width=WIDTH, height=alt.Step(BAR))


@dataclasses.dataclass(frozen=True)
class Lines:
    """`y` over `x`, a line for each `series`, which the legend calls `name`; `target` is a dashed line across."""

    x: str
    y: str
    series: str
    axes: tuple[str, str]
    name: str
    target: float | None = None

    def drawing(self, rows: Rows) -> "Drawing":
        import altair as alt

        whole = alt.Axis(tickMinStep=1) if all(isinstance(row[self.x], int) for row in rows) else alt.Axis()
        lines = alt.Chart(alt.InlineData(rows)).encode(
            x=alt.X(f"{self.x}:Q", title=self.axes[0]).axis(whole),
            y=alt.Y(f"{self.y}:Q", title=self.axes[1]).scale(zero=False),
            color=alt.Color(f"{self.series}:N", title=self.name).sort(None),
        )
        layers = [lines.mark_line(point=True)]
        if self.target is not None:
            layers.append(alt.Chart().mark_rule(strokeDash=[6, 4]).encode(y=alt.YDatum(self.target)))
        return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


@dataclasses.dataclass(frozen=True)
class Heat:
    """`value` as a colour, and as a number with one decimal, at (`x`, `y`)."""

    x: str
    y: str
    value: str
    axes: tuple[str, str, str]

    def drawing(self, rows: Rows) -> "Drawing":
        import altair as alt

        values = [row[self.value] for row in rows if row[self.value] is not None]
        base = alt.Chart(alt.InlineData(rows)).transform_filter(f"isValid(datum.{self.value})")
        base = base.encode(
            x=alt.X(f"{self.x}:O", title=self.axes[0]).axis(labelAngle=0),
            y=alt.Y(f"{self.y}:O", title=self.axes[1]).sort("descending"),
        )
        bright = f"datum.{self.value} > {(min(values, default=0) + max(values, default=0)) / 2}"
        number = alt.when(bright).then(alt.value("black")).otherwise(alt.value("white"))
        colour = alt.Color(f"{self.value}:Q", title=self.axes[2]).scale(scheme="viridis", zero=False)
        text = base.mark_text().encode(text=alt.Text(f"{self.value}:Q", format=".1f"), color=number)
        return alt.layer(base.mark_rect().encode(color=colour), text).properties(width=WIDTH, height=HEIGHT)


Figure = Bars | Lines | Heat


@dataclasses.dataclass(frozen=True)
class Sheet:
    """One measurement: the command's `name`, what was measured, on which machine, `rows` of plain values, those `columns` of
    them that a table shows, the `figure`, single figures by name (`extras`), and `notes` without which a reader would take it
    for something else."""

    name: str
    title: str
    machine: Mapping[str, Any]
    columns: Sequence[Column]
    rows: Rows
    figure: Figure
    notes: Sequence[str] = ()
    extras: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """What belongs under the table: the notes, the single figures, the machine."""
        extras = [f"{name.replace('_', ' ')}: {value:.3g}" for name, value in self.extras.items()]
        cores = f"{self.machine['processor']}, {self.machine['cores']} cores, {', '.join(self.machine['gpus']) or 'no GPU'}"
        packages = self.machine["packages"]
        stack = ", ".join(f"{name} {packages[name]}" for name in ("tensorflow", "keras", "numpy") if name in packages)
        return [*self.notes, *extras, f"{cores}; Python {self.machine['python']}, {stack}"]

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text."""
        return [[column.cell(row) for column in self.columns] for row in self.rows]

    def content(self) -> dict[str, Any]:
        """All of it but the figure, for JSON: values as they are (`rows`), and as the table has them (`cells`)."""
        plain = {key: value for key, value in vars(self).items() if key != "figure"}
        headings = {column.name: column.heading for column in self.columns}
        return {**plain, "columns": headings, "cells": self.cells, "remarks": self.remarks}

    def markdown(self) -> str:
        """A page, with the figure beside it."""
        table = [f"| {' | '.join(cells)} |" for cells in (self.headings, ["---"] * len(self.columns), *self.cells)]
        notes = [f"- {remark}" for remark in self.remarks]
        return "\n".join([f"# {self.title}", "", *table, "", *notes, "", f"![{self.title}]({self.name}.png)", ""])

    def png(self) -> bytes:
        """The figure."""
        from lottery.results.charts import Chart

        return Chart(self.name, self.title, "", self.rows, self.figure.drawing(self.rows).properties(title=self.title)).png()


def write(sheet: Sheet, folder: Path) -> list[str]:
    """NAME.md, .png, .json and .html in `folder`, made if missing, and its index.html anew, with all measurements there.
    Returns a line for each file that is in the way of that."""
    from data_prep import files
    from lottery.results import measurements, pages

    folder.mkdir(parents=True, exist_ok=True)
    files.write_bytes(folder / f"{sheet.name}.png", sheet.png())
    files.write_text(folder / f"{sheet.name}.md", sheet.markdown())
    files.write_json(folder / f"{sheet.name}.json", sheet.content())
    every, problems = measurements.read(folder)
    own = [measurement for measurement in every if measurement.name == sheet.name]
    files.write_text(folder / f"{sheet.name}.html", pages.fill("bench/page.html", name=sheet.name, shown=own))
    index = folder / "index.html"
    if index.exists() and GENERATOR not in index.read_bytes():
        return [*problems, f"{index} is none of `imp bench`: left as it is; measure with another --out for a page of all"]
    files.write_text(index, pages.fill("bench/page.html", name=None, shown=every))
    return problems
