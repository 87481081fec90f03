"""How much two masks overlap by position, compared with chance: for masks of networks with the same start."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from data_prep.errors import InputError
from lottery.pruning import masks

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

COUNTS = ("size", "pool", "kept_first", "kept_second", "shared")
SHARES = (*("density_first", "density_second", "overlap", "overlap_by_chance", "jaccard", "jaccard_by_chance"), "excess_sd")

Summable = TypeVar("Summable", bound="DataclassInstance")


@dataclasses.dataclass(frozen=True)
class Counts:
    """Of `size` weights two masks keep `kept_first` and `kept_second`."""

    size: int
    kept_first: int
    kept_second: int

    @property
    def density_first(self) -> float | None:
        return share(self.kept_first, self.size)

    @property
    def density_second(self) -> float | None:
        return share(self.kept_second, self.size)


@dataclasses.dataclass(frozen=True)
class Overlap(Counts):
    """How two masks overlap, in one variable or summed over several.

    Both keep `shared` weights. `expected` and `variance` are those of `shared` by chance: hypergeometric given the two counts
    of each variable, summed over the variables. Chance draws from `pool` weights: all, or those that a mask from which both
    were cut had left. All other figures are shares (0 .. 1) or standard deviations, None where there is nothing to divide by.
    """

    pool: int
    shared: int
    expected: float
    variance: float

    SHARES: ClassVar = SHARES

    @property
    def overlap(self) -> float | None:
        """|A and B| / min(|A|, |B|): the share of the sparser mask that is in the other (the overlap coefficient)."""
        return share(self.shared, min(self.kept_first, self.kept_second))

    @property
    def overlap_by_chance(self) -> float | None:
        """Its expectation, exact, as the counts are given."""
        return share(self.expected, min(self.kept_first, self.kept_second))

    @property
    def jaccard(self) -> float | None:
        """|A and B| / |A or B|."""
        return share(self.shared, self.kept_first + self.kept_second - self.shared)

    @property
    def jaccard_by_chance(self) -> float | None:
        """The ratio of the expectations of both sizes, which is close to the expectation of the ratio but not the same."""
        return share(self.expected, self.kept_first + self.kept_second - self.expected)

    @property
    def excess_sd(self) -> float | None:
        """Shared weights beyond chance, in standard deviations."""
        return share(self.shared - self.expected, math.sqrt(self.variance))

    def figures(self) -> dict[str, float | None]:
        """`COUNTS` and `SHARES` by name."""
        return {name: getattr(self, name) for name in (*COUNTS, *SHARES)}


def share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def by_chance(size: int, first: int, second: int) -> tuple[float, float]:
    """Mean and variance of the places that `first` and `second` of `size`, drawn independently, share (hypergeometric)."""
    mean = first * second / size if size else 0.0
    variance = mean * (size - first) * (size - second) / (size * (size - 1)) if size > 1 else 0.0
    return mean, variance


def total(parts: Iterable[Summable]) -> Summable:
    """All of `parts` together, of which there is at least one: the sum of each field."""
    first, *others = parts
    return type(first)(*(sum(getattr(part, field.name) for part in (first, *others)) for field in dataclasses.fields(first)))


@dataclasses.dataclass(frozen=True)
class Packed:
    """A mask in an eighth of its bytes: by path its bits (uint8, padded with zeros), shape and number of kept weights."""

    bits: Mapping[str, np.ndarray]
    shapes: Mapping[str, tuple[int, ...]]
    kept: Mapping[str, int]


def pack(mask: masks.Mask) -> Packed:
    return Packed(
        {path: np.packbits(kept) for path, kept in mask.items()},
        {path: kept.shape for path, kept in mask.items()},
        {path: int(np.count_nonzero(kept)) for path, kept in mask.items()},
    )


def overlaps(first: Packed, second: Packed, within: Packed | None = None) -> dict[str, Overlap]:
    """The overlap in each variable that both masks have. Chance draws from what `within` keeps, where both masks are cut from
    that; else from all. Raises InputError when there is no common variable, or one has other shapes."""
    common = [path for path in first.bits if path in second.bits]
    if not common:
        raise InputError("the masks have no variable in common: compare masks of one network and one scope")
    cut = within is not None and all(_is_within(path, mask, within) for path in common for mask in (first, second))
    return {path: _overlap(path, first, second, within if cut else None) for path in common}


def _is_within(path: str, mask: Packed, other: Packed) -> bool:
    return path in other.bits and mask.shapes[path] == other.shapes[path] and not (mask.bits[path] & ~other.bits[path]).any()


def _overlap(path: str, first: Packed, second: Packed, within: Packed | None) -> Overlap:
    if first.shapes[path] != second.shapes[path]:
        shapes = " and ".join("x".join(map(str, mask.shapes[path])) for mask in (first, second))
        raise InputError(f"{path} is {shapes} in the two masks: compare masks of one network")
    size = math.prod(first.shapes[path])
    shared = int(np.bitwise_count(first.bits[path] & second.bits[path]).sum(dtype=np.int64))
    counts, pool = (first.kept[path], second.kept[path]), within.kept[path] if within else size
    return Overlap(size, *counts, pool, shared, *by_chance(pool, *counts))
