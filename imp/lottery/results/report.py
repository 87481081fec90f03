"""Stage 5: the report. index.html with everything on one page; summary.csv with every network, summary.md with the groups and
how they differ, training.md with the course of the dense trainings; each table as CSV, each chart as PNG, SVG and CSV."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas

from lottery.base import files
from lottery.base.errors import InputError
from lottery.base.progress import count_of, duration
from lottery.experiment import controls, reading
from lottery.experiment.graph import DENSE, TICKET
from lottery.results import cells, criteria, frame, further, grouping, instability, kinds, measurements, pages, tidy
from lottery.results.cells import Cells
from lottery.results.headline import headline
from lottery.results.measurements import Measurement
from lottery.rundir import lineage, wording
from lottery.rundir.run import Run

if TYPE_CHECKING:
    from lottery.results.drawing import Chart

FEW = 12  # groups without a result, which a table has room for


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of the report, before it is laid out: frames, and tables as text, a dictionary by heading for each line."""

    run: Run
    headline: list[str]
    rows: pandas.DataFrame
    """The networks; here and in `groups`, the figures of the deciding metric are called by its name (`validation_accuracy`)."""
    groups: pandas.DataFrame
    table: list[Cells]
    """The groups; if many of them have no trained network, these are left out."""
    checks: pandas.DataFrame
    """Controls against tickets, and what they say of criteria."""
    criteria_table: list[Cells]
    size_table: list[Cells]
    """What tickets cost to compute and to store."""
    contrast_table: list[Cells]
    further_table: list[Cells]
    """The metric that decides and all others, where the task has others."""
    kind_table: list[Cells]
    """What masks keep of each kind of layer, where the network is a Transformer."""
    answer_table: list[Cells]
    """How alike the answers of networks are, and how good where they are worst."""
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
    checks, metrics = criteria.checks(run, compared), further.means(run, compared)
    findings, drawn, unread = tidy.Findings(run, compared, groups), [], []
    for chart in charts.CHARTS:
        try:
            drawn.append(chart(findings))
        except InputError as error:
            unread.append(f"left out of the report: {error}")
    try:
        kept_of_kinds = kinds.by_kind(findings.layers)
    except InputError:  # of which the chart of layers has told
        kept_of_kinds = pandas.DataFrame()
    measured, left_out = measurements.read(run.bench)
    begun = groups.merge(rows.loc[rows["status"] != "missing", frame.KIND].drop_duplicates(), on=frame.KIND)
    failed = rows[~rows["status"].isin(["done", "missing"])]
    pairs = contrasts.groupby(["family", "mask", "rewind", "against"], sort=False)
    against_dense = {
        (row.family, row.mask, row.rewind, row.figure): row for row in frame.each(contrasts[contrasts["against"] == DENSE])
    }
    made = Report(
        run,
        headline=[*headline(groups, run, rows), *_strangers(rows)],
        rows=frame.named(rows, run.metric),
        groups=frame.named(groups, run.metric),
        table=[cells.network(group, run.metric) for group in frame.each(groups if len(groups) - len(begun) <= FEW else begun)],
        checks=checks,
        criteria_table=cells.criteria_lines(checks),
        size_table=[
            cells.sizes(group) for group in frame.each(groups) if group.gzip_bytes and group.variant in (DENSE, TICKET)
        ],
        contrast_table=[cells.contrast(figures) for _, figures in pairs],
        further_table=cells.further_lines(metrics),
        kind_table=kinds.lines(kept_of_kinds),
        answer_table=[
            cells.answers(group, against_dense) for group in frame.each(groups) if group.worst_class_accuracy is not None
        ],
        equal_cost_table=cells.equal_cost_lines(groups),
        cost_table=cells.cost_lines(costs),
        stability_table=cells.stability_lines(findings),
        stability_answers=instability.answers(findings.instability, groups, run.rule),
        warnings=[f"{_title(group)}: {group.collapse}" for group in frame.each(groups) if group.collapse],
        failures=[f"replicate {row.replicate}, {_title(row)}: {row.status}, {row.reason}" for row in frame.each(failed)],
        charts=[chart for chart in drawn if chart],
        measurements=measured,
        left_out=[*dict.fromkeys(unread), *left_out],
    )
    named = {"summary": made.rows, "groups": made.groups, "contrasts": frame.named(contrasts, run.metric)}
    _write(made, {**named, "metrics": metrics, "kinds": kept_of_kinds, "criteria": checks, "costs": costs})
    return made


