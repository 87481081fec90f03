"""Grids a user writes: quantiles (`60..80:5,85..99`), points of training (`0,10it,1ep`), and the jobs they span."""

import dataclasses
import itertools
import re
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from data_prep.errors import InputError

Variant = Literal["ticket", "reinit", "shuffle", "random"]
FROM_SCRATCH: tuple[Variant, ...] = ("reinit", "random")


def parse_quantiles(text: str) -> list[Fraction]:
    """Quantiles in per cent, ascending, exact: `90`, `97.5`, `60..99`, `60..80:5`, joined by commas.

    Raises InputError when the grid is empty, leaves 0..100, descends or names a quantile twice.
    """
    quantiles = [quantile for part in text.split(",") for quantile in _quantile_range(part.strip(), text)]
    for earlier, later in itertools.pairwise(quantiles):
        if later <= earlier:
            raise InputError(
                f"quantiles {text!r}: {quantile_name(later)} comes after {quantile_name(earlier)}, "
                "but they must ascend, each named once"
            )
    return quantiles


def _quantile_range(part: str, text: str) -> list[Fraction]:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:\.\.(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?))?)?", part)
    if not match:
        raise InputError(f"quantiles {text!r}: {part!r} is not a quantile or a range; write 90, 60..99 or 60..80:5")
    low = Fraction(match[1])
    high = Fraction(match[2]) if match[2] else low
    step = Fraction(match[3]) if match[3] else Fraction(1)
    if not 0 <= low <= high <= 100:
        raise InputError(f"quantiles {text!r}: {part!r} must ascend within 0..100")
    if step == 0:
        raise InputError(f"quantiles {text!r}: the step of {part!r} is 0")
    return [low + step * index for index in range(int((high - low) / step) + 1)]


def quantile_name(quantile: Fraction) -> str:
    """`90`, `97.5`: the quantile in decimals, exact, as it is written in file names."""
    return f"{Decimal(quantile.numerator) / Decimal(quantile.denominator):f}"


@dataclasses.dataclass(frozen=True)
class Point:
    """A point of training, as written: `0`, `10it` (iterations) or `1ep` (epochs, perhaps a fraction of one)."""

    amount: Fraction
    unit: Literal["it", "ep"]

    def step(self, steps_per_epoch: int) -> int:
        """The number of optimizer steps taken by then."""
        return int(self.amount) if self.unit == "it" else round(self.amount * steps_per_epoch)

    def epochs(self, steps_per_epoch: int | None) -> Fraction:
        """The same in epochs; iterations count as none of an epoch while its length is unknown."""
        if self.unit == "ep":
            return self.amount
        return self.amount / steps_per_epoch if steps_per_epoch else Fraction(0)

    def __str__(self) -> str:
        return f"{quantile_name(self.amount)}{self.unit}" if self.amount else "0"


def parse_point(text: str) -> Point:
    match = re.fullmatch(r"(\d+)it|(\d+(?:\.\d+)?)ep|0", text.strip())
    if not match:
        raise InputError(f"{text.strip()!r} is not a point of training: write 0, 10it (iterations) or 2ep (epochs)")
    return Point(Fraction(match[2]), "ep") if match[2] else Point(Fraction(match[1] or 0), "it")


def parse_points(text: str) -> list[Point]:
    """Points of training joined by commas: `0,10it,1ep,2ep`. Raises InputError on an empty list or a malformed point."""
    return [parse_point(part) for part in text.split(",")]


@dataclasses.dataclass(frozen=True)
class Job:
    """One network to train under a mask.

    `step` is the snapshot its weights come from; a control that starts from scratch (`reinit`, `random`) has step 0.
    """

    replicate: int
    quantile: Fraction
    step: int
    variant: Variant

    def __str__(self) -> str:
        return f"replicate-{self.replicate} q{quantile_name(self.quantile)}-step-{self.step:06d} {self.variant}"


def jobs(
    replicates: int,
    quantiles: Iterable[Fraction],
    steps: Iterable[int],
    controls: Iterable[Variant] = (),
    control_quantiles: Iterable[Fraction] = (),
) -> list[Job]:
    """Every network to train, longest first: a ticket per (replicate, quantile, step), and the controls of some quantiles.

    `shuffle` accompanies each ticket; `reinit` and `random` start from fresh weights whatever the ticket was rewound to,
    so each quantile has one.
    """
    quantiles, steps = list(quantiles), list(steps)
    chosen = [quantile for quantile in control_quantiles if quantile in quantiles]
    found = []
    for replicate in range(1, replicates + 1):
        found += [Job(replicate, quantile, step, "ticket") for quantile in quantiles for step in steps]
        for control in controls:
            starts = [0] if control in FROM_SCRATCH else steps
            found += [Job(replicate, quantile, step, control) for quantile in chosen for step in starts]
    return sorted(found, key=lambda job: job.step)
