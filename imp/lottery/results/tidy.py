"""What the report's charts show, as tidy tables: one row a mark, one column a quantity. Accuracies and shares are 0 .. 1."""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data_prep import files
from lottery import densities, lineage, masks, norms
from lottery.grids import quantile_name
from lottery.jobs import FROM_SCRATCH
from lottery.lineage import Lineage
from lottery.results import lookup
from lottery.results.grouping import Group
from lottery.results.listing import Row, place
from lottery.run import Run

POINTS = 60  # of a course, which a chart of hundreds of them can show
BINS = 60


def accuracies(groups: Sequence[Group]) -> list[Row]:
    """The groups that have a result: means over their runs; `sd_low` and `sd_high` are one standard deviation from them."""
    return [
        {
            "network": group.variant,
            "mask": _mask(dataclasses.asdict(group)),
            "density": group.density,
            "rewind": group.rewind,
            "rewind_step": group.rewind_step,
            "series": _series(group),
            "runs": group.count,
            "validation": group.validation_accuracy,
            "sd_low": group.validation_accuracy - (group.spread or 0),
            "sd_high": group.validation_accuracy + (group.spread or 0),
            "test": group.test_accuracy,
            "difference": group.difference if math.isfinite(group.difference) and group.variant != "dense" else None,
            "against": group.against,
            "verdict": group.verdict,
            "early_step": group.early_step,
            "early_test": group.early_test_accuracy,
        }
        for group in groups
        if group.count
    ]


def _mask(row: Mapping[str, Any]) -> str:
    """`q90`, or `round 3`, whose method the series names; nothing for a dense network."""
    if row["quantile"] is not None:
        return f"q{row['quantile']:g}"
    return "" if row["level"] is None else f"round {row['level']}"


def _series(group: Group) -> str:
    if group.variant == "dense":
        return "dense"
    chain = "" if group.method == "oneshot" else f"{group.method}, "
    return f"{chain}from scratch" if group.variant in FROM_SCRATCH else f"{chain}rewound to {group.rewind}"


def layers(run: Run, least: float) -> list[Row]:
    """What each mask of each replicate keeps of each layer; `collapsed` where that is a smaller share than `least`, or
    nothing."""
    return [
        {
            "replicate": number,
            "masks": source,
            "mask": name,
            "density": sum(map(np.count_nonzero, mask.values())) / max(sum(kept.size for kept in mask.values()), 1),
            "layer": path.removesuffix("/kernel"),
            "weights": kept.size,
            "kept": int(np.count_nonzero(kept)),
            "share": float(np.count_nonzero(kept)) / max(kept.size, 1),
            "collapsed": path in emptied,
        }
        for number in run.known_numbers()
        for order in [densities.layers_of(run.replicate(number))]
        for source, name, mask in _masks(run, number)
        for emptied in [masks.collapsed(mask, least)]
        for path, kept in ((path, mask[path]) for path in norms.in_order(mask, order))
    ]


def _masks(run: Run, number: int) -> Iterator[tuple[str, str, masks.Mask]]:
    """Every mask of a replicate, as networks are trained under it: `oneshot` or its chain of rounds, its name, and itself."""
    replicate = run.replicate(number)
    found = [("oneshot", f"q{quantile_name(quantile)}", replicate.mask(quantile)) for quantile in replicate.listed_quantiles()]
    found += [(level.folder.parent.name, f"round {int(level.folder.name)}", level.mask) for level in replicate.levels()]
    if not found:
        return
    trained_part, held = lookup.trained_part(run, replicate), Lineage(replicate)
    for source, name, path in found:
        held.check(path)
        yield source, name, trained_part(masks.load(path))


def magnitudes(run: Run) -> tuple[list[Row], list[Row]]:
    """The histogram of log10 |w| of each replicate's final prunable weights, and the thresholds of its masks, as log10 too."""
    bars: list[Row] = []
    thresholds: list[Row] = []
    for number in run.known_numbers():
        replicate = run.replicate(number)
        trained = (replicate.dense.read_result() or {}).get("status") == "done"
        if not trained:
            continue
        state = lookup.snapshot(replicate, lookup.end(replicate), slots=False)
        settings = run.recipe.thresholds
        together = norms.table(masks.prunable(state, settings.scope, settings.exclude), [], BINS)[-1]
        edges = np.linspace(together.low, together.high, BINS + 1)
        bars += [
            {"replicate": number, "log10_from": low, "log10_to": high, "weights": count}
            for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), together.histogram, strict=True)
        ]
        thresholds += [
            {
                "replicate": number,
                "mask": f"q{row['quantile']:g}",
                "threshold": row["threshold"],
                "log10": float(np.log10(row["threshold"])),
            }
            for row in (files.read_json(replicate.thresholds)["quantiles"] if replicate.thresholds.exists() else [])
            if row["threshold"]
        ]
    return bars, thresholds


def courses(run: Run, rows: Sequence[Row]) -> list[Row]:
    """How each network's accuracy went up in its training: means over replicates, at no more than `POINTS` points of it."""
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["status"] == "done":
            members.setdefault((*place(row), row["variant"]), []).append(row)
    return [point for alike in members.values() for point in _course(run, alike)]


def _course(run: Run, alike: Sequence[Row]) -> Iterator[Row]:
    read = [{row["step"]: row for row in lineage.rows(run.network_in(row["folder"]))} for row in alike]
    steps = [step for step in read[0] if all(step in course for course in read)]
    places = np.linspace(0, max(len(steps) - 1, 0), min(len(steps), POINTS)).astype(int)
    first = alike[0]
    for step in (steps[index] for index in places):
        yield {
            "network": first["variant"],
            "method": first["method"],
            "mask": _mask(first),
            "density": statistics.fmean(row["density"] for row in alike),
            "rewind": first["rewind"],
            "runs": len(alike),
            "step": step,
            "epoch": read[0][step]["epoch"],
            **{
                f"{split}_accuracy": statistics.fmean(course[step][f"{split}_accuracy"] for course in read)
                for split in ("train", "validation", "test")
            },
        }


def costs(rows: Sequence[Row]) -> list[Row]:
    """What the finished networks of each kind took: how many there are, epochs, hours of a device, seconds each."""
    members: dict[tuple[bool, str, str], list[Row]] = {}
    for row in rows:
        if row["status"] == "done" and row["seconds"] is not None:
            members.setdefault((row["variant"] != "dense", row["method"], row["variant"]), []).append(row)
    return [
        {
            "network": variant,
            "method": "" if variant == "dense" else method,
            "networks": len(alike),
            "epochs": sum(row["epochs"] for row in alike),
            "device_hours": sum(row["seconds"] * (row["devices"] or 1) for row in alike) / 3600,
            "seconds_each": statistics.fmean(row["seconds"] for row in alike),
        }
        for (_, method, variant), alike in sorted(members.items())
    ]
