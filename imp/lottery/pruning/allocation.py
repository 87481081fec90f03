"""Allocations: how many weights each layer keeps. Pure functions of shapes and counts; exact in total and in each layer.

A layer is a prunable variable here. `global` ranks all layers together. The others give each layer a density of its own, and
rank it by itself:

- `uniform`: the same in every layer;
- `uniform+`: the first convolution stays dense, the last dense layer keeps at least 20 %, the others share one density (Gale et
  al. 2019, "The State of Sparsity in Deep Neural Networks", section 6);
- `erk`: in proportion to the sum of a kernel's dimensions over their product (Evci et al. 2020, "Rigging the Lottery", section
  3). A layer that would keep more than it has becomes dense, and the others share the rest.
"""

import fnmatch
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal

from lottery.base.errors import InputError
from lottery.pruning import masks

Allocation = Literal["global", "uniform", "uniform+", "erk"]
Shapes = Mapping[str, tuple[int, ...]]  # by path
Densities = Sequence[tuple[str, Fraction]]  # shares to keep, by shell pattern of paths
Group = tuple[tuple[str, ...], int]  # layers that are ranked together, and how many of their weights stay


class Unreachable(InputError):
    """A number of units that an allocation cannot keep: less than what layers keep in any case (`is_too_little`), or more."""

    def __init__(self, told: str, is_too_little: bool):
        super().__init__(told)
        self.is_too_little = is_too_little


LEAST_OF_LAST = Fraction(1, 5)  # of the last dense layer, with uniform+


def allocate(
    allocation: Allocation,
    left: Mapping[str, int],
    keep: int,
    shapes: Shapes,
    fixed: Densities = (),
    network: Shapes | None = None,
    sizes: Mapping[str, int] | None = None,
) -> list[Group]:
    """Divide `keep` weights among layers, of which so many are `left` (path -> count) of arrays of `shapes`.

    Layers that a pattern of `fixed` names keep that share of all their weights; the first pattern counts. `network` has every
    kernel's shape in the network's order, which only `uniform+` needs. What is counted may be other units than weights, of
    which each layer has `sizes`. No layer keeps more than it has left. Raises Unreachable where `keep` cannot be kept."""
    sizes = sizes or {path: math.prod(shapes[path]) for path in left}
    shares = {path: share for path in left if (share := _named(path, fixed)) is not None}
    if allocation == "uniform+":
        shares = _uniform_plus(sizes, left, keep, shares, network)
    wanted = {path: min(share * sizes[path], Fraction(left[path])) for path, share in shares.items()}
    others = [path for path in left if path not in wanted]
    own = _rounded(wanted, left, _total(wanted, left, keep, is_all=not others))
    rest = keep - sum(own.values())
    most = sum(left[path] for path in others)
    if not 0 <= rest <= most:
        raise Unreachable(_unreachable(keep, sum(sizes.values()), own, most), rest < 0)
    groups: list[Group] = [((path,), count) for path, count in own.items()]
    if allocation == "global":
        return [(tuple(others), rest), *groups] if others else groups
    ratios = {path: _erk(shapes[path]) if allocation == "erk" else Fraction(1) for path in others}
    ideal = _scaled({path: ratio * sizes[path] for path, ratio in ratios.items()}, left, rest)
    return [*(((path,), count) for path, count in _rounded(ideal, left, rest).items()), *groups]


def _erk(shape: tuple[int, ...]) -> Fraction:
    return Fraction(sum(shape), max(math.prod(shape), 1))


def _named(path: str, fixed: Densities) -> Fraction | None:
    return next((share for pattern, share in fixed if fnmatch.fnmatchcase(path, pattern)), None)


def _uniform_plus(
    sizes: Mapping[str, int], left: Mapping[str, int], keep: int, shares: dict[str, Fraction], network: Shapes | None
) -> dict[str, Fraction]:
    """`shares` with those of the first convolution and, where the others keep less than it must, of the last dense layer. A
    layer that is not prunable is dense anyway."""
    if network is None:
        raise InputError("uniform+ asks which layer is first, and this network does not tell: use uniform, with densities")
    kernels = {path: shape for path, shape in network.items() if path in sizes or masks.in_scope(path, shape, "kernels")}
    first = next((path for path, shape in kernels.items() if len(shape) > 2), "")
    last = next((path for path, shape in reversed(list(kernels.items())) if len(shape) == 2), "")
    if first in sizes:
        shares = {first: Fraction(1), **shares}
    if last not in sizes or last in shares:
        return shares
    others = sum(size for path, size in sizes.items() if path not in shares)
    rest = keep - sum(min(share * sizes[path], Fraction(left[path])) for path, share in shares.items())
    return {**shares, last: LEAST_OF_LAST} if rest < LEAST_OF_LAST * others else shares


def _total(wanted: Mapping[str, Fraction], left: Mapping[str, int], keep: int, is_all: bool) -> int:
    """How many weights the layers of fixed densities keep: `keep`, where these are all layers and rounding accounts for it."""
    ideal = sum(wanted.values(), Fraction(0))
    if is_all and abs(keep - ideal) < len(wanted) and keep <= sum(left.values()):
        return keep
    return round(ideal)


def _scaled(amounts: Mapping[str, Fraction], left: Mapping[str, int], keep: int) -> dict[str, Fraction]:
    """`amounts` times one factor, each no more than is left, so that the sum is `keep`: what a layer cannot take others do."""
    found: dict[str, Fraction] = {}
    rest = Fraction(keep)
    while open_ := {path: amount for path, amount in amounts.items() if path not in found}:
        factor = rest / (sum(open_.values()) or 1)
        full = [path for path, amount in open_.items() if factor * amount > left[path]]
        found |= {path: Fraction(left[path]) for path in full} or {path: factor * amount for path, amount in open_.items()}
        rest -= sum(left[path] for path in full)
    return found


def _rounded(ideal: Mapping[str, Fraction], left: Mapping[str, int], keep: int) -> dict[str, int]:
    """Whole counts that add up to `keep`, by largest remainder; of equal remainders the first path's comes first."""
    counts = {path: math.floor(amount) for path, amount in ideal.items()}
    short = keep - sum(counts.values())
    step = 1 if short > 0 else -1
    while short:
        can = [path for path in counts if 0 <= counts[path] + step <= left[path]]
        order = sorted(can, key=lambda path: (-step * (ideal[path] - counts[path]), path))
        for path in order[: abs(short)]:
            counts[path] += step
        short = keep - sum(counts.values())
    return counts


def _unreachable(keep: int, size: int, own: Mapping[str, int], most: int) -> str:
    asked, kept = f"a density of {keep / size:.4%} cannot be reached", sum(own.values())
    layers = f"{', '.join(list(own)[:3])}{', ...' if len(own) > 3 else ''}"
    if not most:
        return f"{asked}: the densities of all layers keep {kept / size:.4%}; prune {100 - 100 * kept / size:.6g} per cent"
    if kept > keep:
        return f"{asked}: {layers} alone keep {kept / size:.4%} of the weights; prune less, or lower their densities"
    return f"{asked}: beside {layers} there are only {most / size:.4%}; prune more, or raise their densities"
