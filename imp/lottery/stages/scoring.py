"""The masks of a family that are cut from the scores of one network: what is asked of `pruning.cut`."""

import fnmatch
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lottery.base.errors import InputError
from lottery.engine.foreign import read_mask
from lottery.experiment import cutting, grids
from lottery.experiment.graph import Mask
from lottery.experiment.grids import Quantile
from lottery.pruning import costs, criteria, masks, ranking
from lottery.pruning.allocation import Group
from lottery.pruning.cut import Cut, Cutter
from lottery.pruning.masks import Bits
from lottery.pruning.ranking import Ranking
from lottery.pruning.state import State
from lottery.pruning.units import WEIGHT, parse
from lottery.rundir import store, tickets
from lottery.rundir.run import Run
from lottery.stages.probing import Probes


class Part(NamedTuple):
    """Weights that were ranked together: in the last iteration `rate` per cent of them went."""

    ranking: Ranking
    rate: Fraction


class Scoring:
    """The network that the mask `first` is scored on, and all masks that are cut from its scores; with `inverted`, those that
    keep the lowest scores. Raises InputError if the network or the mask around them is damaged."""

    def __init__(self, run: Run, first: Mask, probes: Probes, inverted: bool = False):
        self._run, self.replicate, self.family = run, run.replicate(first.replicate), run.recipe.families[first.family]
        assert first.scored_on, "masks of gradual pruning are not cut"
        network, family = self.replicate.state_of(first.scored_on), self.family
        with store.promised_by(self.replicate.table_of(network)):
            self.state: State = store.load_state(network, optimizer=False)
        self.topology, pruning = self.replicate.read_topology(), run.recipe.pruning
        scope = pruning.prunable(self.state)
        ranked = family.model_copy(update={"units": parse(WEIGHT)}) if family.mask else family
        self.units = cutting.units_of(pruning, ranked, self.state, self.topology)
        every = self.state.weights | scope
        self.before = load(run, first.within) if first.within else cutting.everything(self.units, every, scope)
        self._check_densities(first.family)
        self._rates = family.rates if family.rounds else []
        self._given = self._read_given()
        criterion = criteria.checked(criteria.by_name(family.criterion), f"criterion: {family.criterion}")
        if self._given:
            criterion = criteria.given({path: kept.astype(np.float32) for path, kept in self._given.items()})
        self._is_inverted = inverted
        if inverted:
            criterion = criteria.inverted(criterion)
        method = cutting.method_of(family, criterion, self.units, self.topology)
        kernels, probe = self.topology.kernels if self.topology else None, probes.of(first.replicate, family).at
        self._cutter = Cutter(method, self.state, self.before, partial(probe, self.state), kernels, sort=True)

    def _check_densities(self, name: str) -> None:
        """Raise InputError for densities of layers that make no channels of their own."""
        layers = self.units.sizes({}) if self.family.units.is_channel else {}
        for pattern, _ in self.family.densities if layers else ():
            if not any(fnmatch.fnmatchcase(path, pattern) for path in layers):
                raise InputError(
                    f"families.{name}.densities: {pattern!r} has no {self.family.units.plural}: {', '.join(layers)} have"
                )

    def cut(self, mask: Mask) -> tuple[Bits, list[Part]]:
        """A mask, and what was ranked together for it in the last iteration."""
        cut = self._cut(mask)
        differs = (not np.array_equal(kept, self._given[path]) for path, kept in cut.mask.items() if self._given)
        if not self._is_inverted and any(differs):
            own = quantile_of({path: self._given[path] for path in cut.mask})
            raise InputError(f"families.{mask.family}: the mask in {self.family.mask} is that of quantile {own}: write '{own}'")
        beyond = {path: kept for path, kept in self._given.items() if path not in cut.mask}
        return cut.mask | beyond, [self._part(mask, *group) for group in cut.groups]

    def _cut(self, mask: Mask) -> Cut:
        """As many weights go as the family says, or else as few whole units as that takes; of n of m inputs all but n."""
        if self.family.counts_weights or self._given:
            return self._cutter.to(list(self._keep(mask)))
        if self.family.target == "weights":
            left = self._cutter.method.prunable(self.before)
            return self._cutter.leaving(left - self._pruned(mask.rate, left))
        left = self._macs(self.before)
        return self._cutter.fitting(left - self._pruned(mask.rate, left), self._macs)

    def _macs(self, mask: Bits) -> int:
        cutting.positions(self.topology)
        return costs.macs(mask, self.topology) or 0

    def _pruned(self, rate: Fraction, count: int) -> int:
        return round(rate / 100 * count) if self.family.rounds else ranking.pruned_count(rate, count)

    def _part(self, mask: Mask, ranking: Ranking, keep: int) -> Part:
        method, size = self._cutter.method, ranking.size
        if self.family.counts_weights and method.allocation == "global" and not method.fixed and method.passes == 1:
            return Part(ranking, self._rate(mask, next(iter(ranking.scores))))
        return Part(ranking, Fraction(100 * (size - keep), max(size, 1)))

    def _keep(self, mask: Mask) -> Iterator[Group]:
        """How many weights stay of those that have one pruning rate."""
        alike: dict[Fraction, list[str]] = {}
        for path in self.before:
            alike.setdefault(self._rate(mask, path), []).append(path)
        for rate, paths in alike.items():
            count = _count(self.before, paths)
            yield tuple(paths), count - self._pruned(rate, count)

    def _rate(self, mask: Mask, path: str) -> Fraction:
        """How much of a variable goes, per cent: as much as of all, or in rounds what the recipe says of its path."""
        return grids.rate_of(path, mask.rate, self._rates)

    def _read_given(self) -> Bits:
        """The mask in a file that the family names; empty where it names none. Raises InputError where it does not fit."""
        if not self.family.mask:
            return {}
        path, shapes = Path(self.family.mask), {name: kept.shape for name, kept in self.before.items()}
        if not path.is_file():
            raise InputError(f"mask: there is no file {path}")
        if path.suffix == ".safetensors":  # which may say of more than prunable variables, as those of whole channels do
            every = {name: array.shape for name, array in (self.state.weights | self.state.statistics).items()}
            given = tickets.unpacked(tickets.load(path), every, path)
        else:
            given = read_mask(path, self._run.recipe.model.name, self._run.manifest().shape, shapes)
        if missing := sorted(shapes.keys() - given.keys()):
            raise InputError(f"mask: {path} has none of {missing[0]}, which this recipe prunes: see pruning.scope and exclude")
        own = cutting.units_of(self._run.recipe.pruning, self.family, self.state, self.topology)
        ranked = own.ranked(given)
        scores = {name: kept.astype(np.float32) for name, kept in ranked.items()}
        of_units = own.spread(own.pool(scores, ranked)[1], masks.whole(ranked))
        if any((of_units[name] != kept).any() for name, kept in ranked.items()):
            raise InputError(f"mask: {path} is not of whole units = {self.family.units}: set units to what it is made of")
        return given


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


def _count(mask: Bits, paths: Sequence[str]) -> int:
    return sum(int(np.count_nonzero(mask[path])) for path in paths)
