"""How alike the masks of a run are, compared with chance.

By position where both masks are of one replicate, whose networks start alike; across replicates in what is the same whatever
the hidden units are called.
"""

import contextlib
import dataclasses
import functools
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from data_prep import files
from data_prep.errors import InputError
from lottery import densities, invariants, masks, overlap
from lottery.invariants import Likeness, Profile
from lottery.lineage import Lineage
from lottery.overlap import Overlap, Packed
from lottery.progress import Reporter
from lottery.results import lookup
from lottery.results.pairing import Kind, Pair, Source, grouped, pairs, sources
from lottery.run import Run
from lottery.tables import csv_text

TITLES: dict[Kind, str] = {
    "replicates": "the same mask in different replicates",
    "rewinds": "the same round, rewound to different points (chance: within round 1, which they share)",
    "methods": "the same round by different methods (chance: within round 1, which they share)",
    "one-shot": "one-shot masks and rounds of like density (chance: within round 1, where both lie in it)",
}
HEADINGS = ("masks", "density %", "pairs", "overlap %", "chance %", "excess, sd", "Jaccard %", "chance %")
ACROSS_HEADINGS = ("masks", "density %", "pairs", "compared", "found", "by chance")
ACROSS = {
    "layers_alike": "layers, alike %",
    "input_correlation": "places of the input, correlation",
    "kernel_correlation": "places of kernels, correlation",
    "classes_correlation": "classes, correlation",
    "units_alike": "hidden units, alike %",
}
ACROSS_EXPLAINED = (
    "Hidden units of different replicates have no common order: overlaps by position would mean nothing, so the masks are "
    "compared in what does not depend on it. Alike: the share of the kept weights that have a counterpart in the same layer of "
    "the other mask, or in the unit of that layer with the same rank by size; chance draws one mask at random. Correlation: of "
    "the weights kept at each place, 1 in full agreement, 0 by chance. ± is one standard deviation of a single pair by chance. "
    "Not all agreement is learned: layers agree by the scale of their initial weights, and where each is pruned by itself by "
    "that rule; places that can never learn (a pixel that is always 0, the rim of a kernel on a map of one pixel) agree too."
)
COLUMNS = (
    *("kind", "first", "second", "replicate_first", "replicate_second", "layer"),
    *dict.fromkeys((*overlap.COUNTS, *overlap.SHARES, *invariants.SHARES)),
)

