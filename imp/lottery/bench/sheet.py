"""What a measurement has found: a table, a figure, and the machine; for a terminal, as JSON, and as files of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import altair as alt

    Figure = alt.LayerChart | alt.FacetChart

Rows = list[dict[str, Any]]

WIDTH = 480
BAR = 26  # pixels of height
LABEL = 260  # pixels of width at most


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


def bars(rows: Rows, label: str, value: str, axis: str, spread: bool = False) -> "Figure":
    """A bar for each row, as long as `value`; with its `spread`, from `low` to `high`."""
    import altair as alt

    y = alt.Y(f"{label}:N", title=None).sort(None).axis(labelLimit=LABEL)
    base = alt.Chart(alt.InlineData([row for row in rows if row[value] is not None])).encode(y=y)
    layers = [base.mark_bar(size=BAR // 2).encode(x=alt.X(f"{value}:Q", title=axis))]
    if spread:
        layers.append(base.mark_rule().encode(x="low:Q", x2="high:Q"))
    return alt.layer(*layers).properties(width=WIDTH, height=alt.Step(BAR))


def content(
    name: str, title: str, machine: Mapping[str, Any], columns: Sequence[Column], rows: Rows, notes: Sequence[str]
) -> dict[str, Any]:
    """What the command `name` has found, for JSON: the values of all `rows`, those `columns` of them that a table shows as text
    (`cells`), and what belongs under it (`remarks`): notes, and the machine."""
    cores = f"{machine['processor']}, {machine['cores']} cores, {', '.join(machine['gpus']) or 'no GPU'}"
    versions = [f"{key} {machine['packages'][key]}" for key in ("tensorflow", "keras", "numpy")]
    return {
        "name": name,
        "title": title,
        "machine": machine,
        "columns": {column.name: column.heading for column in columns},
        "rows": rows,
        "notes": notes,
        "cells": [[column.cell(row) for column in columns] for row in rows],
        "remarks": [*notes, f"{cores}; Python {machine['python']}, {', '.join(versions)}"],
    }


def write(measured: Mapping[str, Any], figure: "Figure", folder: Path) -> None:
    """Write NAME.md, .png and .json of a `content` to `folder`, made if missing."""
    from lottery.base import files
    from lottery.results import markdown
    from lottery.results.drawing import Chart

    name, title = measured["name"], measured["title"]
    chart = Chart(name, figure.properties(title=title))
    table = [dict(zip(measured["columns"].values(), cells, strict=True)) for cells in measured["cells"]]
    text = [f"# {title}", markdown.table(table), markdown.bullets(measured["remarks"]), f"![{title}]({name}.png)"]
    folder.mkdir(parents=True, exist_ok=True)
    files.write_bytes(folder / f"{name}.png", chart.png)
    files.write_text(folder / f"{name}.md", "\n\n".join(text) + "\n")
    files.write_json(folder / f"{name}.json", measured)
