"""What the report is made of: a block for each of its parts, from which page, Markdown, CSV and pictures are written alike."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas

if TYPE_CHECKING:
    from lottery.results.drawing import Chart
    from lottery.results.findings import Findings

Cells = dict[str, str]  # a line of a table, by heading
Section = Callable[["Findings"], "Block | None"]


@dataclasses.dataclass(frozen=True)
class Block:
    """One part of the report, laid out in the order of its fields."""

    name: str
    """Its address in the page."""
    title: str
    sentences: Sequence[str] = ()
    charts: "Sequence[Chart]" = ()
    caption: str = ""
    """Of the charts: Markdown, which has none, leaves it out."""
    table: Sequence[Cells] = ()
    explained: str = ""
    """Paragraphs with an empty line between them; here and in `sentences`, commands and keys are in backticks."""
    frames: Mapping[str, pandas.DataFrame] = dataclasses.field(default_factory=dict)
    """What `charts` and `table` show, in full: each, unless it is empty, is a CSV file of its name."""
    marks: Sequence[str] = ()
    """How the page marks each line of the table: a class of report.html."""

    @property
    def csv(self) -> dict[str, pandas.DataFrame]:
        """The frames that are written, by the names of their files."""
        return {f"{name}.csv": frame for name, frame in self.frames.items() if len(frame)}

    @property
    def files(self) -> list[str]:
        """The names of the files beside the page."""
        return [*(f"{chart.name}.{kind}" for chart in self.charts for kind in ("svg", "png")), *self.csv]
