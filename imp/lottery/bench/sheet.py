"""What a measurement has found: a table, a figure, and the machine; for a terminal, as JSON, and as files of its own."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep import files

GENERATOR = b'<meta name="generator" content="imp bench">'  # tells our index.html from somebody else's


@dataclasses.dataclass(frozen=True)
class Column:
    """A value of each row under a heading; a number is written in `form`, None as nothing."""

    name: str
    heading: str
    form: str = ",.0f"

    def cell(self, row: Mapping[str, Any]) -> str:
        value = row[self.name]
        if value is None:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value if isinstance(value, str) else format(value, self.form)


@dataclasses.dataclass(frozen=True)
class Bars:
    """A bar for each row, as long as `value`, with the spread `low` .. `high` where there is one."""

    label: str
    value: str
    axis: str
    low: str | None = None
    high: str | None = None


@dataclasses.dataclass(frozen=True)
class Lines:
    """`y` over `x`, a line for each `series`."""

    x: str
    y: str
    series: str
    axes: tuple[str, str]
    target: float | None = None


@dataclasses.dataclass(frozen=True)
class Heat:
    """`value` as a colour at (`x`, `y`)."""

    x: str
    y: str
    value: str
    axes: tuple[str, str, str]
    form: str = ".1f"


@dataclasses.dataclass(frozen=True)
class Sheet:
    """One measurement: the command's `name`, what was measured, on which machine, `rows` of plain values, those `columns` of
    them that a table shows, the `figure`, single figures by name (`extras`), and `notes` without which a reader would take it
    for something else."""

    name: str
    title: str
    machine: Mapping[str, Any]
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    figure: Bars | Lines | Heat
    notes: Sequence[str] = ()
    extras: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """What belongs under the table: the notes, the single figures, the machine."""
        extras = [f"{name.replace('_', ' ')}: {value:.3g}" for name, value in self.extras.items()]
        return [*self.notes, *extras, self._machine]

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text."""
        return [[column.cell(row) for column in self.columns] for row in self.rows]

    @property
    def _machine(self) -> str:
        gpus = ", ".join(self.machine["gpus"]) or "no GPU"
        packages = self.machine["packages"]
        stack = ", ".join(f"{name} {packages[name]}" for name in ("tensorflow", "keras", "numpy") if name in packages)
        return f"{self.machine['processor']}, {self.machine['cores']} cores, {gpus}; Python {self.machine['python']}, {stack}"

    def content(self) -> dict[str, Any]:
        """All of it but the figure, for JSON: values as they are (`rows`), and as the table has them (`cells`)."""
        return {
            "name": self.name,
            "title": self.title,
            "machine": self.machine,
            "columns": {column.name: column.heading for column in self.columns},
            "rows": self.rows,
            "extras": self.extras,
            "notes": self.notes,
            "cells": self.cells,
            "remarks": self.remarks,
        }

    def markdown(self) -> str:
        """A page, with the figure beside it."""
        table = [f"| {' | '.join(cells)} |" for cells in (self.headings, ["---"] * len(self.columns), *self.cells)]
        notes = [f"- {remark}" for remark in self.remarks]
        return "\n".join([f"# {self.title}", "", *table, "", *notes, "", f"![{self.title}]({self.name}.png)", ""])


def write(sheet: Sheet, folder: Path) -> list[str]:
    """NAME.md, .png, .json and .html in `folder`, made if missing, and its index.html anew, with all measurements there.
    Returns a line for each file that is in the way of that."""
    from lottery import pages
    from lottery.bench import drawing  # matplotlib, which is slow to load
    from lottery.results import measurements

    folder.mkdir(parents=True, exist_ok=True)
    files.write_bytes(folder / f"{sheet.name}.png", drawing.png(sheet))
    files.write_text(folder / f"{sheet.name}.md", sheet.markdown())
    files.write_json(folder / f"{sheet.name}.json", sheet.content())
    found, problems = measurements.read(folder)
    own = next(measurement for measurement in found if measurement.name == sheet.name)
    files.write_text(folder / f"{sheet.name}.html", pages.fill("bench/sheet.html", measurement=own))
    index = folder / "index.html"
    if index.exists() and GENERATOR not in index.read_bytes():
        return [*problems, f"{index} is none of `imp bench`: left as it is; measure with another --out for a page of all"]
    files.write_text(index, pages.fill("bench/index.html", found=found))
    return problems
