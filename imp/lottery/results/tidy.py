"""The tables behind the charts of the report: one row per mark, one column per quantity. Accuracies and shares are 0 .. 1."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas

from lottery.experiment.graph import DENSE
from lottery.experiment.plan import Plan
from lottery.pruning import masks, norms
from lottery.results import curves, frame, lookup
from lottery.rundir import lineage
from lottery.rundir.lineage import Lineage
from lottery.rundir.names import Replicate
from lottery.rundir.records import MaskRecord
from lottery.rundir.run import Run
from lottery.rundir.topology import layers_of

Row = dict[str, Any]
POINTS = 60  # of a course, which a chart of hundreds of them can show
BINS = 60
_SHORT = {
    "variant": "network",
    "count": "runs",
    "validation_accuracy": "validation",
    "test_accuracy": "test",
    "least_validation_loss_step": "early_step",
    "test_accuracy_there": "early_test",
}
_ACCURACIES = [
    *("network", "family", "mask", "density", "rewind", "rewind_step", "series", "runs", "validation", "sd_low", "sd_high"),
    *("test", "difference", "against", "verdict", "early_step", "early_test"),
]


@dataclasses.dataclass(frozen=True)
class Findings:
    """What there is to draw of a run, of its networks and their groups as frames. A table is made when it is first asked for,
    which raises InputError where a file that it needs is damaged."""

    run: Run
    networks: pandas.DataFrame
    groups: pandas.DataFrame

    @cached_property
    def accuracies(self) -> list[Row]:
        """The groups that have a result: means over their runs; `sd_low` and `sd_high` are one standard deviation from them."""
        found = self.groups[self.groups["count"] > 0]
        accuracy, spread = found["validation_accuracy"], found["spread"].fillna(0)
        series = [_series(self.run, group) for group in frame.each(found)]
        found = found.assign(series=series, sd_low=accuracy - spread, sd_high=accuracy + spread)
        return frame.dicts(found.rename(columns=_SHORT)[_ACCURACIES])

    @cached_property
    def layers(self) -> list[Row]:
        """What each mask of each replicate keeps of each layer; `collapsed` where that is nothing, or a smaller share than the
        recipe's `pruning.collapse`."""
        planned = self.run.trained_plan()
        return [
            {
                "replicate": number,
                "masks": _source(planned, record),
                "mask": record.mask,
                "density": record.kept.density.prunable,
                "layer": path.removesuffix("/kernel"),
                "weights": layer.weights,
                "kept": layer.kept,
                "share": layer.kept / max(layer.weights, 1),
                "collapsed": path in collapsed,
            }
            for number in self.run.known_numbers()
            for order in [layers_of(self.run.replicate(number))]
            for record in _masks(self.run, self.run.replicate(number))
            for collapsed in [record.kept.collapsed(self.run.recipe.pruning.collapse)]
            for path, layer in ((path, record.kept.layers[path]) for path in norms.in_order(record.kept.layers, order))
        ]

    @cached_property
    def magnitudes(self) -> list[Row]:
        return [bar for number in self._trained for bar in _histogram(self.run, number)]

    @cached_property
    def thresholds(self) -> list[Row]:
        return [threshold for number in self._trained for threshold in _thresholds(self.run, self.run.replicate(number))]

    @cached_property
    def courses(self) -> list[Row]:
        """How each network's accuracy went up in its training: means over replicates, at no more than `POINTS` points of it."""
        done = self.networks[self.networks["status"] == "done"]
        kinds = (frame.each(alike) for _, alike in done.groupby(frame.KIND, sort=False))
        return [point for alike in kinds for point in _course(self.run, alike)]

    @cached_property
    def training(self) -> list[Row]:
        return curves.tidy(curves.read(self.run))

    @property
    def _trained(self) -> list[int]:
        return [row.replicate for row in frame.each(self.networks) if (row.variant, row.status) == (DENSE, "done")]


def _series(run: Run, group: Any) -> str:
    if group.variant == DENSE:
        return DENSE
    family = run.recipe.families[group.family]
    chain = "" if len(run.recipe.families) == 1 and family.quantiles else f"{group.family}, "
    return f"{chain}{'from scratch' if group.variant in family.fresh_controls else f'rewound to {group.rewind}'}"


def _source(planned: Plan | None, record: MaskRecord) -> str:
    """What masks of one chart have in common: the family, and of rounds the rewind point."""
    if record.rewind_step is None:
        return record.family
    return f"{record.family} from {frame.rewind_name(planned, record.rewind_step)}"


def _masks(run: Run, replicate: Replicate) -> Iterator[MaskRecord]:
    held = Lineage(replicate)
    for name in run.recipe.families:
        for files in replicate.masks(name):
            held.check(files.mask)
            if record := files.read():
                yield record


def _histogram(run: Run, number: int) -> list[Row]:
    """Of log10 |w| of a replicate's final prunable weights."""
    replicate = run.replicate(number)
    state = lookup.snapshot(replicate, lookup.end(replicate), optimizer=False)
    settings = run.recipe.pruning
    together = norms.table(masks.prunable(state, settings.scope, settings.exclude), [], BINS)[-1]
    edges = np.linspace(together.low, together.high, BINS + 1)
    return [
        {"replicate": number, "log10_from": low, "log10_to": high, "weights": count}
        for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), together.histogram, strict=True)
    ]


def _thresholds(run: Run, replicate: Replicate) -> list[Row]:
    """Those of the masks that cut that histogram: magnitudes of final weights, all ranked together."""
    records = [record for name in run.recipe.families for files in replicate.masks(name) if (record := files.read())]
    return [
        {
            "replicate": record.replicate,
            "family": record.family,
            "mask": record.mask,
            "threshold": record.threshold,
            "log10": float(np.log10(record.threshold)),
        }
        for record in records
        if record.threshold and record.round == 1 and record.step == lookup.end(replicate)
        if run.recipe.families[record.family].criterion == "magnitude"
    ]


def _course(run: Run, alike: Sequence[Any]) -> Iterator[Row]:
    read = [{row["step"]: row for row in lineage.rows(run.network_in(network.folder))} for network in alike]
    steps = [step for step in read[0] if all(step in course for course in read)]
    places = np.linspace(0, max(len(steps) - 1, 0), min(len(steps), POINTS)).astype(int)
    first = alike[0]
    for step in (steps[index] for index in places):
        yield {
            "network": first.variant,
            "family": first.family,
            "mask": first.mask,
            "density": statistics.fmean(network.density for network in alike),
            "rewind": first.rewind,
            "runs": len(alike),
            "step": step,
            "epoch": read[0][step]["epoch"],
            **{
                f"{split}_accuracy": statistics.fmean(course[step][f"{split}_accuracy"] for course in read)
                for split in ("train", "validation", "test")
            },
        }


def costs(networks: pandas.DataFrame) -> pandas.DataFrame:
    """What the finished networks of each kind took: how many there are, epochs, hours of a device, seconds each."""
    done = networks[networks["status"] == "done"]
    done = done.assign(network=done["variant"], hours=done["seconds"] * done["devices"].fillna(1) / 3600)
    kinds = done.groupby(["network", "family"], sort=False, as_index=False)
    return kinds.agg(
        networks=("seconds", "size"), epochs=("epochs", "sum"), device_hours=("hours", "sum"), seconds_each=("seconds", "mean")
    )
