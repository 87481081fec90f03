"""Stage 5: the report. index.html with everything on one page; summary.csv with every network, summary.md with the groups and
how they differ, training.md with the course of the dense trainings; each table as CSV, each chart as PNG, SVG and CSV."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas

from data_prep import files
from data_prep.errors import InputError
from lottery.experiment import controls, reading
from lottery.experiment.graph import DENSE, TICKET
from lottery.progress import count_of, duration
from lottery.pruning.costs import BYTES
from lottery.results import criteria, frame, grouping, instability, measurements, pages, tidy
from lottery.results.headline import headline
from lottery.results.measurements import Measurement
from lottery.rundir import lineage
from lottery.rundir.run import Run

if TYPE_CHECKING:
    from lottery.results.charts import Chart

FEW = 12  # groups without a result, which a table has room for
DIFFERENCE_EXPLAINED = (
    "difference: how far the validation accuracy is above that of the network under `against`, in points: the mean over "
    "replicates, and in brackets its lower and upper one-sided 95 % t bounds. The verdict follows from these bounds (a "
    "two-sided 95 % interval is wider). They say what other seeds would give, not what other images would give: all replicates "
    "share these validation images, so look at the test images too. sd: the standard deviation of the difference over "
    "replicates; three replicates give only a rough idea of it. for 80 %: with that deviation, so many replicates find in 80 % "
    "of cases that a network exactly as good as the one it is compared with is matching."
)
CONTRASTS_EXPLAINED = (
    "Differences in points (in the last column, in steps): means over the replicates that have both networks, with two-sided "
    "95 % Student t intervals. A star marks an interval that does not reach zero. The columns: final accuracy on validation "
    "images and on test images, test accuracy at the step of least validation loss, and that step. The intervals are not "
    "corrected for their number."
)
CRITERIA_EXPLAINED = (
    "How far each control is above its ticket in validation accuracy, in points: the mean over replicates, and in brackets its "
    "lower and upper one-sided 95 % t bounds. ✓: the control matches the ticket, ✗: it does not, ?: undecided, by the same "
    "rules as a ticket and the dense network. `shuffle` keeps as many weights of each layer as the ticket, chosen at random. A "
    "criterion is only an allocation if shuffle matches at every density that has it (where it is far better, the criterion "
    "does harm): what counts is how many weights each layer keeps, not which. It is more than an allocation if shuffle does "
    "not match at one density or more. If `reinit` matches, the initial weights do not matter; in one shot, one such network "
    "serves all rewind points. If `invert` matches, the order of the scores does not matter. These are the checks of Frankle "
    "et al. 2021 (arXiv 2009.08576)."
)
SIZES_EXPLAINED = (
    "MACs: multiply-accumulates of the kept weights for one image; biases, BatchNorm and activations are not counted. "
    "Speed-up: those of the dense network divided by these. This is theory: zeros take as long as other numbers, unless the "
    "program that runs the network skips them. kB: all weights and statistics as float32, zeros included; the prunable ones "
    "as a bitmap and the values that are kept; the prunable ones as compressed sparse rows (CSR, 32-bit indices); as "
    "float32 after gzip. Means over replicates. Controls are in groups.csv, MACs by layer in layers.csv."
)
EQUAL_COST_EXPLAINED = (
    "What a ticket costs, in epochs of the dense network, counted in multiply-accumulates as by Evci et al. 2020 (appendix H): "
    "a step is three passes through what the mask keeps. Before: all that had to be trained and scored first, such as the "
    "dense network up to where weights or scores were taken from it, and earlier rounds. Difference and verdict: against the "
    "dense network, as above. ✓: no other ticket of that density has a higher mean accuracy at that cost (a tenth more counts "
    "as the same) or less."
)
SAME_COST = 1.1
Cells = dict[str, str]  # a line of a table, by heading


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of the report, before it is laid out: frames, and tables as text, a dictionary by heading for each line."""

    run: Run
    headline: list[str]
    rows: pandas.DataFrame
    groups: pandas.DataFrame
    table: list[Cells]
    """The groups; if many of them have no trained network, these are left out."""
    checks: pandas.DataFrame
    """Controls against tickets, and what they say of criteria."""
    criteria_table: list[Cells]
    size_table: list[Cells]
    """What tickets cost to compute and to store."""
    contrast_table: list[Cells]
    equal_cost_table: list[Cells]
    """Of several families, tickets of the same mask by what they cost to train and to find."""
    cost_table: list[Cells]
    stability_table: list[Cells]
    """The instability of tickets that are trained more than once."""
    stability_answers: list[str]
    warnings: list[str]
    """A line for each mask that has collapsed."""
    failures: list[str]
    """A line for each network that did not come to its end."""
    charts: "list[Chart]"
    measurements: list[Measurement]
    left_out: list[str]
    """A line for each file that should be shown but cannot be read."""


