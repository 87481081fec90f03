"""What a run directory says about its networks and masks: `result.json` and `MASK.json`, each with one writer and one reader.
docs/run-directory.md lists every key. Numbers are exact as JSON has them; metrics, densities and shares are 0 .. 1."""

import re
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import pydantic

from lottery.base import files
from lottery.base.errors import InputError
from lottery.experiment.graph import DENSE
from lottery.experiment.reading import FORMAT
from lottery.pruning.costs import Costs
from lottery.pruning.densities import Kept
from lottery.pruning.interpolation import Distances
from lottery.rundir import wording

# Dense, masks, one mask or network.
_PLACE = re.compile(r".*/(replicate-\d+/(?:train|[^/]+/masks|[^/]+/[^/]+/[^/]+))", re.DOTALL)

pydantic.with_config(pydantic.ConfigDict(extra="ignore"))(Costs)  # older tables have bytes of more forms

_MetricKey = Annotated[str, pydantic.Field(pattern=r"^(validation|test)_[a-z][A-Za-z0-9_]*$")]


class Values(pydantic.BaseModel):
    """Values by key, none but these."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Table(Values):
    """A JSON file of a run directory, which names the folder that it lies in."""

    format: Literal[2] = 2
    folder: str = ""


class Record(Table):
    """A table that stands for files (`outputs`) and says what they were `made_from`: names inside the replicate's folder, each
    with its checksum (sha256); `records` and `network`, their digests. `mask` is the label in the recipe."""

    outputs: dict[str, str] = {}
    made_from: dict[str, str] = {}
    replicate: int
    family: str = ""
    mask: str = ""
    round: int = 0


class Figures(Values, extra="allow"):
    """Losses after `step` steps, and every metric of the task on examples of each split: `validation_rouge1`, `test_rouge1`."""

    __pydantic_extra__: dict[_MetricKey, Annotated[float, pydantic.Field(ge=0, le=1)] | None]

    step: int
    train_loss: float
    validation_loss: float
    test_loss: float

    def metric(self, split: str, name: str) -> float:
        """A metric (0 .. 1) of `validation` or `test`. Raises InputError where the task has none of this name."""
        value = getattr(self, f"{split}_{name}", None)
        if value is None:
            raise InputError(f"there is no {split}_{name} among {', '.join(self.model_dump(exclude_none=True))}")
        return float(value)

    @property
    def metrics(self) -> list[str]:
        """The names of the task's metrics, in its order."""
        known = self.model_dump(exclude={"test_loss"}, exclude_none=True)
        return [key.removeprefix("test_") for key in known if key.startswith("test_")]


class Timing(Values):
    """What may differ between two trainings of the same network: the seconds, evaluation included, and the journal's seal."""

    seconds: float = 0.0
    journal: str = ""


class Result(Record):
    """The result of the training of one network. `metric` is the one that decides. `costs`, `final` and the keys after it are
    None if it did not reach its end; `compact_macs`, for one image of the small network, if it was trained whole."""

    status: Literal["done", "diverged", "failed"]
    reason: str = ""
    variant: str = DENSE
    method: str = ""
    rewind_step: int = 0
    first_step: int = 0
    steps_per_epoch: int
    epochs: float
    step: int | None = None
    kept: Kept | None = None
    costs: Costs | None = None
    training_macs: int | None = None
    finding_macs: int | None = None
    final: Figures | None = None
    least_validation_loss: Figures | None = None
    exact_zeros: int | None = None
    trainable_weights: int | None = None
    constant: bool = False
    compact_macs: int | None = None
    validation_images: int | None = None
    replicas: int | None = None
    xla: bool | None = None
    bundle: int = 1
    place: int = 0
    made_by: list[dict[str, str]] = []
    timing: Timing = Timing()
    metric: str = wording.ACCURACY

    @pydantic.model_validator(mode="after")
    def _decides(self) -> "Result":
        if self.final and not {f"validation_{self.metric}", f"test_{self.metric}"} <= self.final.model_dump().keys():
            raise ValueError(f"its figures have no {self.metric}, which decides")
        return self

    @property
    def is_ended(self) -> bool:
        """Whether the network needs no more training: done, or diverged, which it would do again."""
        return self.status != "failed"

    @property
    def last_reason(self) -> str:
        """The last line of a traceback."""
        return (self.reason.strip().splitlines() or [""])[-1]

    @property
    def pace(self) -> float | None:
        """Seconds that an epoch of its training took; None if it was not trained, but only evaluated."""
        return self.timing.seconds / self.epochs if self.epochs and self.step != self.first_step else None

    def reached(self, split: str) -> float | None:
        """The deciding metric (0 .. 1) on `validation` or `test` at the end; None if it did not reach it."""
        return self.final.metric(split, self.metric) if self.final else None

    def warning(self, least: float) -> str | None:
        """What a user must know, in one line. A layer that keeps a smaller share than `least` has collapsed."""
        collapse = self.kept.warning(least) if self.kept else None
        same = f"it gives every {wording.example(self.metric)} the same answer (collapsed in training)"
        return collapse or (same if self.constant else None)


