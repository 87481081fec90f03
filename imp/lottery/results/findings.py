"""What a run has found, for the sections of its report: one row per network, group or mark, one column per quantity.
Metrics and shares are 0 .. 1."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas

from lottery.experiment import controls
from lottery.experiment.graph import DENSE
from lottery.pruning import norms, overlap
from lottery.results import compare, criteria, frame, grouping, instability, ranking, settling
from lottery.results.headline import Headline, headline
from lottery.rundir import lineage, records
from lottery.rundir.lineage import Lineage
from lottery.rundir.run import Run

POINTS = 60  # of a course, which a chart of hundreds of them can show
SPLITS = ("train", "validation", "test")
_SHORT = {
    "variant": "network",
    "count": "runs",
    "least_validation_loss_step": "early_step",
    "test_there": "early_test",
}
_FIGURES = [
    *("network", "family", "mask", "density", "macs_share", "cost", "rewind", "rewind_step", "series", "runs"),
    *("validation", "sd_low", "sd_high", "test", "difference", "against", "verdict", "early_step", "early_test"),
]


@dataclasses.dataclass(frozen=True)
class Findings:
    """Frames of what is in the folder of a run. Each is made when it is first asked for, which raises InputError where a file
    that it needs is damaged."""

    run: Run
    left_out: list[str] = dataclasses.field(default_factory=list)
    """A line for each file that should be shown but cannot be read."""

    @cached_property
    def rows(self) -> pandas.DataFrame:
        """All networks (the columns of `frame.ROWS`)."""
        return grouping.rows(self.run)

    @property
    def has_dense(self) -> bool:
        """Whether a dense network is trained."""
        return bool(((self.rows["status"] == "done") & (self.rows["variant"] == DENSE)).any())

    @cached_property
    def networks(self) -> pandas.DataFrame:
        """Those that are compared: copies of tickets are for their instability, and for soups."""
        return self.rows[~self.rows["variant"].map(controls.is_again)]

    @cached_property
    def groups(self) -> pandas.DataFrame:
        """Their means and verdicts over replicates (`grouping.GROUPS`)."""
        return grouping.groups(self.run, self.networks)

    @cached_property
    def contrasts(self) -> pandas.DataFrame:
        """Tickets against all that they are compared with (`grouping.CONTRASTS`)."""
        return grouping.contrasts(self.run, self.networks)

    @cached_property
    def ranking(self) -> pandas.DataFrame:
        """Tickets of several families at equal density (`ranking.RANKS`)."""
        return ranking.ranking(self.run, self.networks, self.groups)

    @cached_property
    def checks(self) -> pandas.DataFrame:
        """Controls against tickets, and what they say of criteria (`criteria.CHECKS`)."""
        return criteria.checks(self.run, self.networks)

    @cached_property
    def headline(self) -> Headline:
        """The answer in sentences."""
        if not self.has_dense:
            failed = int(self.rows["status"].isin(["failed", "diverged"]).sum())
            told = f", {failed} failed or diverged" if failed else ""
            return Headline([], [], [], f"No dense network is trained yet{told}: see `imp status`.", "", [], [])
        return headline(self.groups, self.checks, self.run, self.rows)

    @cached_property
    def figures(self) -> pandas.DataFrame:
        """The groups that have a result: means over their runs; `sd_low` and `sd_high` are one standard deviation from them;
        `cost` is that of training and of all before, in epochs of the dense network."""
        found = self.groups[self.groups["count"] > 0]
        reached, spread = found["validation"], found["spread"].fillna(0)
        series = [_series(self.run, group) for group in frame.each(found)]
        found = found.assign(
            series=series,
            sd_low=reached - spread,
            sd_high=reached + spread,
            macs_share=1 / found["speedup"],
            cost=found["training_cost"] + found["finding_cost"],
        )
        return found.rename(columns=_SHORT)[_FIGURES]

    @cached_property
    def layers(self) -> pandas.DataFrame:
        """What each mask of each replicate keeps of each layer; `collapsed` where that is nothing, or a smaller share than the
        recipe's `pruning.collapse`."""
        return pandas.DataFrame(row for number in self.run.known_numbers() for row in _layers(self.run, number))

    @cached_property
    def overlaps(self) -> pandas.DataFrame:
        """How masks of one name overlap in two families, compared with chance: means over replicates. `beyond_chance` is 0 for
        no more than by chance, 1 for the same weights."""
        found = compare.sources(self.run)
        wanted = [pair for pair in compare.pairs(found) if pair.kind == "families"]
        compared = compare.alike(self.run, found, wanted)
        rows = pandas.DataFrame(_overlap(self.run, pair, figures[""]) for pair, figures in compared)
        if rows.empty:
            return rows
        means = rows.groupby(["mask", "first", "second"], sort=False, as_index=False).mean()
        return means.assign(beyond_chance=(means["overlap"] - means["chance"]) / (1 - means["chance"]))

    @cached_property
    def settling(self) -> pandas.DataFrame:
        """How far masks that are cut at the dense network's snapshots are apart (`settling.ROWS`)."""
        done = (self.networks["variant"] == DENSE) & (self.networks["status"] == "done")
        return settling.rows(self.run, self.networks.loc[done, "replicate"].tolist())

    @cached_property
    def courses(self) -> pandas.DataFrame:
        """How each network's metric went up in its training: means over replicates, at no more than `POINTS` points of it."""
        done = self.networks[self.networks["status"] == "done"]
        kinds = (frame.each(alike) for _, alike in done.groupby(frame.KIND, sort=False))
        names = [f"{split}_{self.run.metric}" for split in SPLITS]
        return pandas.DataFrame(point for alike in kinds for point in _course(self.run, alike, names))

    @cached_property
    def training(self) -> pandas.DataFrame:
        """The metric of the dense trainings, as far as they have come: a row for each replicate, epoch and split."""
        metric = self.run.metric
        return pandas.DataFrame(
            {"replicate": replicate.folder.name, "epoch": row["epoch"], "step": row["step"], "split": split}
            | {metric: row[f"{split}_{metric}"]}
            for replicate in map(self.run.replicate, self.run.known_numbers())
            for row in lineage.rows(replicate.dense)
            for split in SPLITS
        )

    @cached_property
    def instability(self) -> pandas.DataFrame:
        """That of each ticket whose copies were compared."""
        return instability.groups(self.run)

    @cached_property
    def lines(self) -> pandas.DataFrame:
        """The errors on the lines between the copies."""
        return instability.curves(self.run)


