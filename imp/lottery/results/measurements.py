"""Reading measurements that `imp bench NAME --out DIR` wrote, for the pages that show them."""

from pathlib import Path

import pydantic

from lottery.base import files
from lottery.base.errors import InputError

# The order of `imp bench --help`.
ORDER = (
    *("limits", "prepare", "feed", "loader", "step", "profile", "ladder", "masks", "updates", "precision", "remat"),
    *("race", "ablation", "grid", "scaling", "thresholds", "fanout", "bundle", "inference"),
)


class Measurement(pydantic.BaseModel, frozen=True):
    """What was measured (`title`), its table as text, what belongs under that (`remarks`), and its figure as a PNG. The
    headings of the table are the values of `columns`."""

    name: str
    title: str
    columns: dict[str, str]
    cells: list[list[str]]
    remarks: list[str]
    picture: bytes = b""


def read(folder: Path) -> tuple[list[Measurement], list[str]]:
    """The measurements in `folder`, in `ORDER`, then any others by name; and a line for each JSON file that is not a
    measurement, is damaged, or lacks its picture."""
    found, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            written = Measurement.model_validate(files.read_json(path))
            found.append(written.model_copy(update={"name": path.stem, "picture": path.with_suffix(".png").read_bytes()}))
        except (InputError, pydantic.ValidationError):
            problems.append(f"{path} is damaged, or no measurement: left out; measure again, or move it elsewhere")
        except OSError as error:
            problems.append(f"{path} is left out ({error.filename}: {error.strerror}): measure again, or move it elsewhere")
    places = {name: place for place, name in enumerate(ORDER)}
    return sorted(found, key=lambda one: (places.get(one.name, len(ORDER)), one.name)), problems