def report(run: Run) -> Report:
    """Write the report of a run as far as it is, and return it. Raises InputError if no dense training is done yet."""
    from lottery.results import charts  # Altair, which is slow to load

    rows = grouping.rows(run)
    if not ((rows["status"] == "done") & (rows["variant"] == DENSE)).any():
        raise InputError(f"{run.folder} has nothing to report yet: run `imp train` first")
    compared = rows[~rows["variant"].map(controls.is_again)]  # copies of tickets are for their instability, and for soups
    groups, contrasts, costs = grouping.groups(run, compared), grouping.contrasts(run, compared), tidy.costs(rows)
    checks = criteria.checks(run, compared)
    findings, drawn, unread = tidy.Findings(run, compared, groups), [], []
    for chart in charts.CHARTS:
        try:
            drawn.append(chart(findings))
        except InputError as error:
            unread.append(f"left out of the report: {error}")
    measured, left_out = measurements.read(run.bench)
    begun = groups.merge(rows.loc[rows["status"] != "missing", frame.KIND].drop_duplicates(), on=frame.KIND)
    failed = rows[~rows["status"].isin(["done", "missing"])]
    pairs = contrasts.groupby(["family", "mask", "rewind", "against"], sort=False)
    made = Report(
        run,
        headline=[*headline(groups, run, rows), *_strangers(rows)],
        rows=rows,
        groups=groups,
        table=[_cells(group) for group in frame.each(groups if len(groups) - len(begun) <= FEW else begun)],
        checks=checks,
        criteria_table=_criteria_cells(checks),
        size_table=[
            _size_cells(group) for group in frame.each(groups) if group.gzip_bytes and group.variant in (DENSE, TICKET)
        ],
        contrast_table=[_contrast_cells(figures) for _, figures in pairs],
        equal_cost_table=_equal_cost_cells(groups),
        cost_table=_cost_cells(costs),
        stability_table=_stability_cells(findings),
        stability_answers=instability.answers(findings.instability, groups),
        warnings=[f"{_title(group)}: {group.collapse}" for group in frame.each(groups) if group.collapse],
        failures=[f"replicate {row.replicate}, {_title(row)}: {row.status}, {row.reason}" for row in frame.each(failed)],
        charts=[chart for chart in drawn if chart],
        measurements=measured,
        left_out=[*dict.fromkeys(unread), *left_out],
    )
    _write(made, {"summary": rows, "groups": groups, "contrasts": contrasts, "criteria": checks, "costs": costs})
    return made


def _write(made: Report, tables: dict[str, pandas.DataFrame]) -> None:
    """The pages, tables as CSV and charts as pictures; none of an earlier report that this one has not."""
    from lottery.results import charts

    run = made.run
    files.write_text(run.report / "summary.md", _markdown(made))
    files.write_text(run.report / "training.md", _training(run))
    written: dict[str, bytes] = {}
    for chart in made.charts:
        tables |= chart.tables
        written |= {f"{chart.name}.svg": chart.svg.encode(), f"{chart.name}.png": chart.png}
    written |= {f"{name}.csv": table.to_csv(index=False).encode() for name, table in tables.items() if len(table)}
    usual = {f"{name}.{kind}" for name in (*tables, *charts.TABLES) for kind in ("csv", "svg", "png")}
    for name in sorted(usual | written.keys()):
        if name in written:
            files.write_bytes(run.report / name, written[name])
        else:
            (run.report / name).unlink(missing_ok=True)
    named = [controls.of(name) for family in run.recipe.families.values() for name in family.controls]
    page = pages.fill(
        "results/report.html",
        report=made,
        script=charts.script(),
        difference_explained=DIFFERENCE_EXPLAINED,
        criteria_explained=CRITERIA_EXPLAINED,
        sizes_explained=SIZES_EXPLAINED,
        equal_cost_explained=EQUAL_COST_EXPLAINED,
        stability_explained=instability.EXPLAINED,
        contrasts_explained=CONTRASTS_EXPLAINED,
        controls=list({one.name: one for one in named}.values()),
        settings=run.recipe,
        recipe=reading.to_toml(run.recipe),
        made_in=run.environment(),
    )
    files.write_text(run.report / "index.html", page)


