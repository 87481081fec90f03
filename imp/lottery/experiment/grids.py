"""Grids as a user writes them: quantiles (`60..80:5,85..99`), rounds (`3,7,9..18:3`), points of training (`0,10it,1ep`)."""

import dataclasses
import fnmatch
import itertools
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Literal, TypeVar

from data_prep.errors import InputError

MOST = 1_000  # values in a grid
Default = TypeVar("Default")
_NUMBER = r"\d{1,12}(?:\.\d{1,12})?"  # of which floats, in which results keep quantiles, hold every digit


def parse_quantiles(text: str) -> list[Fraction]:
    """Quantiles in per cent, ascending, exact to twelve decimals: `90`, `97.5`, `60..99`, `60..80:5`, joined by commas.

    Raises InputError when the grid is empty, leaves 0..100, descends, names a quantile twice, or more than `MOST` of them.
    """
    ranges = [_quantile_range(part.strip(), text) for part in _parts(text)]
    if sum(count for *_, count in ranges) > MOST:
        raise InputError(f"quantiles {text!r}: more than {MOST:,} values: write a coarser grid")
    quantiles = [low + step * index for low, step, count in ranges for index in range(count)]
    for earlier, later in itertools.pairwise(quantiles):
        if later <= earlier:
            raise InputError(
                f"quantiles {text!r}: {quantile_name(later)} comes after {quantile_name(earlier)}, "
                "but they must ascend, each named once"
            )
    return quantiles


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if len(parts) > MOST:
        raise InputError(f"a grid of {len(parts):,} values, starting with {parts[0]}, is too long: write at most {MOST:,}")
    return parts


def _quantile_range(part: str, text: str) -> tuple[Fraction, Fraction, int]:
    """The lowest quantile of a range, its step, and how many there are."""
    match = re.fullmatch(rf"({_NUMBER})(?:\.\.({_NUMBER})(?::({_NUMBER}))?)?", part)
    if not match:
        raise InputError(
            f"quantiles {text!r}: {part!r} is not a quantile or a range; write 90, 60..99 or 60..80:5, with at most 12 decimals"
        )
    low = Fraction(match[1])
    high = Fraction(match[2]) if match[2] else low
    step = Fraction(match[3]) if match[3] else Fraction(1)
    if not 0 <= low <= high <= 100:
        raise InputError(f"quantiles {text!r}: {part!r} must ascend within 0..100")
    if step == 0:
        raise InputError(f"quantiles {text!r}: the step of {part!r} is 0")
    return low, step, int((high - low) / step) + 1


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
    match = re.fullmatch(rf"(\d{{1,12}})it|({_NUMBER})ep|0", text.strip())
    if not match:
        raise InputError(f"{text.strip()!r} is not a point of training: write 0, 10it (iterations) or 2ep (epochs)")
    return Point(Fraction(match[2]), "ep") if match[2] else Point(Fraction(match[1] or 0), "it")


def parse_interval(text: str) -> Point:
    """A point of training that is not its start: `100it`, `1ep`."""
    point = parse_point(text)
    if not point.amount:
        raise InputError(f"{text.strip()!r} is not an interval: write 100it (iterations) or 1ep (epochs)")
    return point


def parse_points(text: str) -> list[Point]:
    """Points of training joined by commas: `0,10it,1ep,2ep`. Raises InputError on an empty list, one of more than `MOST`, or a
    malformed point."""
    return [parse_point(part) for part in _parts(text)]


def parse_rounds(text: str) -> list[int]:
    """Rounds of pruning, ascending: `9`, `1..18`, `3..18:3`, joined by commas. Raises InputError for anything but whole numbers
    from 1."""
    try:
        rounds = parse_quantiles(text)
    except InputError:
        rounds = [Fraction(0)]
    if any(number.denominator != 1 or number < 1 for number in rounds):
        raise InputError(
            f"{text!r} is not a list of rounds: write whole numbers from 1 to 100, ascending, such as 9, 1..18 or 3..18:3"
        )
    return [int(number) for number in rounds]


def quantile_label(quantile: Fraction) -> str:
    """What the mask of a quantile is called: `q90`."""
    return f"q{quantile_name(quantile)}"


def round_label(number: int) -> str:
    """What the mask of a round is called: `round-03`."""
    return f"round-{number:02d}"


def label_number(label: str) -> float:
    """The quantile or the round in a label; 0 without one."""
    return float(label.removeprefix("q").removeprefix("round-") or 0)


def parse_rates(rates: Sequence[str]) -> list[tuple[str, Fraction]]:
    """Rates of pruning by shell pattern of variable paths: `predictions/*=10` is 10 per cent. Raises InputError when malformed
    or out of 0..100."""
    found = []
    for text in rates:
        match = re.fullmatch(rf"(.+?)\s*=\s*({_NUMBER})", text.strip())
        if not match or not 0 <= Fraction(match[2]) < 100:
            raise InputError(
                f"{text!r} is not a rate of pruning: write a pattern of paths and per cent, such as predictions/*=10"
            )
        found.append((match[1], Fraction(match[2])))
    return found


def rate_of(path: str, rate: Default, others: Sequence[tuple[str, Fraction]]) -> Fraction | Default:
    """The rate of the variable `path`: that of the first pattern of `others` that it matches, or else `rate`."""
    return next((other for pattern, other in others if fnmatch.fnmatchcase(path, pattern)), rate)