def _write(made: Report, tables: dict[str, pandas.DataFrame]) -> None:
    """The pages, tables as CSV and charts as pictures; none of an earlier report that this one has not."""
    from lottery.results import charts, drawing

    run = made.run
    files.write_text(run.report / "summary.md", _markdown(made))
    files.write_text(run.report / "training.md", _training(run))
    written: dict[str, bytes] = {}
    for chart in made.charts:
        tables |= chart.tables
        written |= {f"{chart.name}.svg": chart.svg.encode(), f"{chart.name}.png": chart.png}
    written |= {f"{name}.csv": table.to_csv(index=False).encode() for name, table in tables.items() if len(table)}
    usual = {f"{name}.{kind}" for name in (*tables, *charts.TABLES, run.metric) for kind in ("csv", "svg", "png")}
    for name in sorted(usual | written.keys()):
        if name in written:
            files.write_bytes(run.report / name, written[name])
        else:
            (run.report / name).unlink(missing_ok=True)
    named = [controls.of(name) for family in run.recipe.families.values() for name in family.controls]
    page = pages.fill(
        "results/report.html",
        report=made,
        script=drawing.script(),
        worded=run.worded,
        texts=cells,
        difference_explained=cells.difference_explained(run),
        stability_explained=instability.EXPLAINED,
        kinds_explained=kinds.EXPLAINED,
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


def _markdown(made: Report) -> str:
    worded = made.run.worded
    lines = [f"# {made.run.recipe.name}", "", *made.headline, "", *_table(made.table), ""]
    lines += [cells.difference_explained(made.run)]
    if made.warnings:
        lines += ["", "## Layer collapse (!)", "", *(f"- {warning}" for warning in made.warnings)]
    if made.further_table:
        explained = worded(cells.further_explained(made.further_table))
        lines += ["", "## All metrics", "", explained, "", *_table(made.further_table)]
    if made.kind_table:
        lines += ["", "## Kinds of layers", "", kinds.EXPLAINED, "", *_table(made.kind_table)]
    if made.criteria_table:
        lines += ["", "## More than an allocation?", "", worded(cells.CRITERIA_EXPLAINED), "", *_table(made.criteria_table)]
    if made.size_table:
        lines += ["", "## Size and arithmetic", "", worded(cells.SIZES_EXPLAINED), "", *_table(made.size_table)]
    if made.equal_cost_table:
        lines += ["", "## At equal cost", "", worded(cells.EQUAL_COST_EXPLAINED), "", *_table(made.equal_cost_table)]
    if made.stability_table:
        answers = [f"- {answer}" for answer in made.stability_answers]
        lines += ["", "## Stability", "", *answers, "", *_table(made.stability_table), "", worded(instability.EXPLAINED)]
    if made.contrast_table:
        explained = worded(cells.CONTRASTS_EXPLAINED)
        lines += ["", "## Differences, paired by replicate", "", explained, "", *_table(made.contrast_table)]
    if made.answer_table:
        explained = worded(cells.ANSWERS_EXPLAINED)
        lines += ["", "## Agreement, worst class, calibration", "", explained, "", *_table(made.answer_table)]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Cells]) -> list[str]:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _training(run: Run) -> str:
    """training.md: per replicate a sentence and a table of its epochs; the deciding metric in per cent."""
    recipe, machine, metric, example = run.recipe, run.environment(), run.metric, wording.example(run.metric)
    lines = [f"# {recipe.name}: {recipe.model.name} trained densely", ""]
    for replicate in map(run.replicate, run.known_numbers()):
        if rows := lineage.rows(replicate.dense):
            last, seconds = rows[-1], sum(row["timing"]["seconds"] for row in rows)
            test, validation = (wording.part(metric, last[f"{split}_{metric}"]) for split in ("test", "validation"))
            lines += [
                f"{replicate.folder.name}: {test} the test and {validation} the validation {example}s after "
                f"{last['epoch']:g} epochs ({duration(seconds)}, evaluation included; "
                f"{recipe.train.precision}, {recipe.train.threads} intra-op threads) on "
                f"{machine.get('processor', 'an unknown processor')}, {machine.get('cores', '?')} cores, "
                f"{len(machine.get('gpus', []))} GPUs, TensorFlow {machine.get('packages', {}).get('tensorflow', '?')}.",
                *("", *_table([_epoch(row, metric) for row in rows]), ""),
            ]
    return "\n".join(lines)


def _epoch(row: Mapping[str, Any], metric: str) -> Cells:
    return {
        "epoch": f"{row['epoch']:g}",
        "step": str(row["step"]),
        "train loss": f"{row['train_loss']:.4f}",
        **{split: cells.points(row[f"{split}_{metric}"]) for split in tidy.SPLITS},
        f"{wording.example(metric)}s/s": f"{row['timing']['images_per_second']:,.0f}",
    }
