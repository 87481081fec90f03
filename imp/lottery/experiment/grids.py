"""The values of grids: quantiles (`60..80:5,85..99`), rounds (`3,7,9..18:3`), points of training (`0,10it,1ep`), per cent by
path (`predictions/*=10`). Each is parsed where a recipe or an option is read, and `str` gives it as it is written."""

import contextlib
import dataclasses
import fnmatch
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Generic, Literal, NamedTuple, TypeVar

from lottery.base.errors import InputError

MOST = 1_000  # values in a grid
_NUMBER = r"\d{1,12}(?:\.\d{1,12})?"  # of which floats, in which results keep quantiles, hold every digit

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Grid(Generic[Value]):
    """Values in their order, compared by these, and the text that they were read from."""

    text: str = dataclasses.field(compare=False)
    values: tuple[Value, ...] = dataclasses.field(repr=False)

    @classmethod
    def of(cls, values: Iterable[Value]) -> "Grid[Value]":
        """The grid of these values, each once."""
        listed = tuple(dict.fromkeys(values))
        return cls(",".join(map(str, listed)), listed)

    def __iter__(self) -> Iterator[Value]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __str__(self) -> str:
        return self.text


class Quantile(Fraction):
    """Per cent of the weights to prune, exact to twelve decimals."""

    def __str__(self) -> str:
        return _decimals(self)

    @property
    def label(self) -> str:
        """What its mask is called: `q90`, `q97.5`."""
        return f"q{self}"


class Round(int):
    """The number of a round, from 1 on."""

    @property
    def label(self) -> str:
        """What its mask is called: `round-03`."""
        return f"round-{self:02d}"


def of_label(label: str) -> Quantile | Round:
    """The quantile or the round whose mask has this label."""
    return Quantile(label.removeprefix("q")) if label.startswith("q") else Round(label.removeprefix("round-"))


@dataclasses.dataclass(frozen=True)
class Point:
    """A point of training: `0`, `10it` (iterations) or `1ep` (epochs, perhaps a fraction of one)."""

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
        return f"{_decimals(self.amount)}{self.unit}" if self.amount else "0"


class Sample(NamedTuple):
    """How many examples to draw, in all or `of_each_class`: `100`, `10 a class`."""

    size: int
    of_each_class: bool

    def __str__(self) -> str:
        return f"{self.size} a class" if self.of_each_class else f"{self.size}"


class ByPath(NamedTuple):
    """Per cent of the variables whose paths match a shell pattern: `Conv1/*=100`."""

    pattern: str
    percent: Fraction

    def __str__(self) -> str:
        return f"{self.pattern}={_decimals(self.percent)}"


def _decimals(number: Fraction) -> str:
    """`90`, `97.5`: exact."""
    return f"{Decimal(number.numerator) / Decimal(number.denominator):f}"


def parse_quantiles(text: str) -> Grid[Quantile]:
    """Quantiles in per cent, ascending: `90`, `97.5`, `60..99`, `60..80:5`, joined by commas. Raises InputError when the grid
    is empty, leaves 0..100, descends, names a quantile twice, or more than `MOST` of them."""
    quantiles: list[Quantile] = []
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
        quantiles += [Quantile(low + step * index) for index in range(count)]
    for earlier, later in itertools.pairwise(quantiles):
        if later <= earlier:
            order = f"{later} comes after {earlier}"
            raise InputError(f"quantiles {text!r}: {order}, but they must ascend, each named once")
    return Grid(text, tuple(quantiles))


def parse_rounds(text: str) -> Grid[Round]:
    """Rounds, ascending: `9`, `1..18`, `3..18:3`, joined by commas. Raises InputError but for whole numbers from 1 to 100."""
    with contextlib.suppress(InputError):
        numbers = parse_quantiles(text)
        if all(number.denominator == 1 and number >= 1 for number in numbers):
            return Grid(text, tuple(map(Round, numbers)))
    ways = "write whole numbers from 1 to 100, ascending, such as 9, 1..18 or 3..18:3"
    raise InputError(f"{text!r} is not a list of rounds: {ways}")


def parse_point(text: str) -> Point:
    match = re.fullmatch(rf"(\d{{1,12}})it|({_NUMBER})ep|0", text.strip())
    if not match:
        raise InputError(f"{text.strip()!r} is not a point of training: write 0, 10it (iterations) or 2ep (epochs)")
    amount = Fraction(match[1] or match[2] or 0)
    return Point(amount, "ep" if match[2] and amount else "it")


def parse_interval(text: str) -> Point:
    """A point of training that is not its start: `100it`, `1ep`."""
    point = parse_point(text)
    if not point.amount:
        raise InputError(f"{text.strip()!r} is not an interval: write 100it (iterations) or 1ep (epochs)")
    return point


def parse_points(text: str) -> Grid[Point]:
    """Points of training joined by commas, each once: `0,10it,1ep,2ep`. Raises InputError for a malformed one."""
    return Grid.of(map(parse_point, text.split(",")))


def parse_sample(text: str) -> Sample:
    """Raises InputError for what does not say how many examples to draw."""
    match = re.fullmatch(r"([1-9]\d{0,8})( a class)?", text.strip())
    if not match:
        raise InputError(f"{text.strip()!r} does not say how many examples: write 100, or 10 a class")
    return Sample(int(match[1]), bool(match[2]))


def parse_density(text: str, what: str = "density", example: str = "Conv1/*=100") -> ByPath:
    """Per cent of weights to keep, such as `Conv1/*=100`. Raises InputError for another text."""
    match = re.fullmatch(rf"(.+?)\s*=\s*({_NUMBER})", text.strip())
    if not match or Fraction(match[2]) > 100:
        raise InputError(f"{text!r} is not a {what}: write a pattern of paths and per cent, such as {example}")
    return ByPath(match[1], Fraction(match[2]))


def parse_rate(text: str) -> ByPath:
    """Per cent of the survivors to prune in a round, such as `predictions/*=10`. Raises InputError for another text."""
    rate = parse_density(text, "rate of pruning", "predictions/*=10")
    if rate.percent == 100:
        raise InputError(f"{text!r}: a rate of 100 leaves nothing of {rate.pattern}: write less, such as predictions/*=10")
    return rate


def rate_of(path: str, rate: Fraction, others: Sequence[ByPath]) -> Fraction:
    """The rate of the variable `path`: that of the first pattern of `others` that it matches, or else `rate`."""
    return next((other.percent for other in others if fnmatch.fnmatchcase(path, other.pattern)), rate)
