"""From scores to exact masks: the one place where masks are cut. Pure NumPy; nothing here changes its inputs."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from lottery.base.errors import InputError
from lottery.pruning import allocation
from lottery.pruning.allocation import Allocation, Densities, Group, Shapes, Unreachable
from lottery.pruning.criteria import Criterion
from lottery.pruning.masks import Bits
from lottery.pruning.ranking import Ranking, rank
from lottery.pruning.state import Arrays, State, widened
from lottery.pruning.units import SINGLE, NofM, Units


@dataclasses.dataclass(frozen=True)
class Method:
    """How a network is pruned. `criterion` scores its weights, in `passes` iterations; `allocation` divides what stays among
    layers, but for those that `fixed` densities name; `units` are kept or pruned as a whole. The score of each is divided by
    its cost, where `each` says what the weights of a variable cost (by path; of others nothing)."""

    criterion: Criterion
    allocation: Allocation = "global"
    fixed: Densities = ()
    passes: int = 1
    units: Units = SINGLE
    each: Mapping[str, int] | None = None

    def divide(self, left: Mapping[str, int], keep: int, shapes: Shapes, kernels: Shapes | None = None) -> list[Group]:
        """Which layers are ranked together and how many of their units stay, as `allocation.allocate` divides them."""
        return allocation.allocate(self.allocation, left, keep, shapes, self.fixed, kernels, self.units.sizes(shapes))

    def prunable(self, mask: Bits) -> int:
        """How many prunable weights a mask keeps."""
        ranked = self.units.ranked(mask)
        return _count(ranked, ranked)

    def scored(self, network: State, mask: Bits, probe: Any) -> tuple[Arrays, Bits]:
        """The score of each unit of `network` under `mask`, and which of them are left."""
        ranked = self.units.ranked(mask)
        scores = self.criterion(network, ranked, probe)
        pooled, left = self.units.pool({path: widened(scores[path]) for path in sorted(ranked)}, ranked)
        if self.each is None:
            return pooled, left
        costs = self.units.total({path: bits * self.each.get(path, 0) for path, bits in mask.items()})
        return {path: array / np.maximum(costs[path], 1) for path, array in pooled.items()}, left


@dataclasses.dataclass(frozen=True)
class Cut:
    """A mask, and of the last iteration what was ranked together for it, with how many of these units stay."""

    mask: Bits
    groups: list[tuple[Ranking, int]]


@dataclasses.dataclass(frozen=True)
class Cutter:
    """All cuts of a `network` by `method`, which keep no more than the mask `within` does. They share the scores and rankings
    of the first iteration. `probe` gives what the criterion may ask of the network under a mask; `kernels` are as `network` in
    `allocation.allocate`; `sort` the scores of the last iteration where there are several cuts, or their order is asked for."""

    method: Method
    network: State
    within: Bits
    probe: Callable[[Bits], Any] = lambda mask: None
    kernels: Shapes | None = None
    sort: bool = False
    _rankings: dict[tuple[str, ...], Ranking] = dataclasses.field(default_factory=dict)

    def to(self, keep: Sequence[Group]) -> Cut:
        """The cut that keeps exactly so many units: `keep` says of layers that share them how many. Of n iterations, the i-th
        leaves N (k / N)^(i / n) of N units, where k stay in the end (Tanaka et al. 2020, algorithm 1; de Jorge et al. 2021,
        section 4). Raises InputError where the allocation cannot keep as many."""
        mask, last = self.within, self.method.passes
        groups: list[tuple[Ranking, int]] = []
        for number in range(1, last + 1):
            (scores, left), rankings = (self._first, self._rankings) if number == 1 else (self._scored(mask), {})
            groups = []
            for paths, stay in keep:
                count = _count(self.units, paths)
                share = stay if number == last else round(count * (stay / max(count, 1)) ** (number / last))
                groups += [(_ranked(rankings, scores, left, alike), one) for alike, one in self._divided(left, paths, share)]
            units: Bits = {}
            for ranking, stay in groups:
                units |= ranking.prune(ranking.size - stay, self.sort and number == last)
            mask = self.method.units.spread({path: units[path] for path in sorted(units)}, mask)
        return Cut(mask, groups)

    def leaving(self, weights: int) -> Cut:
        """The cut of the most units that leave no more than so many prunable `weights`: of single ones exactly as many, of `n`
        of `m` inputs those that can be left. Raises InputError as `fitting`."""
        every = tuple(self.units)
        if isinstance(self.method.units, NofM):
            return self.to([(every, _count(self.units, every))])
        return self.to([(every, weights)]) if self.method.units == SINGLE else self.fitting(weights, self.method.prunable)

    def fitting(self, most: int, measure: Callable[[Bits], int]) -> Cut:
        """The cut of the most units, one or more, whose mask measures no more than `most`. Raises InputError as `to`, and where
        one unit measures more."""
        least, count = 0, _count(self.units, self.units)
        while least < count:
            middle = (least + count + 1) // 2
            try:
                fits = measure(self.to([(tuple(self.units), middle)]).mask) <= most
            except Unreachable as error:
                fits = error.is_too_little
            least, count = (middle, count) if fits else (least, middle - 1)
        if not least:
            left = measure(self.to([(tuple(self.units), 1)]).mask) / measure(self.within)
            raise InputError(f"no more than {1 - left:.2%} can be pruned, as the rest is not made of such units: prune less")
        return self.to([(tuple(self.units), least)])

    @property
    def units(self) -> Bits:
        """Which units are left, by layer."""
        return self._first[1]

    def _divided(self, left: Bits, paths: Iterable[str], keep: int) -> list[Group]:
        shapes = {path: self.within[path].shape for path in paths}
        return self.method.divide({path: _count(left, [path]) for path in shapes}, keep, shapes, self.kernels)

    @cached_property
    def _first(self) -> tuple[Arrays, Bits]:
        return self._scored(self.within)

    def _scored(self, mask: Bits) -> tuple[Arrays, Bits]:
        return self.method.scored(self.network, mask, self.probe(mask))


def cut(
    method: Method,
    network: State,
    within: Bits,
    keep: Sequence[Group],
    probe: Callable[[Bits], Any] = lambda mask: None,
    kernels: Shapes | None = None,
) -> Cut:
    """One cut of a network; see `Cutter`."""
    return Cutter(method, network, within, probe, kernels).to(keep)


def _ranked(rankings: dict[tuple[str, ...], Ranking], scores: Arrays, left: Bits, paths: tuple[str, ...]) -> Ranking:
    """The ranking of the layers `paths`, which `rankings` holds from then on."""
    if paths not in rankings:
        rankings[paths] = rank({path: scores[path] for path in sorted(paths)}, left)
    return rankings[paths]


def _count(units: Bits, paths: Iterable[str]) -> int:
    return sum(int(np.count_nonzero(units[path])) for path in paths)