class Layer(Values):
    """What a mask prunes of one variable: `weights` were left before it, `rate` per cent of them were to be pruned, and `kept`
    are left after it. `threshold` is the linear quantile of the scores that were ranked together. Both are None of a variable
    that is not ranked itself, as one that only reads channels."""

    rate: float | None
    threshold: float | None
    weights: int
    kept: int


class Scores(Values):
    """The scores that were ranked: their number, their ends and their mean."""

    count: int
    min: float
    max: float
    mean: float


class PairRecord(Record):
    """Two trainings of a ticket that differ in the order of examples (`copies`), or the network of the round before and a
    ticket: the error (1 - the deciding metric) on each split, at each of the `shares` of the second network on the straight
    line between both; once with BatchNorm's statistics between theirs, and once with those that it finds anew, where there is
    BatchNorm (`recomputed`). Between rounds also with the first under the second's mask (`projected`, its statistics anew). Of
    the training examples it took so many (`examples`; None: all)."""

    rewind_step: int
    copies: tuple[int, int] | None
    examples: pydantic.PositiveInt | None = None
    shares: list[float] = pydantic.Field(min_length=2)
    errors: dict[str, list[float]]  # by split
    recomputed: dict[str, list[float]] = {}
    projected: dict[str, list[float]] = {}
    distances: Distances


class MaskRecord(Record):
    """A mask: its place in the grids, which network was scored at which step, and what it keeps."""

    rewind_step: int | None
    rate: float
    step: int
    scores: Scores
    threshold: float | None
    pruned: int
    remaining: int
    layers: dict[str, Layer]
    kept: Kept
    costs: Costs


OneTable = TypeVar("OneTable", bound=Table)


def write(path: Path, table: OneTable) -> OneTable:
    """Write `table` with the name of its folder, and return it so."""
    placed = table.model_copy(update={"folder": own_place(path)})
    files.write_json(path, placed.model_dump(mode="json"))
    return placed


def read(path: Path, kind: type[OneTable]) -> OneTable:
    """The table in `path`. Raises InputError if it is damaged, has another format, or was copied from another folder."""
    content = files.read_json(path)
    try:
        table = kind.model_validate(content)
    except pydantic.ValidationError as error:
        known, first = content.get("format", 1), error.errors()[0]
        problem = f"has format {known}, but this version of imp reads format {FORMAT}"
        if known == FORMAT:
            problem = f"is not as it should be ({'.'.join(map(str, first['loc']))}: {first['msg']})"
        raise InputError(f"{path} {problem}: remove it and run its stage again") from None
    if table.folder != own_place(path):
        raise InputError(f"{path} was copied from another folder ({table.folder}): remove {path.parent}")
    return table


def own_place(path: Path) -> str:
    """What the table in `path` calls its folder (of a mask's table, the mask), wherever its run lies: `replicate-1/train`, or
    outside of replicates its name and that of the one above."""
    is_masks = path.parent.name == "masks" and path.stem != "made_with"
    folder = (path.with_suffix("") if is_masks else path.parent).absolute()
    replicate = _PLACE.fullmatch(folder.as_posix())
    return replicate[1] if replicate else "/".join(folder.parts[-2:])
