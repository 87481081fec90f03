"""metrics.jsonl: one line of JSON per evaluation. Each line is on disk before the next training step. Its last key, `sha256`,
seals it and all lines before it: it is the sha256 of the seal before (none before the first) and of the line without its own. A
line that was changed, lost or added is found by the next seal, the last of which is kept elsewhere."""

import json
import os
import re
from pathlib import Path
from typing import Any

from lottery.base import files
from lottery.base.errors import InputError

Row = dict[str, Any]

_SEALED = re.compile(r'(\{.*), "sha256": "([0-9a-f]{64})"\}')


def append(path: Path, row: Row, after: str) -> str:
    """Append `row` after the line whose seal is `after` (empty before the first line). Returns the seal of the new line."""
    files.check_held()
    content = json.dumps(row, allow_nan=False)[:-1]
    seal = _seal(content, after)
    with open(path, "a") as file:
        file.write(f'{content}, "sha256": "{seal}"}}\n')
        file.flush()
        os.fsync(file.fileno())
    return seal


def read(path: Path) -> list[Row]:
    """The rows written so far (none in a missing file); a last line that a crash cut short is left out. Raises InputError with
    the file's name if any other line is damaged, or a line before it is missing."""
    return read_sealed(path)[0]


def read_sealed(path: Path) -> tuple[list[Row], str]:
    """The rows as `read` gives them, and the seal of the last; empty where there is none."""
    lines = _lines(path)
    return [row for _, row, _ in lines], lines[-1][2] if lines else ""


def rewind(path: Path, step: int, seal: str | None = None) -> tuple[list[Row], str]:
    """Keep only the rows up to `step`: a resumed training writes the later ones again. Returns the rows kept and the last one's
    seal. Raises InputError as `read` does, and where that is not `seal`, if one is given: rows have been lost."""
    kept = [(line, row, own) for line, row, own in _lines(path) if row["step"] <= step]
    last = kept[-1][2] if kept else ""
    if seal is not None and last != seal:
        raise InputError(f"{path} lacks rows that its training wrote up to step {step}: {_remedy(path)}")
    files.write_text(path, "".join(f"{line}\n" for line, *_ in kept))
    return [row for _, row, _ in kept], last


def _lines(path: Path) -> list[tuple[str, Row, str]]:
    """Lines, their rows and their seals."""
    found: list[tuple[str, Row, str]] = []
    *lines, _ = path.read_bytes().decode(errors="replace").split("\n") if path.exists() else [""]
    seal = ""
    for number, line in enumerate(lines, 1):
        sealed = _SEALED.fullmatch(line)
        if not sealed or _seal(sealed[1], seal) != sealed[2]:
            raise InputError(f"{path} is damaged in line {number}, or lacks lines before it: {_remedy(path)}")
        seal = sealed[2]
        found.append((line, json.loads(sealed[1] + "}"), seal))
    return found


def _seal(content: str, after: str) -> str:
    return files.sha256((after + content).encode())


def _remedy(path: Path) -> str:
    return f"remove {path.parent} and run its stage again"
