"""The tables of the report as text: a dictionary by heading for each line, and a paragraph that explains each table, in which
`wording.worded` names the metric."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas

from lottery.base.progress import duration
from lottery.experiment.graph import DENSE, TICKET
from lottery.pruning.costs import BYTES
from lottery.results import criteria, frame, further, grouping, instability, tidy
from lottery.rundir import wording
from lottery.rundir.run import Run

CONTRASTS_EXPLAINED = (
    "Differences in points (in the last column, in steps): means over the replicates that have both networks, with "
    "{student_intervals}. A star marks an interval that does not reach zero. The columns: final {metric} on validation "
    "{example}s and on test {example}s, test {metric} at the step of least validation loss, and that step. The intervals are "
    "not corrected for their number."
)
CRITERIA_EXPLAINED = (
    "How far each control is above its ticket in validation {metric}, in points: the mean over replicates, and in brackets its "
    "lower and upper {t_bounds}. {control_signs}, by the same rules as a ticket and the dense network. `shuffle` keeps as many "
    "weights of each layer as the ticket, chosen at random. A criterion is only an allocation if shuffle matches at every "
    "density that has it (where it is far better, the criterion does harm): what counts is how many weights each layer keeps, "
    "not which. It is more than an allocation if shuffle does not match at one density or more. If `reinit` matches, the "
    "initial weights do not matter; in one shot, one such network serves all rewind points. If `invert` matches, the order of "
    "the scores does not matter. These are the checks of Frankle et al. 2021 (arXiv 2009.08576)."
)
SIZES_EXPLAINED = (
    "MACs: multiply-accumulates of the kept weights for one {example}; biases, BatchNorm and activations are not counted. "
    "Speed-up: those of the dense network divided by these. This is theory: zeros take as long as other numbers, unless the "
    "program that runs the network skips them. kB: all weights and statistics as float32, zeros included; the prunable ones "
    "as a bitmap and the values that are kept; the prunable ones as compressed sparse rows (CSR, 32-bit indices); as "
    "float32 after gzip. Means over replicates. Controls are in groups.csv, MACs by layer in layers.csv."
)
EQUAL_COST_EXPLAINED = (
    "What a ticket costs, in epochs of the dense network, counted in multiply-accumulates as by Evci et al. 2020 (appendix H): "
    "a step is three passes through what the mask keeps. Before: all that had to be trained and scored first, such as the "
    "dense network up to where weights or scores were taken from it, and earlier rounds. Difference and verdict: against the "
    "dense network, as above. ✓: no other ticket of that density has a higher mean {metric} at that cost (a tenth more counts "
    "as the same) or less."
)
SAME_COST = 1.1
CONTRASTED = {
    "validation": "validation",
    "test": "test",
    "test_there": "test at least loss",
    "least_validation_loss_step": "step of least loss",
}
FURTHER_EXPLAINED = (
    "All metrics of the task on validation and test {example}s (validation / test), in per cent: means over replicates. The "
    "first one decides."
)
WAY_EXPLAINED = " way to oracle: how far {metric} is above a choice at random, as a share of how far the best choice is."
ANSWERS_EXPLAINED = (
    "On test images, in per cent; means over replicates. agrees with dense: the share of images to which the network and the "
    "dense network of its replicate give the same answer, right or wrong. worst class: the accuracy on the class where it is "
    "lowest. calibration error: how far accuracy and confidence (the probability of the answer) are apart, in 15 bins of "
    "confidence, weighted by their images (the expected calibration error, ECE, of Guo et al. 2017, arXiv 1706.04599). "
    "difference: of tickets from the dense network, paired by replicate, with {intervals}; a star marks one "
    "that does not reach zero."
)
Cells = dict[str, str]  # a line of a table, by heading


def network(group: Any, metric: str) -> Cells:
    over_images = f"{_interval(None, group.image_low, group.image_high)} {group.image_verdict or ''}".strip()
    return {
        "network": group.variant,
        "mask": f"{group.family} {group.mask}".strip(),
        "density": _density(group),
        "rewound to": "" if group.variant == DENSE else group.rewind,
        "runs": str(group.count) if group.count == group.planned else f"{group.count} of {group.planned}",
        "validation": points(group.validation) + points(group.spread, " ± {:.2f}"),
        "test": points(group.test),
        "difference": _interval(group.difference, group.low, group.high),
        "verdict": group.verdict or "",
        **({"over images too": over_images} if metric == wording.ACCURACY else {}),
        "sd": points(group.deviation),
        "for 80 %": points(group.needed, "{}", 1),
        "against": "" if group.difference is None else group.against,
        "least loss at": points(group.least_validation_loss_step, "{:.0f}", 1),
        "test there": points(group.test_there),
    }


def difference_explained(run: Run) -> str:
    """What the columns of differences in the table of networks mean."""
    return run.worded(run.rule.explained + (run.rule.explained_over_images if run.metric == wording.ACCURACY else ""))


def answers(group: Any, against_dense: Mapping[tuple[Any, ...], Any]) -> Cells:
    """`against_dense` has the contrasts of tickets with the dense network, by family, mask, rewind point and figure."""
    place = group.family, group.mask, group.rewind

    def compared(figure: str) -> str:
        row = against_dense.get((*place, figure)) if group.variant == TICKET else None
        return "" if row is None else _interval(row.mean, row.low, row.high) + (" *" if row.clear else "")

    return {
        "network": group.variant,
        "mask": f"{group.family} {group.mask}".strip(),
        "density": _density(group),
        "rewound to": "" if group.variant == DENSE else group.rewind,
        "agrees with dense": "" if group.variant == DENSE else points(group.agreement),
        "test": points(group.test),
        "worst class": points(group.worst_class_accuracy),
        "worst class, difference": compared("worst_class_accuracy"),
        "calibration error": points(group.calibration_error),
        "calibration error, difference": compared("calibration_error"),
    }


def further_lines(means: pandas.DataFrame) -> list[Cells]:
    """A line for each kind of network in the frame of `further.means`, a column for each metric."""
    lines = []
    for _, alike in means.groupby(frame.KIND, sort=False):
        rows = frame.each(alike)
        cells = {
            "network": rows[0].variant,
            "mask": f"{rows[0].family} {rows[0].mask}".strip(),
            "density": f"{rows[0].density:.2%}",
            "rewound to": "" if rows[0].variant == DENSE else rows[0].rewind,
            "runs": str(rows[0].count),
        }
        for metric, splits in itertools.groupby(rows, lambda row: row.metric):
            means_of = {row.split: row.mean for row in splits}
            cells[wording.title(metric)] = " / ".join(points(means_of[split]) or "-" for split in frame.DECIDING)
        lines.append(cells)
    return lines


def further_explained(lines: Sequence[Cells]) -> str:
    return FURTHER_EXPLAINED + (WAY_EXPLAINED if wording.title(further.WAY) in lines[0] else "")


def points(figure: float | None, form: str = "{:.2f}", scale: int = 100) -> str:
    """A figure in per cent; nothing where it is not known."""
    return "" if figure is None else form.format(figure * scale)


def _interval(mean: float | None, low: float | None, high: float | None, form: str = "{:+.2f}", scale: int = 100) -> str:
    bounds = "" if low is None or high is None else f" ({points(low, form, scale)} .. {points(high, form, scale)})"
    return points(mean, form, scale) + bounds


def _density(row: Any) -> str:
    """The density, with an exclamation mark if a layer has collapsed."""
    return "" if row.density is None else f"{row.density:.2%}{' !' if row.collapse else ''}"


def sizes(group: Any) -> Cells:
    form = dict(zip(BYTES, ("float32, kB", "bitmap + values, kB", "CSR, kB", "gzip, kB"), strict=True))
    return {
        "network": group.variant,
        "mask": f"{group.family} {group.mask}".strip(),
        "density": _density(group),
        "rewound to": "" if group.variant == DENSE else group.rewind,
        "MACs": points(group.macs, "{:,.0f}", 1),
        "speed-up": points(group.speedup, "{:.3g}", 1),
        **{heading: points(getattr(group, name) / 1000, "{:,.1f}", 1) for name, heading in form.items()},
    }


def contrast(figures: pandas.DataFrame) -> Cells:
    """The differences of one pair, a column for each figure; a star marks an interval that is clear of zero."""
    rows = frame.each(figures)
    cells = {
        "ticket": f"{rows[0].family} {rows[0].mask}",
        "density": _density(rows[0]),
        "rewound to": rows[0].rewind,
        "against": f"{rows[0].against}{' !' if rows[0].collapse_against else ''}",
        "runs": str(rows[0].count),
    }
    for row in (row for row in rows if row.figure in CONTRASTED):
        form = ("{:+.0f}", 1) if row.figure == "least_validation_loss_step" else ("{:+.2f}", 100)
        cells[CONTRASTED[row.figure]] = _interval(row.mean, row.low, row.high, *form) + (" *" if row.clear else "")
    return cells


def criteria_lines(checks: pandas.DataFrame) -> list[Cells]:
    """A line for each ticket of a series with the verdict of `shuffle`, a column for each control; the verdict of the whole
    series on its first line."""
    there, lines = checks.loc[checks["mean"].notna(), "control"].unique(), []
    for _, rows in criteria.series(checks):
        for mask, found in itertools.groupby(rows, lambda row: row.mask):
            by_control = {row.control: row for row in found}
            first, shuffle = next(iter(by_control.values())), by_control.get(criteria.SHUFFLE)
            cells = {
                "family": f"{first.family} ({criteria.words(first.criterion, first.allocation)})",
                "mask": mask,
                "density": points(first.density, "{:.2f}%"),
                "rewound to": first.rewind,
                "runs": str(first.count) if first.count == first.planned else f"{first.count} of {first.planned}",
            }
            cells |= {name: _check(by_control[name]) if name in by_control else "" for name in there}
            cells["verdict"] = shuffle.verdict if shuffle else ""
            lines.append(cells | {"criterion": first.series_verdict if first is rows[0] else ""})
    return lines


def _check(row: Any) -> str:
    return "" if row.mean is None else f"{_interval(row.mean, row.low, row.high)} {row.verdict.sign}"


def equal_cost_lines(groups: pandas.DataFrame) -> list[Cells]:
    tickets = groups[(groups["variant"] == TICKET) & (groups["count"] > 0)].dropna(subset=list(frame.SPENT))
    tickets = tickets.assign(cost=tickets["training_cost"] + tickets["finding_cost"])
    return [
        {
            "density": f"{row.density:.2%}",
            "mask": f"{row.family} {row.mask}",
            "rewound to": row.rewind,
            "validation": f"{row.validation:.2%}",
            "difference": _interval(row.difference, row.low, row.high),
            "verdict": row.verdict,
            "before": f"{row.finding_cost:.2f}",
            "training": f"{row.training_cost:.2f}",
            "in all": f"{row.cost:.2f}",
            "best at its cost": "✓" if row.validation >= _best(alike, row.cost) else "",
        }
        for alike in grouping.equally_dense(tickets)
        for row in frame.each(alike.sort_values("cost"))
    ]


def _best(tickets: pandas.DataFrame, cost: float) -> float:
    """The highest value among those that cost no more."""
    return float(tickets.loc[tickets["cost"] <= cost * SAME_COST, "validation"].max())


def stability_lines(findings: tidy.Findings) -> list[Cells]:
    headings, lines = instability.cells(findings.instability)
    return [dict(zip(headings, line, strict=True)) for line in lines]


def cost_lines(costs: pandas.DataFrame) -> list[Cells]:
    """What the trainings took, and last in all."""
    sums = costs[["networks", "epochs", "device_hours"]].sum()
    seconds = (costs["seconds_each"] * costs["networks"]).sum() / sums["networks"]
    in_all = pandas.DataFrame([{"network": "in all", "family": "", **sums, "seconds_each": seconds}])
    return [
        {
            "networks": f"{row.network}{', ' + row.family if row.family else ''}",
            "trained": f"{row.networks:.0f}",
            "epochs": f"{row.epochs:,.1f}",
            "device time": duration(3600 * row.device_hours),
            "each": duration(row.seconds_each),
        }
        for row in frame.each(pandas.concat([costs, in_all]) if len(costs) > 1 else costs)
    ]
