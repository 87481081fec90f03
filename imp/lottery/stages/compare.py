"""How far the masks of a run overlap, beside chance: across replicates, rewind points, methods and rounds."""

import csv
import dataclasses
import functools
import io
import itertools
import re
import shlex
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeVar

from data_prep import files
from data_prep.errors import InputError
from lottery import grids, masks
from lottery.overlap import FIGURES, SHARES, Overlap, Packed, overlaps, pack, total
from lottery.progress import Reporter
from lottery.results import lookup
from lottery.run import Level, Replicate, Run

Item = TypeVar("Item")
Kind = Literal["replicates", "rewinds", "methods", "levels", "one-shot"]

TITLES: dict[Kind, str] = {
    "replicates": "the same mask in different replicates",
    "rewinds": "the same round, rewound to different points (chance: within round 1, which they share)",
    "methods": "the same round by different methods (chance: within round 1, which they share)",
    "one-shot": "one-shot masks and rounds of like density (chance: within round 1, where both lie in it)",
}
HEADINGS = ("masks", "density %", "pairs", "overlap %", "chance %", "excess, sd", "Jaccard %", "chance %")
COLUMNS = ("kind", "first", "second", "replicate_first", "replicate_second", "layer", *FIGURES)

LIKE_DENSITY = 0.1  # relative difference up to which a one-shot mask and a round are compared
HELD_BYTES = 1 << 27  # of masks held at a time, bit-packed: with what loading one takes, under 4 bytes a weight


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
    made = replicate.quantiles()
    rows = files.read_json(replicate.thresholds)["quantiles"] if made else []
    cut = {Fraction(str(row["quantile"])) for row in rows if row.get("disconnected")}
    return [Source(replicate.mask(quantile), number, "", 0, quantile, quantile in cut) for quantile in made]


def _rounds(number: int, replicate: Replicate) -> list[Source]:
    found = []
    for path in replicate.folder.glob("rounds/*/*/mask.h5"):
        match = re.fullmatch(r"([a-z]+)-step-(\d+)/(\d+)", f"{path.parts[-3]}/{path.parts[-2]}")
        if match:
            table = Level(path.parent).table
            cut = table.exists() and bool(files.read_json(table).get("disconnected"))
            found.append(Source(path, number, match[1], int(match[2]), Fraction(match[3]), cut))
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
        for alike in _grouped(found, lambda source: source.name)
        for two in itertools.combinations(alike, 2)
    ]
    chains = [
        Pair("rewinds" if one.method == other.method else "methods", one, other)
        for alike in _grouped(rounds, lambda source: (source.replicate, source.number))
        for one, other in itertools.combinations(alike, 2)
        if one.method == other.method or one.step == other.step or "init" in (one.method, other.method)
    ]
    wanted += sorted(chains, key=lambda pair: pair.kind == "methods")
    for chain in _grouped(rounds, lambda source: (source.replicate, source.chain)):
        wanted += [Pair("levels", *two) for two in itertools.pairwise(chain)]
        wanted += [Pair("levels", chain[0], later) for later in chain[2:]]
    return wanted + _of_like_density(found, density)


def _grouped(found: Iterable[Item], key: Callable[[Item], Hashable]) -> Iterable[list[Item]]:
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
    for chain in _grouped((source for source in found if source.method), lambda source: (source.replicate, source.chain)):
        for source in (source for source in found if not source.method and source.replicate == chain[0].replicate):
            apart = {later: abs(densities[later] - densities[source]) for later in chain}
            nearest = min(chain, key=apart.__getitem__)
            if apart[nearest] <= LIKE_DENSITY * densities[source]:
                wanted.append(Pair("one-shot", source, nearest))
    return wanted


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A pair and its overlap, as a whole and by variable; `left_out` are the variables that only one of the masks has."""

    pair: Pair
    whole: Overlap
    layers: dict[str, Overlap]
    left_out: list[str]


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and range over the pairs of a group; all None where no pair has the figure."""

    mean: float | None
    least: float | None
    most: float | None


