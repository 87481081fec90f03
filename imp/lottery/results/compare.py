"""Which masks of a run are compared with each other, and how much they overlap by position, compared with chance.

Networks of one replicate start alike. Those of different replicates do not: a mask of one is put in the order of the other's
hidden units first.
"""

import dataclasses
import functools
import itertools
import shlex
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from lottery.base import files
from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.pruning import masks, overlap, units
from lottery.pruning.alignment import Alignment
from lottery.pruning.overlap import Figures
from lottery.pruning.units import Spec
from lottery.results.tables import csv_text
from lottery.rundir import store
from lottery.rundir.lineage import Lineage
from lottery.rundir.records import MaskRecord
from lottery.rundir.run import Run

Kind = Literal["aligned", "rewinds", "families", "densities"]

TITLES: dict[Kind, str] = {
    "aligned": "the same mask in different replicates, hidden units aligned",
    "rewinds": "the same round, rewound to different points (chance: within round 1, which they share)",
    "families": "the same mask of different families (chance: within round 1, where both lie in it)",
    "densities": "masks of one shot and rounds of like density (chance: within round 1, where both lie in it)",
}
HEADINGS = ("masks", "density %", "pairs", "overlap %", "chance %", "excess, sd", "Jaccard %", "chance %")
ALIGNED_EXPLAINED = (
    "Hidden units of the dense networks are matched by the correlation of their activations on training examples (Adnan et al. "
    "2025), and one mask is given the order of the other's units. Matched units correlate at {} on average; one that answers "
    "the same to all examples, at 0. Chance draws as many weights of each layer."
)
COLUMNS = (
    *("kind", "first", "second", "units", "replicate_first", "replicate_second", "layer"),
    *(*overlap.COUNTS, "density_first", "density_second"),
    *("overlap", "overlap_by_chance", "jaccard", "jaccard_by_chance", "excess_sd", "correlation"),
)

LIKE_DENSITY = 0.1  # relative difference up to which masks of unlike grids are compared
HELD = 16  # masks at a time, bit-packed: with what loading one takes, under 4 bytes a weight

Align = Callable[[int, int], Alignment]  # of the dense networks of two replicates
Group = dict[str, Any]
Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Source:
    """A mask of a run: its file, its record, and the units that it is made of."""

    path: Path
    record: MaskRecord = dataclasses.field(compare=False)
    units: Spec

    @property
    def replicate(self) -> int:
        return self.record.replicate

    @property
    def density(self) -> float:
        return self.record.kept.density.prunable

    @property
    def is_round(self) -> bool:
        return self.record.rewind_step is not None

    @property
    def chain(self) -> str:
        return self.record.family + (f"-step-{self.record.rewind_step:06d}" if self.is_round else "")

    @property
    def name(self) -> str:
        """The same in every replicate: `oneshot/q90`, `lr-step-000034/round-03`."""
        return f"{self.chain}/{self.record.mask}"


