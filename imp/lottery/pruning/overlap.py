"""How much two masks overlap by position, compared with chance: of networks that start alike, or whose units are aligned."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from lottery.base.errors import InputError
from lottery.pruning.masks import Bits

COUNTS = ("size", "pool", "kept_first", "kept_second", "shared")

Figures = dict[str, float | None]
Groups = tuple[tuple[int, int, int], ...]


class Packed(NamedTuple):
    """Which units of a layer a mask keeps, in an eighth of their bytes: bits (uint8, padded with zeros), their shape, and how
    many are kept. `groups` say of n of m how many groups there are, of how many units each, and how many of these are kept."""

    bits: np.ndarray
    shape: tuple[int, ...]
    kept: int
    groups: Groups = ()


def pack(units: Bits, groups: Mapping[str, Groups] | None = None) -> dict[str, Packed]:
    """Which `units` of each layer are kept (bool), and the groups of those that have any."""
    return {
        path: Packed(np.packbits(kept), kept.shape, int(np.count_nonzero(kept)), (groups or {}).get(path, ()))
        for path, kept in units.items()
    }


def overlaps(
    first: Mapping[str, Packed], second: Mapping[str, Packed], within: Mapping[str, Packed] | None = None
) -> dict[str, Figures]:
    """How two masks overlap in each layer that both have and, by the path `""`, in all of them.

    Of `size` units (such as weights) they keep `kept_first` and `kept_second`, of which `shared` are the same. By chance these
    are hypergeometric given the two counts of each layer, or group; it draws from `pool` units: from what `within` keeps, where
    both masks are cut from that, else from all. The others are shares (0 .. 1), None where there is nothing to divide by:

    - `overlap`: |A and B| / min(|A|, |B|), the share of the sparser mask that is in the other (the overlap coefficient), and
      its expectation, exact as the counts are given;
    - `jaccard`: |A and B| / |A or B|. By chance it is the ratio of the expectations of both sizes, which is close to the
      expectation of the ratio but not the same;
    - `excess_sd`: shared units beyond chance, in standard deviations.

    Raises InputError when there is no common variable, or one has other shapes.
    """
    paths = _common(first, second)
    cut = within is not None and all(_is_within(path, mask, within) for path in paths for mask in (first, second))
    sums = {path: _sums(first[path], second[path], within[path].kept if cut and within else None) for path in paths}
    return {path: _figures(*one) for path, one in {"": _added(sums.values()), **sums}.items()}


def _common(first: Mapping[str, Packed], second: Mapping[str, Packed]) -> list[str]:
    """The variables that two masks both have. Raises InputError as `overlaps` does."""
    paths = [path for path in first if path in second]
    if not paths:
        raise InputError("the masks have no variable in common: compare masks of one network and one scope")
    for path in paths:
        shapes = ["x".join(map(str, mask[path].shape)) for mask in (first, second)]
        if shapes[0] != shapes[1]:
            raise InputError(f"{path} is {' and '.join(shapes)} in the two masks: compare masks of one network")
    return paths


def _is_within(path: str, mask: Mapping[str, Packed], other: Mapping[str, Packed]) -> bool:
    return path in other and mask[path].shape == other[path].shape and not (mask[path].bits & ~other[path].bits).any()


def _sums(first: Packed, second: Packed, pool: int | None) -> tuple[float, ...]:
    """What of two masks of a variable can be added up over variables: the arguments of `_figures`."""
    size = math.prod(first.shape)
    drawn_from = size if pool is None else pool
    shared = int(np.bitwise_count(first.bits & second.bits).sum(dtype=np.int64))
    chance = by_chance(drawn_from, first.kept, second.kept)
    if first.groups and first.groups == second.groups:
        chance = _added(tuple(count * part for part in by_chance(m, n, n)) for count, m, n in first.groups)
    return size, drawn_from, first.kept, second.kept, shared, *chance


def _figures(size: int, pool: int, first: int, second: int, shared: int, expected: float, variance: float) -> Figures:
    sparser, both = min(first, second), first + second
    return {
        **dict(zip(COUNTS, (size, pool, first, second, shared), strict=True)),
        "density_first": _share(first, size),
        "density_second": _share(second, size),
        "overlap": _share(shared, sparser),
        "overlap_by_chance": _share(expected, sparser),
        "jaccard": _share(shared, both - shared),
        "jaccard_by_chance": _share(expected, both - expected),
        "excess_sd": _share(shared - expected, math.sqrt(variance)),
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def by_chance(size: int, first: int, second: int) -> tuple[float, float]:
    """Mean and variance of the places that `first` and `second` of `size`, drawn independently, share (hypergeometric)."""
    mean = first * second / size if size else 0.0
    variance = mean * (size - first) * (size - second) / (size * (size - 1)) if size > 1 else 0.0
    return mean, variance


def _added(parts: Iterable[tuple[float, ...]]) -> tuple[Any, ...]:
    """The sum at each place of the tuples; none where there are no `parts`."""
    return tuple(map(sum, zip(*parts, strict=True)))
