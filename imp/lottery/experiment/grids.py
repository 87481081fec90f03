"""Grids as a user writes them: quantiles (`60..80:5,85..99`), rounds (`3,7,9..18:3`), points of training (`0,10it,1ep`)."""

import contextlib
import dataclasses
import fnmatch
import itertools
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from lottery.base.errors import InputError

MOST = 1_000  # values in a grid
_NUMBER = r"\d{1,12}(?:\.\d{1,12})?"  # of which floats, in which results keep quantiles, hold every digit


def parse_quantiles(text: str) -> list[Fraction]:
    """Quantiles in per cent, ascending, exact to twelve decimals: `90`, `97.5`, `60..99`, `60..80:5`, joined by commas.

    Raises InputError when the grid is empty, leaves 0..100, descends, names a quantile twice, or more than `MOST` of them.
    """
    quantiles: list[Fraction] = []
    for part in map(str.strip, text.split(",")):
        match = re.fullmatch(rf"({_NUMBER})(?:\.\.({_NUMBER})(?::({_NUMBER}))?)?", part)
        if not match:
            ways = "write 90, 60..99 or 60..80:5, with at most 12 decimals"
            raise InputError(f"quantiles {text!r}: {part!r} is not a quantile or a range; {ways}")
        low, high, step = Fraction(match[1]), Fraction(match[2] or match[1]), Fraction(match[3] or 1)
        if not 0 <= low <= high <= 100 or not step:
            raise InputError(f"quantiles {text!r}: {part!r} must ascend within 0..100, in steps above 0")
        count = int((high - low) / step) + 1
        if len(quantiles) + count > MOST:
            raise InputError(f"quantiles {text!r}: more than {MOST:,} values: write a coarser grid")
        quantiles += [low + step * index for index in range(count)]
    for earlier, later in itertools.pairwise(quantiles):
        if later <= earlier:
            order = f"{quantile_name(later)} comes after {quantile_name(earlier)}"
            raise InputError(f"quantiles {text!r}: {order}, but they must ascend, each named once")
    return quantiles


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
    """Points of training joined by commas: `0,10it,1ep,2ep`. Raises InputError for a malformed one."""
    return [parse_point(part) for part in text.split(",")]


def parse_rounds(text: str) -> list[int]:
    """Rounds, ascending: `9`, `1..18`, `3..18:3`, joined by commas. Raises InputError but for whole numbers from 1 to 100."""
    with contextlib.suppress(InputError):
        rounds = parse_quantiles(text)
        if all(number.denominator == 1 and number >= 1 for number in rounds):
            return [int(number) for number in rounds]
    ways = "write whole numbers from 1 to 100, ascending, such as 9, 1..18 or 3..18:3"
    raise InputError(f"{text!r} is not a list of rounds: {ways}")


def quantile_label(quantile: Fraction) -> str:
    """What the mask of a quantile is called: `q90`."""
    return f"q{quantile_name(quantile)}"


def round_label(number: int) -> str:
    """What the mask of a round is called: `round-03`."""
    return f"round-{number:02d}"


def label_number(label: str) -> float:
    """The quantile or the round in a label; 0 without one."""
    return float(label.removeprefix("q").removeprefix("round-") or 0)


def parse_sample(text: str) -> tuple[int, bool]:
    """How many examples to draw, and whether so many of each class: `100`, `10 a class`. Raises InputError for others."""
    match = re.fullmatch(r"([1-9]\d{0,8})( a class)?", text.strip())
    if not match:
        raise InputError(f"{text.strip()!r} does not say how many examples: write 100, or 10 a class")
    return int(match[1]), bool(match[2])


def parse_densities(densities: Sequence[str]) -> list[tuple[str, Fraction]]:
    """Shares (0 .. 1) of weights to keep by shell pattern of paths, such as `Conv1/*=100` (per cent). Raises InputError for
    another."""
    return [(pattern, share / 100) for pattern, share in _by_path(densities, "density", "Conv1/*=100")]


def parse_rates(rates: Sequence[str]) -> list[tuple[str, Fraction]]:
    """Rates of pruning by shell pattern of paths, such as `predictions/*=10` (per cent). Raises InputError for another."""
    found = _by_path(rates, "rate of pruning", "predictions/*=10")
    for text, (pattern, rate) in zip(rates, found, strict=True):
        if rate == 100:
            raise InputError(
                f"{text!r}: a rate of 100 per cent leaves nothing of {pattern}: write less, such as predictions/*=10"
            )
    return found


def _by_path(texts: Sequence[str], what: str, example: str) -> list[tuple[str, Fraction]]:
    found = []
    for text in texts:
        match = re.fullmatch(rf"(.+?)\s*=\s*({_NUMBER})", text.strip())
        if not match or Fraction(match[2]) > 100:
            raise InputError(f"{text!r} is not a {what}: write a pattern of paths and per cent, such as {example}")
        found.append((match[1], Fraction(match[2])))
    return found


def by_path_texts(texts: Sequence[str]) -> list[str]:
    """Rates or densities by path in one way: `Conv1/*=100` for `Conv1/* = 100.0`."""
    return [f"{pattern}={quantile_name(share)}" for pattern, share in _by_path(texts, "rate", "Conv1/*=100")]


def rate_of(path: str, rate: Fraction, others: Sequence[tuple[str, Fraction]]) -> Fraction:
    """The rate of the variable `path`: that of the first pattern of `others` that it matches, or else `rate`."""
    return next((other for pattern, other in others if fnmatch.fnmatchcase(path, pattern)), rate)
