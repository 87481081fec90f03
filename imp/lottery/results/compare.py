"""How alike the masks of a run are, compared with chance.

Masks of one replicate, whose networks start alike, are compared by position; masks of different replicates in what does not
depend on the order of hidden units.
"""

import contextlib
import dataclasses
import functools
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from data_prep import files
from data_prep.errors import InputError
from lottery.progress import Reporter
from lottery.pruning import invariants, masks, overlap
from lottery.pruning.invariants import Likeness, Profile
from lottery.pruning.overlap import Overlap, Packed
from lottery.results import lookup
from lottery.results.pairing import Kind, Pair, Source, grouped, pairs, sources
from lottery.results.tables import csv_text
from lottery.rundir import store
from lottery.rundir.lineage import Lineage
from lottery.rundir.run import Run
from lottery.rundir.topology import topology_of

TITLES: dict[Kind, str] = {
    "replicates": "the same mask in different replicates",
    "rewinds": "the same round, rewound to different points (chance: within round 1, which they share)",
    "families": "the same mask of different families (chance: within round 1, where both lie in it)",
    "densities": "masks of one shot and rounds of like density (chance: within round 1, where both lie in it)",
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

HELD = 16  # masks at a time, bit-packed: with what loading one takes, under 4 bytes a weight


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A pair and how alike it is, as a whole and by variable; `left_out` are the variables that only one of the masks has."""

    pair: Pair
    whole: Overlap | Likeness
    layers: Mapping[str, Overlap | Likeness]
    left_out: list[str]


class Spread(NamedTuple):
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
            "spread": {figure: self.spread(figure)._asdict() for figure in self.members[0].whole.SHARES},
            "pairs": [
                {
                    "replicate_first": member.pair.first.replicate,
                    "replicate_second": member.pair.second.replicate,
                    **member.whole.figures(),
                    "layers": {path: layer.figures() for path, layer in member.layers.items()},
                }
                for member in self.members
            ],
        }


def compare(run: Run, reporter: Reporter) -> list[Group]:
    """Compare the masks of a run, write `report/compare.csv`, and return the groups, kind by kind.

    Masks are read when they are needed, and only `HELD` of them are kept. Raises InputError if there is nothing to
    compare but the rounds of one chain, which are nested by construction, or if two masks do not belong to one network.
    """
    found = sources(run)
    if not found:
        raise InputError(f"{run.folder} has no masks yet: run `imp thresholds` first")
    wanted = pairs(found)
    if all(pair.kind == "rounds" for pair in wanted):
        raise InputError(
            f"{run.folder} has nothing to compare: that takes masks of two replicates, of two chains of rounds, or rounds as "
            f"dense as one-shot masks; `imp run --run {shlex.quote(str(run.folder))} --set replicates=3` adds replicates"
        )
    packed, profile = _readers(run, found)
    compared = []
    with reporter.counting("masks", len(wanted), "pairs") as advance:
        for pair in wanted:
            compared.append(_compared(pair, found, packed, profile))
            advance(1)
    _warn(compared, reporter)
    files.write_text(run.report / "compare.csv", csv_text(COLUMNS, _rows(compared)))
    return [
        Group(members) for members in grouped(compared, lambda one: (one.pair.kind, one.pair.first.name, one.pair.second.name))
    ]


def _readers(run: Run, found: Sequence[Source]) -> tuple[Callable[[Source], Packed], Callable[[Source], dict[str, Profile]]]:
    """Functions that read a mask, as networks are trained under it, packed or as a profile, and keep the last ones. They raise
    InputError for one that is not of its replicate's dense network."""
    trained_part = lookup.trained_part(run, run.replicate(found[0].replicate))
    lineages = {number: Lineage(run.replicate(number)) for number in run.known_numbers()}
    layouts = {number: invariants.layouts(topology_of(run.replicate(number))) for number in run.known_numbers()}

    def load(source: Source) -> masks.Mask:
        lineages[source.replicate].check(source.path)
        return trained_part(store.load_mask(source.path))

    def packed(source: Source) -> Packed:
        return overlap.pack(load(source))

    def profile(source: Source) -> dict[str, Profile]:
        with _naming(source):
            return invariants.profiles(load(source), layouts[source.replicate])

    return functools.lru_cache(HELD)(packed), functools.lru_cache(len(layouts))(profile)


def _compared(
    pair: Pair,
    found: Sequence[Source],
    packed: Callable[[Source], Packed],
    profile: Callable[[Source], dict[str, Profile]],
) -> Comparison:
    """Two masks of one replicate by position, those of two replicates in what does not depend on it."""
    if pair.kind == "replicates":
        one, other = profile(pair.first), profile(pair.second)
        with _naming(pair.first, pair.second):
            likenesses = invariants.likenesses(one, other)
        return Comparison(pair, invariants.whole(likenesses), likenesses, sorted(one.keys() ^ other.keys()))
    within = _first_round(pair, found)
    first, second, pool = packed(pair.first), packed(pair.second), packed(within) if within else None
    with _naming(pair.first, pair.second):
        overlaps = overlap.overlaps(first, second, pool)
    return Comparison(pair, overlap.total(overlaps.values()), overlaps, sorted(first.bits.keys() ^ second.bits.keys()))


@contextlib.contextmanager
def _naming(*sources: Source) -> Iterator[None]:
    """Put the masks' names before what is wrong with them."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{' and '.join(str(source.path) for source in sources)}: {error}") from None


def _first_round(pair: Pair, found: Sequence[Source]) -> Source | None:
    """Round 1 of the second mask's chain: it is cut from the dense network, so that other chains share it, and masks within it
    overlap by more than chance among all weights. None for rounds of one chain."""
    if pair.kind == "rounds":
        return None
    place = (pair.second.replicate, pair.second.chain, 1)
    rounds = (source for source in found if source.is_round)
    return next((source for source in rounds if (source.replicate, source.chain, source.record.round) == place), None)


def _warn(compared: Sequence[Comparison], reporter: Reporter) -> None:
    """Warn about masks of different scopes, and about networks whose connections are not known."""
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
    """What is printed about one kind of pairs; `explained` is what a reader must know about its figures."""

    title: str
    headings: tuple[str, ...]
    lines: list[tuple[str, ...]]
    explained: str


def tables(groups: Sequence[Group], least: float) -> Iterator[Table]:
    """A table for each kind of pairs, except the rounds of one chain. An exclamation mark says that a layer keeps a smaller
    share than `least`, or nothing, or that no path is left."""
    for kind, title in TITLES.items():
        across = kind == "replicates"
        cells = _cells_across if across else _cells_by_position
        lines = [(*_names(group, least), *cells(group)) for group in groups if group.pair.kind == kind]
        if lines:
            yield Table(title, ACROSS_HEADINGS if across else HEADINGS, lines, ACROSS_EXPLAINED if across else "")


def _names(group: Group, least: float) -> tuple[str, str, str]:
    """The names of the masks, their densities, and the number of pairs."""
    names = dict.fromkeys((group.pair.first.name, group.pair.second.name))
    densities = dict.fromkeys(
        _per_cent(group.spread(f"density_{which}").mean) + (" !" if _has_collapsed(group, which, least) else "")
        for which in ("first", "second")
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


def _has_collapsed(group: Group, which: str, least: float) -> bool:
    """Whether a layer of any of these masks, the `first` or `second` of each pair, has, or all paths are cut."""
    return any(getattr(member.pair, which).record.kept.warning(least) for member in group.members)


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
    members = [member for group in groups if group.pair.kind == "rounds" for member in group.members]
    steps = [(member.pair, member.whole) for member in members if isinstance(member.whole, Overlap)]
    return [_nesting(alike) for alike in grouped(steps, lambda one: one[0].first.chain)]


def _nesting(rounds: Sequence[tuple[Pair, Overlap]]) -> str:
    chain = rounds[0][0].first.chain
    for pair, found in rounds:
        first, second, kept = pair.first, pair.second, found.kept_second
        if found.shared < kept:
            return (
                f"{chain} is not nested: of the {kept:,} weights that replicate {second.replicate} keeps in round "
                f"{second.record.round}, {found.shared:,} are in round {first.record.round}"
            )
    last, found = max(rounds, key=lambda one: (one[0].second.record.round, -one[0].first.record.round))
    return (
        f"{chain}: rounds {last.first.record.round} to {last.second.record.round} are nested; of the {found.kept_second:,} "
        f"weights of the last, {found.shared:,} are in the first"
    )