def _strangers(rows: pandas.DataFrame) -> list[str]:
    """Sentences about networks that were not made like their replicate's dense network."""
    stale = int((rows["status"] == "stale").sum())
    dense = rows[rows["variant"] == DENSE].set_index("replicate")["made_by"]
    done = rows[rows["status"] == "done"]
    others = done[done["made_by"] != done["replicate"].map(dense)]
    sentences = []
    if stale:
        told = count_of(stale, "network")
        sentences.append(f"Left out, as they do not belong to the dense network beside them: {told} (see `imp verify`).")
    if len(others):
        sentences.append(
            f"Trained by other versions or another kind of device than the dense network: {count_of(len(others), 'network')} "
            f"({others['made_by'].iloc[0]}; the column made_by of summary.csv). Differences may come from that."
        )
    return sentences


def _title(row: Any) -> str:
    """The name of a network or a group in sentences."""
    return DENSE if row.variant == DENSE else f"{row.variant}, {row.family} {row.mask}, rewound to {row.rewind}"


def _cells(group: Any) -> Cells:
    return {
        "network": group.variant,
        "mask": f"{group.family} {group.mask}".strip(),
        "density": _density(group),
        "rewound to": "" if group.variant == DENSE else group.rewind,
        "runs": str(group.count) if group.count == group.planned else f"{group.count} of {group.planned}",
        "validation": _points(group.validation_accuracy) + _points(group.spread, " ± {:.2f}"),
        "test": _points(group.test_accuracy),
        "least loss at": _points(group.least_validation_loss_step, "{:.0f}", 1),
        "test there": _points(group.test_accuracy_there),
        "difference": _interval(group.difference, group.low, group.high),
        "sd": _points(group.deviation),
        "for 80 %": _points(group.needed, "{}", 1),
        "against": "" if group.difference is None else group.against,
        "verdict": group.verdict or "",
    }


def _points(figure: float | None, form: str = "{:.2f}", scale: int = 100) -> str:
    """A figure in per cent; nothing where it is not known."""
    return "" if figure is None else form.format(figure * scale)


def _interval(mean: float | None, low: float | None, high: float | None, form: str = "{:+.2f}", scale: int = 100) -> str:
    bounds = "" if low is None or high is None else f" ({_points(low, form, scale)} .. {_points(high, form, scale)})"
    return _points(mean, form, scale) + bounds


def _density(row: Any) -> str:
    """The density, with an exclamation mark if a layer has collapsed."""
    return "" if row.density is None else f"{row.density:.2%}{' !' if row.collapse else ''}"


def _size_cells(group: Any) -> Cells:
    form = dict(zip(BYTES, ("float32, kB", "bitmap + values, kB", "CSR, kB", "gzip, kB"), strict=True))
    return {
        "network": group.variant,
        "mask": f"{group.family} {group.mask}".strip(),
        "density": _density(group),
        "rewound to": "" if group.variant == DENSE else group.rewind,
        "MACs": _points(group.macs, "{:,.0f}", 1),
        "speed-up": _points(group.speedup, "{:.3g}", 1),
        **{heading: _points(getattr(group, name) / 1000, "{:,.1f}", 1) for name, heading in form.items()},
    }


def _contrast_cells(figures: pandas.DataFrame) -> Cells:
    """The differences of one pair, a column for each of `FIGURES`; a star marks an interval that is clear of zero."""
    rows = frame.each(figures)
    cells = {
        "ticket": f"{rows[0].family} {rows[0].mask}",
        "density": _density(rows[0]),
        "rewound to": rows[0].rewind,
        "against": f"{rows[0].against}{' !' if rows[0].collapse_against else ''}",
        "runs": str(rows[0].count),
    }
    for heading, row in zip(("validation", "test", "test at least loss", "step of least loss"), rows, strict=True):
        form = ("{:+.0f}", 1) if row.figure == "least_validation_loss_step" else ("{:+.2f}", 100)
        cells[heading] = _interval(row.mean, row.low, row.high, *form) + (" *" if row.clear else "")
    return cells


def _criteria_cells(checks: pandas.DataFrame) -> list[Cells]:
    """A line for each ticket of a series with the verdict of `shuffle`, a column for each control; the verdict of the whole
    series on its first line."""
    there, lines = checks.loc[checks["mean"].notna(), "control"].unique(), []
    for _, rows in criteria.series(checks):
        for mask, found in itertools.groupby(rows, lambda row: row.mask):
            by_control = {row.control: row for row in found}
            first, shuffle = next(iter(by_control.values())), by_control.get(criteria.SHUFFLE)
            cells = {
                "family": f"{first.family} ({criteria.words(first)})",
                "mask": mask,
                "density": _points(first.density, "{:.2f}%"),
                "rewound to": first.rewind,
                "runs": str(first.count) if first.count == first.planned else f"{first.count} of {first.planned}",
            }
            cells |= {name: _check(by_control[name]) if name in by_control else "" for name in there}
            cells["verdict"] = shuffle.verdict if shuffle else ""
            lines.append(cells | {"criterion": first.series_verdict if first is rows[0] else ""})
    return lines


