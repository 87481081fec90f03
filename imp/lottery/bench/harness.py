"""A measurement under way: rows that fail alone, and the table that they end with."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lottery.base.errors import Failed, InputError
from lottery.base.progress import Reporter
from lottery.bench.process import Process
from lottery.bench.sheet import Column, Rows, content, write

if TYPE_CHECKING:
    from lottery.bench.sheet import Figure


@dataclasses.dataclass(kw_only=True)
class Bench:
    """A measurement under way: its common options, its `rows`, the names of those that `failed`, and `closing` lines."""

    name: str
    repeats: int
    quick: bool
    as_json: bool
    out: Path | None
    shared: Process
    reporter: Reporter = dataclasses.field(default_factory=Reporter)
    rows: Rows = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    closing: list[str] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def row(self, name: str) -> Iterator[None]:
        """Say that the row is measured; where that fails, say so, and let the others go on."""
        self.reporter.say(f"measuring {name}")
        try:
            yield
        except (Failed, InputError) as error:
            self.reporter.say(f"failed: {name}: {error}")
            self.failed.append(name)

    def sheet(self, title: str, columns: Sequence[Column], figure: "Figure", *notes: str) -> None:
        """Print what was found, and write it where that was asked for."""
        from lottery.results.tables import print_table

        measured = content(self.name, title, machine(), columns, self.rows, notes)
        if self.as_json:
            print(json.dumps(measured, indent=2))
        elif self.rows:
            print_table(title, [column.heading for column in columns], measured["cells"])
            print(*measured["remarks"], sep="\n")
        if self.out and self.rows:
            write(measured, figure, self.out)
            self.closing.insert(0, f"written to {self.out / self.name}.md, .png and .json")
        if self.closing and not self.as_json:
            print(*self.closing, sep="\n")


def machine() -> dict[str, Any]:
    """What a reader must know of this machine."""
    from lottery.base import environment

    described = environment.describe()
    return {key: described[key] for key in ("python", "packages", "system", "processor", "cores", "gpus", "revision")}
