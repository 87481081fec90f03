"""What a run directory says about its networks and masks: `result.json` and `MASK.json`, each with one writer and one reader.

docs/run-directory.md lists every key. Numbers are exact as JSON has them; accuracies, densities and shares are 0 .. 1.
"""

from pathlib import Path
from typing import Literal, TypeVar

import pydantic

from lottery.experiment.graph import DENSE
from lottery.pruning.densities import Kept
from lottery.rundir import identity

Status = Literal["done", "diverged", "failed"]


class Record(identity.Table):
    """A table that stands for files: `outputs` are these files, `made_from` the files that they were made from, by name
    inside the replicate's folder, each with its checksum (sha256). `made_from` also has the digests of the `records` and of
    the `network`."""

    outputs: dict[str, str] = pydantic.Field({})
    made_from: dict[str, str] = pydantic.Field({})


class Figures(pydantic.BaseModel):
    """Losses and accuracies after `step` steps; the first five answers count where there are more classes."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    step: int
    train_loss: float
    validation_loss: float
    validation_accuracy: float
    validation_top5_accuracy: float | None = None
    test_loss: float
    test_accuracy: float
    test_top5_accuracy: float | None = None


class Timing(pydantic.BaseModel):
    """What may differ between two trainings of the same network: the seconds, evaluation included, and the checksum of the
    last line of the journal."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    seconds: float = 0.0
    journal: str = ""


class Result(Record):
    """The result of the training of one network. `final` and the keys after it are missing if it did not reach its end."""

    status: Status
    reason: str = ""
    replicate: int
    variant: str = DENSE
    family: str = ""
    method: str = ""
    mask: str = ""
    round: int = 0
    rewind_step: int = 0
    first_step: int = 0
    steps_per_epoch: int
    epochs: float
    step: int | None = None
    kept: Kept | None = None
    final: Figures | None = None
    least_validation_loss: Figures | None = None
    exact_zeros: int | None = None
    trainable_weights: int | None = None
    constant: bool = False
    validation_images: int | None = None
    replicas: int | None = None
    xla: bool | None = None
    made_by: list[dict[str, str]] = pydantic.Field([])
    timing: Timing = Timing()

    @property
    def is_ended(self) -> bool:
        """Whether the network needs no more training: done, or diverged, which it would do again."""
        return self.status != "failed"

    @property
    def last_reason(self) -> str:
        """The last line of a traceback."""
        return (self.reason.strip().splitlines() or [""])[-1]

    def warning(self, least: float) -> str | None:
        """What a user must know about the network, in one line. A layer that keeps a smaller share than `least` has
        collapsed."""
        collapse = self.kept.warning(least) if self.kept else None
        return collapse or ("it gives every image the same answer (collapsed in training)" if self.constant else None)


class Layer(pydantic.BaseModel):
    """What a mask prunes of one variable: `weights` were left before it, `rate` per cent of them were to be pruned, and
    `kept` are left after it. `threshold` is the linear quantile of the scores that were ranked together."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    rate: float
    threshold: float
    weights: int
    kept: int


class Scores(pydantic.BaseModel):
    """The scores that were ranked: their number, their ends and their mean."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    count: int
    min: float
    max: float
    mean: float


class MaskRecord(Record):
    """A mask: its place in the grids, which network was scored at which step, and what it keeps."""

    replicate: int
    family: str
    mask: str
    round: int
    rewind_step: int | None
    rate: float
    step: int
    scores: Scores
    threshold: float | None
    pruned: int
    remaining: int
    layers: dict[str, Layer]
    kept: Kept


OneRecord = TypeVar("OneRecord", bound=Record)


def write(path: Path, record: OneRecord) -> OneRecord:
    """Write `record` with the name of its folder, and return it so."""
    return identity.write(path, record)


def read(path: Path, kind: type[OneRecord]) -> OneRecord:
    """The record in `path`. Raises InputError where it is damaged, of another format, or copied from another folder."""
    return identity.read(path, kind)
