"""Which masks of a run are compared with which, and why."""

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal, TypeVar

from data_prep import files
from lottery import grids
from lottery.run import Replicate, Run

Item = TypeVar("Item")
Kind = Literal["replicates", "rewinds", "methods", "levels", "one-shot"]

LIKE_DENSITY = 0.1  # relative difference up to which a one-shot mask and a round are compared


@dataclasses.dataclass(frozen=True)
class Source:
    """A mask of a run: a one-shot one (`method` is empty, `number` the quantile) or the round `number` of a chain of a
    `method` that rewinds to `step`. `disconnected`: it leaves no path from input to output."""

    path: Path
    replicate: int
    method: str
    step: int
    number: Fraction
    disconnected: bool = False

    @property
    def chain(self) -> str:
        return f"{self.method}-step-{self.step:06d}" if self.method else "one-shot"

    @property
    def name(self) -> str:
        """The same in every replicate: `q90`, `weights-step-000034/03`."""
        return f"{self.chain}/{int(self.number):02d}" if self.method else f"q{grids.quantile_name(self.number)}"


def sources(run: Run) -> list[Source]:
    """The masks that there are: replicate by replicate, one-shot ones first, then chain by chain."""
    found = []
    for number in run.known_numbers():
        replicate = run.replicate(number)
        found += [*_one_shot(number, replicate), *_rounds(number, replicate)]
    return found


def _one_shot(number: int, replicate: Replicate) -> list[Source]:
    made = replicate.listed_quantiles()
    rows = files.read_json(replicate.thresholds)["quantiles"] if made else []
    cut = {Fraction(str(row["quantile"])) for row in rows if row.get("disconnected")}
    return [Source(replicate.mask(quantile), number, "", 0, quantile, quantile in cut) for quantile in made]


def _rounds(number: int, replicate: Replicate) -> list[Source]:
    found = []
    for level in replicate.levels():
        table = files.read_json(level.table)
        place = table["method"], table["rewind_step"], Fraction(table["level"])
        found.append(Source(level.mask, number, *place, bool(table["disconnected"])))
    return sorted(found, key=lambda source: (source.method, source.step, source.number))


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two masks to compare, and why: they differ in `kind` alone. Of two rounds of one chain the denser is first."""

    kind: Kind
    first: Source
    second: Source


def pairs(found: Sequence[Source], density: Callable[[Source], float]) -> list[Pair]:
    """What is compared, kind by kind; `density` says how dense a mask is.

    Methods are compared where they rewind to the same point, `init` with each of theirs, as it knows only step 0. Round 1 is
    cut from the dense network, so all chains of a replicate share it.
    """
    rounds = [source for source in found if source.method]
    wanted = [
        Pair("replicates", *two)
        for alike in grouped(found, lambda source: source.name)
        for two in itertools.combinations(alike, 2)
    ]
    chains = [
        Pair("rewinds" if one.method == other.method else "methods", one, other)
        for alike in grouped(rounds, lambda source: (source.replicate, source.number))
        for one, other in itertools.combinations(alike, 2)
        if one.method == other.method or one.step == other.step or "init" in (one.method, other.method)
    ]
    wanted += sorted(chains, key=lambda pair: pair.kind == "methods")
    for chain in grouped(rounds, lambda source: (source.replicate, source.chain)):
        wanted += [Pair("levels", *two) for two in itertools.pairwise(chain)]
        wanted += [Pair("levels", chain[0], later) for later in chain[2:]]
    return wanted + _of_like_density(found, density)


def grouped(found: Iterable[Item], key: Callable[[Item], Hashable]) -> Iterable[list[Item]]:
    """`found` by what `key` says of each, in the order of first appearance."""
    together: dict[Hashable, list[Item]] = {}
    for item in found:
        together.setdefault(key(item), []).append(item)
    return together.values()


def _of_like_density(found: Sequence[Source], density: Callable[[Source], float]) -> list[Pair]:
    """Each one-shot mask with the round of each chain of its replicate that is nearest in density, if near enough."""
    if len({bool(source.method) for source in found}) < 2:
        return []
    densities = {source: density(source) for source in found}
    wanted = []
    for chain in grouped((source for source in found if source.method), lambda source: (source.replicate, source.chain)):
        for source in (source for source in found if not source.method and source.replicate == chain[0].replicate):
            apart = {later: abs(densities[later] - densities[source]) for later in chain}
            nearest = min(chain, key=apart.__getitem__)
            if apart[nearest] <= LIKE_DENSITY * densities[source]:
                wanted.append(Pair("one-shot", source, nearest))
    return wanted