def _series(run: Run, group: Any) -> str:
    if group.variant == DENSE:
        return DENSE
    family = run.recipe.families[group.family]
    chain = "" if len(run.recipe.families) == 1 and family.quantiles else f"{group.family}, "
    is_shared = group.variant in family.shared_controls  # else each rewind point has its own
    return f"{chain}{'from scratch' if is_shared else f'rewound to {group.rewind}'}"


def _layers(run: Run, number: int) -> Iterator[dict[str, Any]]:
    replicate = run.replicate(number)
    held, order = Lineage(replicate), replicate.layers()
    staying = [name for name, family in run.recipe.families.items() if not family.changes_masks]
    for files in (files for name in staying for files in replicate.masks(name) if files.table.exists()):
        held.check(files.mask)
        record = records.read(files.table, records.MaskRecord)
        collapsed = record.kept.collapsed(run.recipe.pruning.collapse)
        for path in norms.in_order(record.kept.layers, order):
            layer = record.kept.layers[path]
            yield {
                "replicate": number,
                "masks": _masks(run, record),
                "mask": record.mask,
                "density": record.kept.density.prunable,
                "layer": path.removesuffix("/kernel"),
                "weights": layer.weights,
                "kept": layer.kept,
                "share": layer.kept / max(layer.weights, 1),
                "dense_macs": layer.dense_macs,
                "macs": layer.macs,
                "collapsed": path in collapsed,
            }


def _masks(run: Run, record: records.MaskRecord) -> str:
    """The name of the masks of a family; in rounds, of a rewind point."""
    step = record.rewind_step
    return record.family if step is None else f"{record.family} from {frame.rewind_name(run.trained_plan(), step)}"


def _overlap(run: Run, pair: compare.Pair, figures: overlap.Figures) -> dict[str, Any]:
    names = {"first": _masks(run, pair.first.record), "second": _masks(run, pair.second.record)}
    shares = {"density": pair.first.density, "overlap": figures["overlap"], "chance": figures["overlap_by_chance"]}
    return {"mask": pair.first.record.mask, **names, **shares}


def _course(run: Run, alike: Sequence[Any], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    read = [{row["step"]: row for row in lineage.rows(run.network_in(network.folder))} for network in alike]
    steps = [step for step in read[0] if all(step in course for course in read)]
    places = np.linspace(0, max(len(steps) - 1, 0), min(len(steps), POINTS)).astype(int)
    first, density = alike[0], statistics.fmean(network.density for network in alike)
    about = {"network": first.variant, "family": first.family, "mask": first.mask, "density": density, "rewind": first.rewind}
    for step in (steps[index] for index in places):
        means = {name: statistics.fmean(course[step][name] for course in read) for name in names}
        yield about | {"runs": len(alike), "step": step, "epoch": read[0][step]["epoch"], **means}