HELD_BYTES = 1 << 27  # of masks held at a time, bit-packed: with what loading one takes, under 4 bytes a weight


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A pair and how alike it is, as a whole and by variable; `left_out` are the variables that only one of the masks has."""

    pair: Pair
    whole: Overlap | Likeness
    layers: Mapping[str, Overlap | Likeness]
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
        """Of one of the figures' `SHARES`."""
        values = [member.whole.figures()[figure] for member in self.members]
        known = [value for value in values if value is not None]
        return Spread(statistics.fmean(known), min(known), max(known)) if known else Spread(None, None, None)

    def as_json(self) -> dict[str, Any]:
        """Names, spreads over the pairs by figure, and each pair with its layers."""
        return {
            "kind": self.pair.kind,
            "first": self.pair.first.name,
            "second": self.pair.second.name,
            "spread": {figure: dataclasses.asdict(self.spread(figure)) for figure in self.members[0].whole.SHARES},
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
    load = _loader(run, found[0])
    read = _reader(load, found)
    wanted = pairs(found, lambda source: read(source).density)
    if all(pair.kind == "levels" for pair in wanted):
        raise InputError(
            f"{run.folder} has nothing to compare: that takes masks of two replicates, of two chains of rounds, or rounds as "
            f"dense as one-shot masks; `imp run --run {shlex.quote(str(run.folder))} --set replicates=3` adds replicates"
        )
    profile = _profiler(run, load)
    compared = []
    with reporter.counting("masks", len(wanted), "pairs") as advance:
        for pair in wanted:
            across = pair.kind == "replicates"
            compared.append(_across(pair, profile) if across else _by_position(pair, _first_round(pair, found), read))
            advance(1)
    _warn(compared, reporter)
    files.write_text(run.report / "compare.csv", csv_text(COLUMNS, _rows(compared)))
    return [
        Group(members) for members in grouped(compared, lambda one: (one.pair.kind, one.pair.first.name, one.pair.second.name))
    ]


def _loader(run: Run, any_mask: Source) -> Callable[[Source], masks.Mask]:
    """A function that reads a mask as networks are trained under it, and raises InputError for one that is not of the
    replicate's dense network."""
    trained_part = lookup.trained_part(run, run.replicate(any_mask.replicate))
    lineages = {number: Lineage(run.replicate(number)) for number in run.known_numbers()}

    def load(source: Source) -> masks.Mask:
        lineages[source.replicate].check(source.path)
        return trained_part(masks.load(source.path))

    return load


def _reader(load: Callable[[Source], masks.Mask], found: Sequence[Source]) -> Callable[[Source], Packed]:
    """A function that reads a mask, and keeps the last ones it read."""

    def read(source: Source) -> Packed:
        return overlap.pack(load(source))

    held = HELD_BYTES // max(1, read(found[0]).nbytes)
    return functools.lru_cache(max(3, held))(read)


def _profiler(run: Run, load: Callable[[Source], masks.Mask]) -> Callable[[Source], dict[str, Profile]]:
    """A function that reads the profile of a mask, and keeps the last ones, those of one name."""
    topologies = {number: densities.topology_of(run.replicate(number)) for number in run.known_numbers()}
    layouts = {number: invariants.layouts(topology) for number, topology in topologies.items()}

    def profile(source: Source) -> dict[str, Profile]:
        mask = load(source)
        try:
            return invariants.profiles(mask, layouts[source.replicate])
        except InputError as error:
            raise InputError(f"{source.path}: {error}") from None

    return functools.lru_cache(len(layouts))(profile)


def _by_position(pair: Pair, within: Source | None, read: Callable[[Source], Packed]) -> Comparison:
    first, second, pool = read(pair.first), read(pair.second), read(within) if within else None
    with _naming(pair):
        layers = overlap.overlaps(first, second, pool)
    return Comparison(pair, overlap.total(layers.values()), layers, sorted(first.bits.keys() ^ second.bits.keys()))


def _across(pair: Pair, profile: Callable[[Source], dict[str, Profile]]) -> Comparison:
    first, second = profile(pair.first), profile(pair.second)
    with _naming(pair):
        layers = invariants.likenesses(first, second)
    return Comparison(pair, invariants.whole(layers), layers, sorted(first.keys() ^ second.keys()))


@contextlib.contextmanager
def _naming(pair: Pair) -> Iterator[None]:
    """Put the masks' names before what is wrong with them."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{pair.first.path} and {pair.second.path}: {error}") from None


def _first_round(pair: Pair, found: Sequence[Source]) -> Source | None:
    """Round 1 of the second mask's chain: it is cut from the dense network, so that other chains share it, and masks within it
    overlap by more than chance among all weights. None for rounds of one chain."""
    if pair.kind == "levels":
        return None
    place = (pair.second.replicate, pair.second.chain, 1)
    return next((source for source in found if (source.replicate, source.chain, source.number) == place), None)


def _warn(compared: Sequence[Comparison], reporter: Reporter) -> None:
    """Of masks of different scopes, and of networks whose connections are not known."""
    partial = [one for one in compared if one.left_out]
    if partial:
        names = ", ".join(sorted({path for one in partial for path in one.left_out})[:3])
        reporter.say(
            f"warning: in {len(partial)} of {len(compared)} pairs the masks are of different scopes; what only one of them has "
            f"does not count ({names}, ...)"
        )
    wholes = [one.whole for one in compared if isinstance(one.whole, Likeness)]
    unknown = [whole for whole in wholes if not whole.places and not whole.units]
    if unknown:
        reporter.say(
            f"warning: in {len(unknown)} of {len(wholes)} pairs of replicates it is not known which layers read the input and "
            f"which hidden units (a subclassed model does not say): only how many weights each layer keeps is compared"
        )


def _rows(compared: Iterable[Comparison]) -> Iterator[dict[str, Any]]:
    """A row for each pair, its `layer` empty, and after it one for each variable."""
    for one in compared:
        first, second = one.pair.first, one.pair.second
        about = (one.pair.kind, first.name, second.name, first.replicate, second.replicate)
        for path, found in {"": one.whole, **one.layers}.items():
            yield {**dict(zip(COLUMNS, (*about, path), strict=False)), **found.figures()}


@dataclasses.dataclass(frozen=True)
class Table:
    """What is printed of a kind of pairs; `explained`: what a reader must know of its figures."""

    title: str
    headings: tuple[str, ...]
    lines: list[tuple[str, ...]]
    explained: str


def tables(groups: Sequence[Group], least: float) -> Iterator[Table]:
    """A table for each kind of pairs but the rounds of one chain. An exclamation mark says that a layer keeps a smaller share
    than `least`, or nothing, or that no path is left."""
    for kind, title in TITLES.items():
        across = kind == "replicates"
        cells = _cells_across if across else _cells_by_position
        lines = [(*_names(group, least), *cells(group)) for group in groups if group.pair.kind == kind]
        if lines:
            yield Table(title, ACROSS_HEADINGS if across else HEADINGS, lines, ACROSS_EXPLAINED if across else "")


def _names(group: Group, least: float) -> tuple[str, str, str]:
    """Of the masks, their densities, and how many pairs there are."""
    names = dict.fromkeys((group.pair.first.name, group.pair.second.name))
    densities = dict.fromkeys(
        _per_cent(group.spread(density).mean) + (" !" if _has_collapsed(group, density, least) else "")
        for density in ("density_first", "density_second")
    )
    return "\n".join(names), "\n".join(densities), str(len(group.members))


def _cells_by_position(group: Group) -> tuple[str, ...]:
    excess = group.spread("excess_sd").mean
    return (
        _with_range(group.spread("overlap"), _per_cent),
        _per_cent(group.spread("overlap_by_chance").mean),
        "" if excess is None else f"{excess:+,.1f}",
        _per_cent(group.spread("jaccard").mean),
        _per_cent(group.spread("jaccard_by_chance").mean),
    )


def _cells_across(group: Group) -> tuple[str, ...]:
    """A line in each cell for each of the figures that there are."""
    lines = []
    for figure, label in ACROSS.items():
        found, deviation = group.spread(figure), group.spread(f"{figure}_sd").mean
        if found.mean is not None and deviation is not None:
            in_per_cent = figure.endswith("_alike")
            chance = group.spread(f"{figure}_by_chance").mean if in_per_cent else 0
            show = _per_cent if in_per_cent else _correlation
            lines.append((label, _with_range(found, show), f"{show(chance)} ± {show(deviation)}"))
    return tuple(map("\n".join, zip(*lines, strict=True)))


def _has_collapsed(group: Group, density: str, least: float) -> bool:
    """Whether a layer of any of these masks, the first or second of each pair, has, or all paths are cut."""
    if any(getattr(member.pair, density.removeprefix("density_")).disconnected for member in group.members):
        return True
    layers = [item for member in group.members for item in member.layers.items()]
    shares = [getattr(layer, density) for path, layer in layers if masks.in_scope(path, (), "kernels")]
    return any(share == 0 or share < least for share in shares if share is not None)


def _with_range(spread: Spread, show: Callable[[float | None], str]) -> str:
    if spread.least == spread.most:
        return show(spread.mean)
    return f"{show(spread.mean)} ({show(spread.least)}..{show(spread.most)})"


def _per_cent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _correlation(value: float | None) -> str:
    return "" if value is None else f"{value:z.2f}"


def nesting(groups: Iterable[Group]) -> list[str]:
    """A sentence for each chain: whether each round keeps only weights that the one before, and the first, kept too."""
    members = [member for group in groups if group.pair.kind == "levels" for member in group.members]
    rounds = [(member.pair, member.whole) for member in members if isinstance(member.whole, Overlap)]
    return [_nesting(alike) for alike in grouped(rounds, lambda one: one[0].first.chain)]


def _nesting(rounds: Sequence[tuple[Pair, Overlap]]) -> str:
    chain = rounds[0][0].first.chain
    for pair, found in rounds:
        first, second, kept = pair.first, pair.second, found.kept_second
        if found.shared < kept:
            return (
                f"{chain} is not nested: of the {kept:,} weights that replicate {second.replicate} keeps in round "
                f"{second.number}, {found.shared:,} are in round {first.number}"
            )
    last, found = max(rounds, key=lambda one: (one[0].second.number, -one[0].first.number))
    return (
        f"{chain}: rounds {last.first.number} to {last.second.number} are nested; of the {found.kept_second:,} "
        f"weights of the last, {found.shared:,} are in the first"
    )
