"""From the scores of one network to masks of any density: iterations, allocations, exact counts."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lottery.base.errors import InputError
from lottery.engine.foreign import read_mask
from lottery.experiment import grids
from lottery.experiment.graph import Mask
from lottery.experiment.grids import Quantile
from lottery.pruning import allocation, criteria, masks, ranking
from lottery.pruning.criteria import checked
from lottery.pruning.masks import Bits
from lottery.pruning.ranking import Ranking
from lottery.pruning.state import Arrays, State
from lottery.rundir import store, tickets
from lottery.rundir.run import Run
from lottery.stages.probing import Probes


class Part(NamedTuple):
    """Weights that were ranked together: in the last iteration `rate` per cent of them went, and `keep` stayed."""

    ranking: Ranking
    keep: int
    rate: Fraction


class Scoring:
    """The network that the mask `first` is scored on, and all masks that are cut from its scores; with `inverted`, those that
    keep the lowest scores. Raises InputError if the network or the mask around them is damaged."""

    def __init__(self, run: Run, first: Mask, probes: Probes, inverted: bool = False):
        self._run, self.replicate, self.family = run, run.replicate(first.replicate), run.recipe.families[first.family]
        assert first.scored_on, "masks of gradual pruning are not cut"
        self.inverted, network = inverted, self.replicate.state_of(first.scored_on)
        with store.promised_by(self.replicate.table_of(network)):
            self.state: State = store.load_state(network, optimizer=False)
        prunable = run.recipe.pruning.prunable(self.state)
        self.before = load(run, first.within) if first.within else masks.whole(prunable)
        self._probes = probes.of(first.replicate, self.family)
        self._ranked = dict[tuple[str, ...], Ranking]()

    def cut(self, mask: Mask) -> tuple[Bits, list[Part]]:
        """A mask, and what was ranked together for it in the last iteration.

        Of n iterations, the i-th leaves N (k / N)^(i / n) of N weights, where k stay in the end (Tanaka et al. 2020, algorithm
        1; de Jorge et al. 2021, section 4).
        """
        within, last = self.before, self.family.passes
        for number in range(1, last):
            scores = self._scores(within)
            within = _joined(
                ranking.lowest_cut(_of(scores, paths), within, _count(within, paths) - keep)
                for paths, keep in self._divided(mask, within, number / last)
            )
        scores = self._first if last == 1 else self._scores(within)
        parts = [self._part(mask, scores, within, *group) for group in self._divided(mask, within, 1)]
        bits = _joined(part.ranking.prune(part.ranking.ascending.size - part.keep) for part in parts)
        if self._given and not self.inverted and any(not np.array_equal(bits[path], self._given[path]) for path in bits):
            own = quantile_of(self._given)
            raise InputError(f"families.{mask.family}: the mask in {self.family.mask} is that of quantile {own}: write '{own}'")
        return bits, parts

    def _part(self, mask: Mask, scores: Arrays, within: Bits, paths: tuple[str, ...], keep: int) -> Part:
        is_shared = self.family.passes == 1  # by all masks of this scoring
        ranked = self._ranked.get(paths) if is_shared else None
        if ranked is None:
            among = within if mask.within or not is_shared else None
            ranked = self._ranked[paths] = ranking.rank(_of(scores, paths), among)
        size = ranked.ascending.size
        is_plain = is_shared and self.family.allocation == "global" and not self.family.densities
        return Part(ranked, keep, self._rate(mask, paths[0]) if is_plain else Fraction(100 * (size - keep), max(size, 1)))

    def _divided(self, mask: Mask, within: Bits, progress: float) -> list[allocation.Group]:
        """Which layers are ranked together and how much of them stays, so far on the way from all to the last iteration.
        Layers of one pruning rate share what stays of them."""
        alike: dict[Fraction, list[str]] = {}
        for path in within:
            alike.setdefault(self._rate(mask, path), []).append(path)
        groups: list[allocation.Group] = []
        for rate, paths in alike.items():
            count = _count(self.before, paths)
            pruned = round(rate / 100 * count) if self.family.rounds else ranking.pruned_count(rate, count)
            keep = round(count * ((count - pruned) / max(count, 1)) ** progress) if progress < 1 else count - pruned
            left = {path: _count(within, [path]) for path in paths}
            shapes = {path: within[path].shape for path in paths}
            groups += allocation.allocate(self.family.allocation, left, keep, shapes, self.family.shares_kept, self._kernels)
        return groups

    def _rate(self, mask: Mask, path: str) -> Fraction:
        """How much of a variable goes, per cent: as much as of all, or in rounds what the recipe says of its path."""
        return grids.rate_of(path, mask.rate, self.family.rates if self.family.rounds else [])

    @cached_property
    def _kernels(self) -> Mapping[str, tuple[int, ...]] | None:
        topology = self.replicate.read_topology()
        return topology.kernels if topology else None

    @cached_property
    def _given(self) -> Bits:
        """The mask in a file that the family names; empty where it names none. Raises InputError where it does not fit."""
        if not self.family.mask:
            return {}
        path, shapes = Path(self.family.mask), {name: kept.shape for name, kept in self.before.items()}
        if not path.is_file():
            raise InputError(f"mask: there is no file {path}")
        if path.suffix == ".safetensors":
            given = tickets.unpacked(tickets.load(path), shapes, path)
        else:
            given = read_mask(path, self._run.recipe.model.name, self._run.manifest().shape, shapes)
        if missing := sorted(shapes.keys() - given.keys()):
            raise InputError(f"mask: {path} has none of {missing[0]}, which this recipe prunes: see pruning.scope and exclude")
        return given

    @cached_property
    def _first(self) -> Arrays:
        return self._scores(self.before)

    def _scores(self, within: Bits) -> Arrays:
        """The score of each weight of `within`. Raises InputError if the criterion gives anything else."""
        found = {path: kept.astype(np.float32) for path, kept in self._given.items()} or self._of_criterion(within)
        return {path: -array for path, array in found.items()} if self.inverted else found

    def _of_criterion(self, within: Bits) -> Arrays:
        name = self.family.criterion
        own = {path: kept.copy() for path, kept in within.items()}  # which a user's function may change in place
        scores = criteria.by_name(name)(self.state, own, self._probes.at(self.state, within))
        return checked(scores, within, f"criterion: {name}")


def quantile_of(mask: Bits) -> Quantile:
    """The shortest quantile that prunes as many weights as `mask` does."""
    total, kept = sum(bits.size for bits in mask.values()), _count(mask, list(mask))
    for digits in range(13):
        quantile = Quantile(100 * (total - kept) * 10**digits // max(total - 1, 1), 10**digits)
        if ranking.pruned_count(quantile, total) == total - kept:
            return quantile
    raise InputError(f"no quantile keeps {kept:,} of {total:,} weights")


def load(run: Run, mask: Mask) -> Bits:
    """The mask as it was cut. Raises InputError if it is missing or damaged."""
    cut = run.mask(mask)
    with store.promised_by(cut.table):
        return store.load_mask(cut.mask)


def _of(scores: Arrays, paths: Sequence[str]) -> Arrays:
    return {path: scores[path] for path in sorted(paths)}


def _count(mask: Bits, paths: Sequence[str]) -> int:
    return sum(int(np.count_nonzero(mask[path])) for path in paths)


def _joined(parts: Iterable[Bits]) -> Bits:
    whole: Bits = {}
    for part in parts:
        whole |= part
    return dict(sorted(whole.items()))
