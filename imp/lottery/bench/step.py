"""`imp bench step`: the training loop beside Keras's `fit`, network by network, each in a process of its own."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from data_prep.errors import Failed, InputError
from lottery.bench import apart, measure
from lottery.bench.parts.noise import shape_of
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.progress import Reporter
from lottery.recipe import Recipe, depends, resolve

IMAGE_BYTES = 1 << 26  # of noise that is held resident; Keras has the same as float32


@dataclasses.dataclass(frozen=True)
class Case:
    """What to measure: a network, `alpha` None where it knows none, on images of `size` x `size`, in float32 or mixed
    `precision`, with rematerialisation or without; with `threads` intra-op threads, in `repeats` runs of each contender."""

    model: str
    alpha: float | None
    size: int
    classes: int
    batch: int
    precision: str
    remat: bool
    threads: int
    repeats: int

    @property
    def title(self) -> str:
        named = [self.model] + ([] if self.alpha is None else [f"alpha {self.alpha:g}"])
        kind = [self.precision] + ["remat"] * self.remat
        return f"{' '.join(named)}, {self.size}x{self.size}, batch {self.batch}, {' '.join(kind)}"

    @property
    def images(self) -> int:
        """How many are made up."""
        return IMAGE_BYTES // math.prod(shape_of(self.size))

    def recipe(self) -> Recipe:
        """SGD with Nesterov momentum and L2 decay, no augmentation. Raises InputError for what no recipe can say."""
        train = {
            "batch": self.batch,
            "precision": self.precision,
            "remat": self.remat,
            "threads": self.threads,
            "devices": 1,
            "learning_rate": 1e-3,  # there is nothing to learn, and nothing may diverge
            "schedule": "constant",
            "warmup": "0",
        }
        model = {"name": self.model} | ({} if self.alpha is None else {"alpha": self.alpha})
        return resolve({"model": model, "data": {"size": self.size, "crop": 0}, "train": train}, origin="bench step")


@dataclasses.dataclass(frozen=True)
class Row(Case):
    """A case and what was found, of our loop under a random mask of half of each kernel unless the name says otherwise.

    Rates are of the median run, `low` and `high` of the slowest and the fastest. `peak_memory_bytes` is what building and
    training took at most, without the images. `mask_overhead` is the share of time that a mask adds, in the median of pairs
    of runs; `control_overhead` is the same between two trainers without a mask, and so what chance makes of it.
    `keras_ratio` is our rate over that of `fit`; `peak_share` is the arithmetic of the convolutions and dense layers in a
    second over that of a large float32 matrix product (above 1 where a kernel finds a way that needs less, such as Winograd's).
    """

    images_per_s: float
    low: float
    high: float
    ms_per_step: float
    peak_memory_bytes: int
    keras_fit_images_per_s: float
    keras_ratio: float
    mask_overhead: float
    control_overhead: float
    peak_share: float


COLUMNS = (
    Column("title", ""),
    Column("images_per_s", "images/s"),
    Column("low", "slowest"),
    Column("high", "fastest"),
    Column("ms_per_step", "ms/step", ",.2f"),
    Column("peak_memory_bytes", "peak bytes", ".3g"),
    Column("keras_fit_images_per_s", "Keras fit"),
    Column("keras_ratio", "ratio", ".2f"),
    Column("mask_overhead", "mask", "+.1%"),
    Column("control_overhead", "control", "+.1%"),
    Column("peak_share", "of matmul", ".0%"),
)


@dataclasses.dataclass(frozen=True)
class Standard:
    """A network as this project trains it."""

    model: str
    alpha: float = 1.0
    size: int = 32
    batch: int = 128


STANDARD = (
    Standard("mobilenet_v2", 1.0, 64, 96),
    Standard("mobilenet_v2", 0.35, 32, 128),
    Standard("resnet20", size=32, batch=128),
    Standard("lenet_300_100", size=28, batch=60),
)


def cases(
    models: Sequence[str],
    alpha: float | None,
    size: int | None,
    classes: int,
    batches: Sequence[int],
    precisions: Sequence[str],
    remat: bool,
    threads: int,
    repeats: int,
) -> list[Case]:
    """The table: `models`, or else the standard rows, in each of `batches` and `precisions`, and with `remat` so as well.

    What is not given is as in the model's first standard row. Raises InputError for what cannot be measured.
    """
    first = {standard.model: standard for standard in reversed(STANDARD)}
    given: dict[str, Any] = {key: value for key, value in (("alpha", alpha), ("size", size)) if value is not None}
    table = []
    for standard in [first.get(model, Standard(model)) for model in models] or STANDARD:
        row = dataclasses.replace(standard, **given)
        for batch in batches or [row.batch]:
            for precision, again in itertools.product(precisions or ["float32"], [False, True] if remat else [False]):
                case = Case(row.model, row.alpha, row.size, classes, batch, precision, again, threads, repeats)
                table.append(_checked(case))
    return table


def _checked(case: Case) -> Case:
    recipe = case.recipe()
    if case.batch > case.images:
        raise InputError(f"--batch {case.batch} is more than the {case.images} images of {case.size}x{case.size}: lower it")
    return case if "model.alpha" in depends(recipe, "train") else dataclasses.replace(case, alpha=None)


def bench_step(table: Sequence[Case], reporter: Reporter) -> tuple[Sheet, list[str]]:
    """The rows of those cases that could be measured, and the titles of the others, of each of which a line says why not."""
    rows, failed = [], []
    for case in table:
        reporter.say(f"measuring {case.title}")
        try:
            rows.append({"title": case.title, **apart.call("lottery.bench.trials.step:measure_case", case=vars(case))})
        except Failed as error:
            reporter.say(f"failed: {case.title}: {error}")
            failed.append(case.title)
    notes = [
        "mask: time that a mask adds; control: the same between two networks without one, which is noise",
        f"{measure.medians(table[0].repeats)}, {table[0].threads} intra-op threads",
    ]
    title = "Training steps, a random half of each kernel pruned"
    figure = Bars("title", "keras_ratio", "images a second, by those of Keras's fit")
    return Sheet("step", title, measure.machine(), COLUMNS, rows, figure, notes), failed
