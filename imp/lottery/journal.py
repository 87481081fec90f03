"""metrics.jsonl: one JSON object a line, one line an evaluation, each line on disk before the next step is taken."""

import json
import os
from pathlib import Path
from typing import Any

from data_prep import files
from data_prep.errors import InputError

Row = dict[str, Any]


def append(path: Path, row: Row) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(row, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Row]:
    """The rows written so far; a last line cut short by a crash is left out. No file is no rows.

    Raises InputError with the file's name when another line is damaged.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): remove {path.parent} and run its stage again") from None


def rewind(path: Path, step: int) -> list[Row]:
    """Keep only the rows up to `step`: a resumed training writes the later ones again. Returns the rows kept."""
    rows = [row for row in read(path) if row["step"] <= step]
    files.write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return rows