@dataclasses.dataclass(frozen=True)
class Group:
    """The pairs that differ in their replicates alone."""

    members: list[Comparison]

    @property
    def pair(self) -> Pair:
        return self.members[0].pair

    def spread(self, figure: str) -> Spread:
        """Of one of `SHARES`."""
        values = [getattr(member.whole, figure) for member in self.members]
        known = [value for value in values if value is not None]
        return Spread(statistics.fmean(known), min(known), max(known)) if known else Spread(None, None, None)

    def as_json(self) -> dict[str, Any]:
        """Names, spreads over the pairs by figure, and each pair with its layers."""
        return {
            "kind": self.pair.kind,
            "first": self.pair.first.name,
            "second": self.pair.second.name,
            "spread": {figure: dataclasses.asdict(self.spread(figure)) for figure in SHARES},
            "pairs": [_pair_as_json(member) for member in self.members],
        }


def _pair_as_json(member: Comparison) -> dict[str, Any]:
    return {
        "replicate_first": member.pair.first.replicate,
        "replicate_second": member.pair.second.replicate,
        **member.whole.figures(),
        "layers": {path: layer.figures() for path, layer in member.layers.items()},
    }


def compare(run: Run, reporter: Reporter) -> list[Group]:
    """Compare the masks of a run, write `report/compare.csv`, and return the groups, kind by kind.

    Masks are read when they are needed, and only `HELD_BYTES` of them are kept. Raises InputError when there are no two masks
    to compare but the rounds of one chain, which are nested by construction, or when two do not belong to one network.
    """
    found = sources(run)
    if not found:
        raise InputError(f"{run.folder} has no masks yet: run `imp thresholds` first")
    read = _reader(run, found)
    wanted = pairs(found, lambda source: read(source).density)
    if all(pair.kind == "levels" for pair in wanted):
        raise InputError(
            f"{run.folder} has nothing to compare: that takes masks of two replicates, of two chains of rounds, or rounds as "
            f"dense as one-shot masks; `imp run --run {shlex.quote(str(run.folder))} --set replicates=3` adds replicates"
        )
    compared = []
    with reporter.counting("masks", len(wanted), "pairs") as advance:
        for pair in wanted:
            compared.append(_compared(pair, _first_round(pair, found), read))
            advance(1)
    _warn_of_scopes(compared, reporter)
    files.write_text(run.report / "compare.csv", _csv(compared))
    return [
        Group(members) for members in _grouped(compared, lambda one: (one.pair.kind, one.pair.first.name, one.pair.second.name))
    ]


def _reader(run: Run, found: Sequence[Source]) -> Callable[[Source], Packed]:
    """A function that reads a mask as networks are trained under it, and keeps the last ones it read."""
    trained_part = lookup.trained_part(run, run.replicate(found[0].replicate))

    def read(source: Source) -> Packed:
        return pack(trained_part(masks.load(source.path)))

    held = HELD_BYTES // max(1, read(found[0]).nbytes)
    return functools.lru_cache(max(3, held))(read)


def _compared(pair: Pair, within: Source | None, read: Callable[[Source], Packed]) -> Comparison:
    first, second = read(pair.first), read(pair.second)
    try:
        layers = overlaps(first, second, read(within) if within else None)
    except InputError as error:
        raise InputError(f"{pair.first.path} and {pair.second.path}: {error}") from None
    return Comparison(pair, total(layers.values()), layers, sorted(first.bits.keys() ^ second.bits.keys()))


def _first_round(pair: Pair, found: Sequence[Source]) -> Source | None:
    """Round 1 of the second mask's chain, for masks of one replicate: it is cut from the dense network, so that other chains
    share it, and masks within it overlap by more than chance among all weights."""
    if pair.kind in ("replicates", "levels"):
        return None
    place = (pair.second.replicate, pair.second.chain, 1)
    return next((source for source in found if (source.replicate, source.chain, source.number) == place), None)


