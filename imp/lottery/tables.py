"""Tables for a terminal, or for a log file, where they are as wide as they need to be."""

import csv
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LOG_WIDTH = 200


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """The first column to the left, figures to the right; on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else LOG_WIDTH
    Console(width=width, highlight=False, markup=False).print(table)


def percent(share: float | None) -> str:
    """A share of 1 as per cent; nothing where it is not known."""
    return "" if share is None else f"{share:.2%}"


def count_of(count: int, noun: str) -> str:
    """Such as `1 thread`, `2 threads`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows as CSV under a line of their columns; what else a row has is left out, what it lacks stays empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
