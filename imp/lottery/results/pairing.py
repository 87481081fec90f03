"""Which masks of a run are compared with each other, and why."""

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from lottery.rundir.records import MaskRecord
from lottery.rundir.run import Run

Item = TypeVar("Item")
Kind = Literal["replicates", "rewinds", "families", "rounds", "densities"]

LIKE_DENSITY = 0.1  # relative difference up to which masks of unlike grids are compared


@dataclasses.dataclass(frozen=True)
class Source:
    """A mask of a run: its file and its record."""

    path: Path
    record: MaskRecord = dataclasses.field(compare=False)

    @property
    def replicate(self) -> int:
        return self.record.replicate

    @property
    def family(self) -> str:
        return self.record.family

    @property
    def density(self) -> float:
        return self.record.kept.density.prunable

    @property
    def is_round(self) -> bool:
        return self.record.rewind_step is not None

    @property
    def chain(self) -> str:
        return f"{self.family}-step-{self.record.rewind_step:06d}" if self.is_round else self.family

    @property
    def name(self) -> str:
        """The same in every replicate: `oneshot/q90`, `lr-step-000034/round-03`."""
        return f"{self.chain}/{self.record.mask}"


def sources(run: Run) -> list[Source]:
    """All masks of a run: replicate by replicate, family by family."""
    return [
        Source(files.mask, record)
        for number in run.known_numbers()
        for name in run.recipe.families
        for files in run.replicate(number).masks(name)
        if (record := files.read())
    ]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two masks to compare. `kind` says why: it is the only thing in which they differ. Of two rounds of one chain the
    denser is first."""

    kind: Kind
    first: Source
    second: Source


def pairs(found: Sequence[Source]) -> list[Pair]:
    """What is compared, kind by kind.

    Families are compared where they have the same mask (a quantile, a round), and rewind to the same point, if that decides it.
    The first round is cut from the dense network, so all chains of a family share it.
    """
    wanted = [
        Pair("replicates", *two)
        for alike in grouped(found, lambda source: source.name)
        for two in itertools.combinations(alike, 2)
    ]
    chains = [
        Pair("rewinds" if one.family == other.family else "families", one, other)
        for alike in grouped(found, lambda source: (source.replicate, source.record.mask))
        for one, other in itertools.combinations(alike, 2)
        if one.family == other.family or _is_alike(one, other)
    ]
    wanted += sorted(chains, key=lambda pair: pair.kind == "families")
    for chain in grouped((one for one in found if one.is_round), lambda source: (source.replicate, source.chain)):
        wanted += [Pair("rounds", *two) for two in itertools.pairwise(chain)]
        wanted += [Pair("rounds", chain[0], later) for later in chain[2:]]
    return wanted + _of_like_density(found)


def _is_alike(one: Source, other: Source) -> bool:
    """Whether masks of two families rewind to the same point, or one of them to the start."""
    steps = {one.record.rewind_step, other.record.rewind_step}
    return len(steps) == 1 or 0 in steps


def grouped(found: Iterable[Item], key: Callable[[Item], Hashable]) -> Iterable[list[Item]]:
    """`found` by what `key` says of each, in the order of first appearance."""
    together: dict[Hashable, list[Item]] = {}
    for item in found:
        together.setdefault(key(item), []).append(item)
    return together.values()


def _of_like_density(found: Sequence[Source]) -> list[Pair]:
    """Each mask of one shot with the round of each chain of its replicate that is nearest in density, if near enough."""
    wanted = []
    for chain in grouped((source for source in found if source.is_round), lambda source: (source.replicate, source.chain)):
        for source in (one for one in found if not one.is_round and one.replicate == chain[0].replicate):
            nearest = min(chain, key=lambda later: abs(later.density - source.density))
            if abs(nearest.density - source.density) <= LIKE_DENSITY * source.density:
                wanted.append(Pair("densities", source, nearest))
    return wanted