def sources(run: Run) -> list[Source]:
    """The masks of a run that stay in training: replicate by replicate, family by family."""
    return [
        Source(files.mask, record, family.units)
        for number in run.known_numbers()
        for name, family in run.recipe.families.items()
        if not family.changes_masks
        for files in run.replicate(number).masks(name)
        if (record := files.read())
    ]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two masks to compare. `kind` says why: it is the only thing in which they differ."""

    kind: Kind
    first: Source
    second: Source

    @property
    def units(self) -> Spec:
        """What is compared: the units that both are made of, or else weights. Alignment leaves only channels whole."""
        are_whole = self.kind != "aligned" or self.first.units.is_channel
        return self.first.units if are_whole and self.first.units == self.second.units else units.parse(units.WEIGHT)

    @property
    def names(self) -> dict[str, str]:
        return {"kind": self.kind, "first": self.first.name, "second": self.second.name, "units": self.units.text}

    @property
    def numbers(self) -> tuple[int, int]:
        return self.first.replicate, self.second.replicate

    @property
    def replicates(self) -> dict[str, int]:
        return dict(zip(("replicate_first", "replicate_second"), self.numbers, strict=True))


def pairs(found: Sequence[Source]) -> list[Pair]:
    """What is compared, kind by kind.

    Families are compared where they have the same mask (a quantile, a round), and rewind to the same point, or one of them to
    the start. The first round is cut from the dense network, so all chains of a family share it. Each mask of one shot is
    compared with the round of each chain of its replicate that is nearest in density, if near enough.
    """
    wanted = [
        Pair("aligned", *two)
        for alike in grouped(found, lambda source: source.name)
        for two in itertools.combinations(alike, 2)
    ]
    chains = []
    for alike in grouped(found, lambda source: (source.replicate, source.record.mask)):
        for one, other in itertools.combinations(alike, 2):
            steps = {one.record.rewind_step, other.record.rewind_step}
            if one.record.family == other.record.family:
                chains.append(Pair("rewinds", one, other))
            elif len(steps) == 1 or 0 in steps:
                chains.append(Pair("families", one, other))
    wanted += sorted(chains, key=lambda pair: pair.kind == "families")
    chained = grouped((one for one in found if one.is_round), lambda source: (source.replicate, source.chain))
    for chain in chained:
        for source in (one for one in found if not one.is_round and one.replicate == chain[0].replicate):
            nearest = min(chain, key=lambda later: abs(later.density - source.density))
            if abs(nearest.density - source.density) <= LIKE_DENSITY * source.density:
                wanted.append(Pair("densities", source, nearest))
    return wanted


def grouped(found: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """`found` by what `key` says of each, in the order of first appearance."""
    together: dict[Hashable, list[Item]] = {}
    for item in found:
        together.setdefault(key(item), []).append(item)
    return list(together.values())


def compare(run: Run, reporter: Reporter, align: Align) -> list[Group]:
    """Compare the masks of a run, write `report/compare.csv`, and return the groups of pairs that differ in their replicates
    alone, kind by kind, as `imp compare --json` prints them. Masks of two replicates are left out where `align` raises
    InputError, as it does without their dense networks or the examples.

    Masks are read when they are needed, and only `HELD` of them are kept. What only one of two masks covers does not count.
    Raises InputError if there is nothing to compare (the rounds of one chain are nested by construction), or if two masks do
    not belong to one network.
    """
    found = sources(run)
    if not found and all(family.changes_masks for family in run.recipe.families.values()):
        raise InputError(f"{run.folder} has nothing to compare: all its families change their masks in training")
    if not found:
        raise InputError(f"{run.folder} has no masks yet: run `imp thresholds` first")
    wanted = pairs(found)
    if not wanted:
        raise InputError(
            f"{run.folder} has nothing to compare: that takes masks of two replicates, of two chains of rounds, or rounds as "
            f"dense as one-shot masks; `imp run --run {shlex.quote(str(run.folder))} --set replicates=3` adds replicates"
        )
    across = sorted({pair.numbers for pair in wanted if pair.kind == "aligned"})
    if obstacles := _obstacles(across, align, reporter) if across else {}:
        wanted = [pair for pair in wanted if pair.numbers not in obstacles]
        which = ", ".join(f"{one} and {other}" for one, other in obstacles)
        which = "different replicates" if len(obstacles) == len(across) else f"replicates {which}"
        told = f"masks of {which} are not compared: {next(iter(obstacles.values()))}"
        if not wanted:
            raise InputError(told)
        reporter.say(told)
    compared: list[tuple[Pair, dict[str, Figures]]] = []
    with reporter.counting("masks", len(wanted), "pairs") as advance:
        for pair, figures in alike(run, found, wanted, align):
            compared.append((pair, figures))
            advance(1)
    rows = (
        {**pair.names, **pair.replicates, "layer": path, **figures}
        for pair, by_path in compared
        for path, figures in by_path.items()
    )
    files.write_text(run.report / "compare.csv", csv_text(COLUMNS, rows))
    return [_group(members) for members in grouped(compared, lambda one: tuple(one[0].names.values()))]


def _obstacles(across: Sequence[tuple[int, int]], align: Align, reporter: Reporter) -> dict[tuple[int, int], str]:
    """Align pairs of replicates, and say of which this cannot be done, and why."""
    found = {}
    with reporter.counting("aligning", len(across), "pairs of replicates") as advance:
        for one, other in across:
            try:
                align(one, other)
            except InputError as error:
                found[one, other] = str(error)
            advance(1)
    return found


def alike(
    run: Run, found: Sequence[Source], wanted: Iterable[Pair], align: Align | None = None
) -> Iterator[tuple[Pair, dict[str, Figures]]]:
    """Each of the pairs, and its figures by layer. Only pairs of different replicates need `align`."""
    packed = _reader(run, align)
    # Round 1 of a chain is cut from the dense network, so that other chains share it, and masks within it overlap by more than
    # chance among all weights.
    pools = {(one.replicate, one.chain): one for one in found if one.is_round and one.record.round == 1}
    for pair in wanted:
        ours, theirs = pair.numbers
        pool = pools.get((theirs, pair.second.chain)) if ours == theirs else None
        first, *within = [packed(source, pair.units, ours) for source in (pair.first, pool) if source]
        second = packed(pair.second, pair.units, ours)
        try:
            figures = overlap.overlaps(first, second, *within)
        except InputError as error:
            raise InputError(f"{pair.first.path} and {pair.second.path}: {error}") from None
        if align and ours != theirs:
            figures[""]["correlation"] = align(ours, theirs).correlation
        yield pair, figures


def _reader(run: Run, align: Align | None) -> Callable[[Source, Spec, int], dict[str, overlap.Packed]]:
    """A function that reads a mask, as networks are trained under it, packed by units, and keeps the last ones; that of another
    replicate has its hidden units in the order of `ours`. It raises InputError for one that is not of its dense network."""
    lineages = {number: Lineage(run.replicate(number)) for number in run.known_numbers()}

    @functools.lru_cache(HELD)
    def packed(source: Source, by: Spec, ours: int) -> dict[str, overlap.Packed]:
        lineages[source.replicate].check(source.path)
        mask = masks.trainable_part(store.load_mask(source.path), source.record.kept.layers)
        mask = align(ours, source.replicate).permuted(mask) if align and source.replicate != ours else mask
        topology, shapes = run.replicate(source.replicate).read_topology(), {path: kept.shape for path, kept in mask.items()}
        scope = [path for path, shape in shapes.items() if run.recipe.pruning.covers(path, shape)]
        made_of = units.of(by, "mean", shapes, scope, topology, run.recipe.pruning.streams)
        groups = {path: made_of.groups(path, shapes[path]) for path in mask} if isinstance(made_of, units.NofM) else {}
        kept = {path: counts.astype(bool, copy=False) for path, counts in made_of.total(mask).items()}
        return overlap.pack(kept, groups)

    return packed


def _group(members: Sequence[tuple[Pair, dict[str, Figures]]]) -> Group:
    """Names, mean and range over the pairs by figure (None where no pair has it), and each pair with its layers."""
    pair, figures = members[0]
    shares = [name for name in figures[""] if name not in overlap.COUNTS]
    return {
        **pair.names,
        "spread": {name: _spread([found[""][name] for _, found in members]) for name in shares},
        "pairs": [
            {**pair.replicates, **found[""], "layers": {path: layer for path, layer in found.items() if path}}
            for pair, found in members
        ],
    }


def _spread(values: Sequence[float | None]) -> Figures:
    known = [value for value in values if value is not None]
    if not known:
        return dict.fromkeys(("mean", "least", "most"))
    return {"mean": statistics.fmean(known), "least": min(known), "most": max(known)}


def tables(run: Run, groups: Sequence[Group]) -> Iterator[tuple[str, list[tuple[str, ...]], str]]:
    """For each kind of pairs: a title, rows under `HEADINGS`, and what a reader must know of the figures. An exclamation mark
    says that a layer keeps a smaller share than the recipe's `pruning.collapse`, or nothing, or that no path is left."""
    least = run.recipe.pruning.collapse
    collapsed = {(source.name, source.replicate) for source in sources(run) if source.record.kept.warning(least)}
    for kind, title in TITLES.items():
        of_kind = [group for group in groups if group["kind"] == kind]
        correlations = [pair["correlation"] for group in of_kind for pair in group["pairs"]] if kind == "aligned" else []
        explained = ALIGNED_EXPLAINED.format(_with_range(_spread(correlations), 1)) if correlations else ""
        if of_kind:
            yield title, [(*_names(group, collapsed), *_cells(group["spread"])) for group in of_kind], explained