def _warn_of_scopes(compared: Sequence[Comparison], reporter: Reporter) -> None:
    partial = [one for one in compared if one.left_out]
    if partial:
        names = ", ".join(sorted({path for one in partial for path in one.left_out})[:3])
        reporter.say(
            f"warning: in {len(partial)} of {len(compared)} pairs the masks are of different scopes; what only one of them has "
            f"does not count ({names}, ...)"
        )


def _csv(compared: Iterable[Comparison]) -> str:
    """A line for each pair, its `layer` empty, and after it one for each variable."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in compared:
        first, second = one.pair.first, one.pair.second
        about = (one.pair.kind, first.name, second.name, first.replicate, second.replicate)
        for path, overlap in {"": one.whole, **one.layers}.items():
            writer.writerow((*about, path, *overlap.figures().values()))
    return buffer.getvalue()


def tables(groups: Sequence[Group], least: float) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Title and lines of a table for each kind of pairs but the rounds of one chain, in the columns `HEADINGS`. An exclamation
    mark says that a layer keeps a smaller share than `least`, or nothing, or that no path is left."""
    for kind, title in TITLES.items():
        lines = [_cells(group, least) for group in groups if group.pair.kind == kind]
        if lines:
            yield title, lines


def _cells(group: Group, least: float) -> tuple[str, ...]:
    names = dict.fromkeys((group.pair.first.name, group.pair.second.name))
    densities = dict.fromkeys(
        _per_cent(group.spread(density).mean) + (" !" if _has_collapsed(group, density, least) else "")
        for density in ("density_first", "density_second")
    )
    excess = group.spread("excess_sd").mean
    return (
        "\n".join(names),
        "\n".join(densities),
        str(len(group.members)),
        _with_range(group.spread("overlap")),
        _per_cent(group.spread("overlap_by_chance").mean),
        "" if excess is None else f"{excess:+,.1f}",
        _per_cent(group.spread("jaccard").mean),
        _per_cent(group.spread("jaccard_by_chance").mean),
    )


def _has_collapsed(group: Group, density: str, least: float) -> bool:
    """Whether a layer of any of these masks, the first or second of each pair, has, or all paths are cut."""
    if any(getattr(member.pair, density.removeprefix("density_")).disconnected for member in group.members):
        return True
    layers = [item for member in group.members for item in member.layers.items()]
    shares = [getattr(layer, density) for path, layer in layers if masks.in_scope(path, (), "kernels")]
    return any(share == 0 or share < least for share in shares if share is not None)


def _with_range(spread: Spread) -> str:
    if spread.least == spread.most:
        return _per_cent(spread.mean)
    return f"{_per_cent(spread.mean)} ({_per_cent(spread.least)}..{_per_cent(spread.most)})"


def _per_cent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def nesting(groups: Iterable[Group]) -> list[str]:
    """A sentence for each chain: whether each round keeps only weights that the one before, and the first, kept too."""
    rounds = [member for group in groups if group.pair.kind == "levels" for member in group.members]
    return [_nesting(members) for members in _grouped(rounds, lambda member: member.pair.first.chain)]


def _nesting(members: Sequence[Comparison]) -> str:
    chain = members[0].pair.first.chain
    for member in members:
        first, second, kept = member.pair.first, member.pair.second, member.whole.kept_second
        if member.whole.shared < kept:
            return (
                f"{chain} is not nested: of the {kept:,} weights that replicate {second.replicate} keeps in round "
                f"{second.number}, {member.whole.shared:,} are in round {first.number}"
            )
    last = max(members, key=lambda member: (member.pair.second.number, -member.pair.first.number))
    return (
        f"{chain}: rounds {last.pair.first.number} to {last.pair.second.number} are nested; of the {last.whole.kept_second:,} "
        f"weights of the last, {last.whole.shared:,} are in the first"
    )