def _check(row: Any) -> str:
    signs = {"matching": "✓", "not matching": "✗"}
    return "" if row.mean is None else f"{_interval(row.mean, row.low, row.high)} {signs.get(row.verdict, '?')}"


def _equal_cost_cells(groups: pandas.DataFrame) -> list[Cells]:
    tickets = groups[(groups["variant"] == TICKET) & (groups["count"] > 0)].dropna(subset=list(frame.SPENT))
    tickets = tickets.assign(cost=tickets["training_cost"] + tickets["finding_cost"])
    return [
        {
            "density": f"{row.density:.2%}",
            "mask": f"{row.family} {row.mask}",
            "rewound to": row.rewind,
            "validation": f"{row.validation_accuracy:.2%}",
            "difference": _interval(row.difference, row.low, row.high),
            "verdict": row.verdict,
            "before": f"{row.finding_cost:.2f}",
            "training": f"{row.training_cost:.2f}",
            "in all": f"{row.cost:.2f}",
            "best at its cost": "✓" if row.validation_accuracy >= _best(alike, row.cost) else "",
        }
        for alike in grouping.equally_dense(tickets)
        for row in frame.each(alike.sort_values("cost"))
    ]


def _best(tickets: pandas.DataFrame, cost: float) -> float:
    """The highest accuracy among those that cost no more."""
    return float(tickets.loc[tickets["cost"] <= cost * SAME_COST, "validation_accuracy"].max())


def _stability_cells(findings: tidy.Findings) -> list[Cells]:
    headings, lines = instability.cells(findings.instability)
    return [dict(zip(headings, line, strict=True)) for line in lines]


def _cost_cells(costs: pandas.DataFrame) -> list[Cells]:
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


def _markdown(made: Report) -> str:
    lines = [f"# {made.run.recipe.name}", "", *made.headline, "", *_table(made.table), "", DIFFERENCE_EXPLAINED]
    if made.warnings:
        lines += ["", "## Layer collapse (!)", "", *(f"- {warning}" for warning in made.warnings)]
    if made.criteria_table:
        lines += ["", "## More than an allocation?", "", CRITERIA_EXPLAINED, "", *_table(made.criteria_table)]
    if made.size_table:
        lines += ["", "## Size and arithmetic", "", SIZES_EXPLAINED, "", *_table(made.size_table)]
    if made.equal_cost_table:
        lines += ["", "## At equal cost", "", EQUAL_COST_EXPLAINED, "", *_table(made.equal_cost_table)]
    if made.stability_table:
        answers = [f"- {answer}" for answer in made.stability_answers]
        lines += ["", "## Stability", "", *answers, "", *_table(made.stability_table), "", instability.EXPLAINED]
    if made.contrast_table:
        lines += ["", "## Differences, paired by replicate", "", CONTRASTS_EXPLAINED, "", *_table(made.contrast_table)]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Cells]) -> list[str]:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _training(run: Run) -> str:
    """training.md: per replicate a sentence and a table of its epochs; accuracies in per cent."""
    recipe, machine = run.recipe, run.environment()
    lines = [f"# {recipe.name}: {recipe.model.name} trained densely", ""]
    for replicate in map(run.replicate, run.known_numbers()):
        if rows := lineage.rows(replicate.dense):
            last, seconds = rows[-1], sum(row["timing"]["seconds"] for row in rows)
            lines += [
                f"{replicate.folder.name}: {last['test_accuracy']:.2%} of the test and {last['validation_accuracy']:.2%} of "
                f"the validation images after {last['epoch']:g} epochs ({duration(seconds)}, evaluation included; "
                f"{recipe.train.precision}, {recipe.train.threads} intra-op threads) on "
                f"{machine.get('processor', 'an unknown processor')}, {machine.get('cores', '?')} cores, "
                f"{len(machine.get('gpus', []))} GPUs, TensorFlow {machine.get('packages', {}).get('tensorflow', '?')}.",
                *("", *_table([_epoch(row) for row in rows]), ""),
            ]
    return "\n".join(lines)


def _epoch(row: Mapping[str, Any]) -> Cells:
    return {
        "epoch": f"{row['epoch']:g}",
        "step": str(row["step"]),
        "train loss": f"{row['train_loss']:.4f}",
        **{split: _points(row[f"{split}_accuracy"]) for split in tidy.SPLITS},
        "images/s": f"{row['timing']['images_per_second']:,.0f}",
    }
