"""Reading measurements that `imp bench NAME --out DIR` wrote, for the pages that show them."""

from pathlib import Path

import pydantic

from lottery.base import files
from lottery.base.errors import InputError
from lottery.results.block import Block


class Measurement(pydantic.BaseModel, frozen=True):
    """What was measured (`title`), its table as text, and what belongs under that (`remarks`). The headings of the table are
    the values of `columns`."""

    title: str
    columns: dict[str, str]
    cells: list[list[str]]
    remarks: list[str]


def read(folder: Path) -> tuple[list[Block], list[str]]:
    """The measurements in `folder`, by name; and a line for each JSON file that is not a measurement, is damaged, or lacks its
    picture."""
    found, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            written = Measurement.model_validate(files.read_json(path))
            found.append(_block(written, path.stem, path.with_suffix(".png").read_bytes()))
        except (InputError, pydantic.ValidationError):
            problems.append(f"{path} is damaged, or no measurement: left out; measure again, or move it elsewhere")
        except OSError as error:
            problems.append(f"{path} is left out ({error.filename}: {error.strerror}): measure again, or move it elsewhere")
    return found, problems


def _block(measured: Measurement, name: str, picture: bytes) -> Block:
    table = [dict(zip(measured.columns.values(), line, strict=True)) for line in measured.cells]
    return Block(name, measured.title, table=table, explained="\n\n".join(measured.remarks), picture=picture)
