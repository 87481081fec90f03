"""Tables for people. They are as wide as they need to be, because a figure that is cut off says nothing."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDEST = 10_000


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """The first column to the left, figures to the right; on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = max(console.width, console.measure(table, options=console.options.update(width=WIDEST)).maximum)
    console.print(table)


def percent(share: float | None) -> str:
    """A share of 1 as per cent; nothing where it is not known."""
    return "" if share is None else f"{share:.2%}"


def whole(count: int | None) -> str:
    """A count; nothing where it is not known."""
    return "" if count is None else f"{count:,}"


def times(factor: float | None) -> str:
    """How many times as much; nothing where it is not known."""
    return "" if factor is None else f"{factor:.3g}x"


def points(figure: float | None, form: str = "{:.2f}", scale: int = 100) -> str:
    """A figure in per cent; nothing where it is not known."""
    return "" if figure is None else form.format(figure * scale)


def interval(mean: float | None, low: float | None, high: float | None, form: str = "{:+.2f}", scale: int = 100) -> str:
    """A difference in points with its bounds in brackets, as far as they are known."""
    bounds = "" if low is None or high is None else f" ({points(low, form, scale)} .. {points(high, form, scale)})"
    return points(mean, form, scale) + bounds


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows as CSV under a line of their columns; what else a row has is left out, what it lacks stays empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