def _names(group: Group, collapsed: set[tuple[str, int]]) -> tuple[str, str, str]:
    """The names of the masks, their densities, and the number of pairs."""
    names, densities = [], []
    for which in ("first", "second"):
        names.append(group[which])
        marked = any((group[which], pair[f"replicate_{which}"]) in collapsed for pair in group["pairs"])
        densities.append(_shown(group["spread"][f"density_{which}"]["mean"]) + (" !" if marked else ""))
    if group["kind"] == "families":  # in one line: they are many
        chains, (mask, _) = zip(*(name.split("/") for name in names), strict=True)
        names = [f"{mask}: {', '.join(chains)}"]
    if (counted := units.parse(group["units"]).plural) != "weights":
        names.append(f"by {counted}")
    return "\n".join(dict.fromkeys(names)), "\n".join(dict.fromkeys(densities)), str(len(group["pairs"]))


def _cells(spread: Mapping[str, Figures]) -> tuple[str, ...]:
    excess = spread["excess_sd"]["mean"]
    return (
        _with_range(spread["overlap"]),
        _shown(spread["overlap_by_chance"]["mean"]),
        "" if excess is None else f"{excess:+,.1f}",
        _shown(spread["jaccard"]["mean"]),
        _shown(spread["jaccard_by_chance"]["mean"]),
    )


def _with_range(spread: Figures, scale: int = 100) -> str:
    mean, least, most = (_shown(value, scale) for value in spread.values())
    return mean if spread["least"] == spread["most"] else f"{mean} ({least}..{most})"


def _shown(value: float | None, scale: int = 100) -> str:
    """In per cent, unless the scale is 1."""
    return "" if value is None else f"{scale * value:z.2f}"
