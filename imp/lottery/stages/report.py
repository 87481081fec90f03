"""Stage 5: the report. index.html with everything on one page; summary.csv with every network, summary.md with the groups and
how they differ, training.md with the course of the dense trainings; each table as CSV, each chart as PNG, SVG and CSV."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep import files
from data_prep.errors import InputError
from lottery import journal, pages, recipe
from lottery.progress import duration
from lottery.results import curves, following, grouping, listing, measurements, tidy
from lottery.results.contrasts import Contrast, Difference, contrasts, flattened
from lottery.results.grouping import Group, mask_name
from lottery.results.headline import headline
from lottery.results.listing import Row
from lottery.results.measurements import Measurement
from lottery.run import Run
from lottery.tables import count_of, csv_text

if TYPE_CHECKING:
    from lottery.results.charts import Chart

HEADINGS = (
    *("network", "mask", "density", "rewound to", "runs", "validation", "test", "least loss at", "test there"),
    *("difference", "sd", "for 80 %", "against", "verdict"),
)
CONTRASTS = (
    *("ticket", "density", "rewound to", "against", "runs", "validation", "test", "test at least loss"),
    "step of least loss",
)


FEW = 12  # groups without a result, which a table has room for
COSTS = ("networks", "trained", "epochs", "device time", "each")

DIFFERENCE_EXPLAINED = (
    "difference: in points of validation accuracy, the mean over replicates, and in brackets its lower and its upper one-sided "
    "95 % t bound, by which the verdict goes (a two-sided 95 % interval is wider). It is over seeds, for these validation "
    "images, which all replicates share: look at the test images too. sd: the standard deviation of that difference over "
    "replicates; three of them give no more than a rough idea of it. for 80 %: the replicates that call a network exactly as "
    "good as the one it is held against matching in 80 % of cases, if that is the spread."
)
CONTRASTS_EXPLAINED = (
    "Means over replicates that have both, in points (steps in the last column), with two-sided 95 % Student t intervals; "
    "a star marks those clear of zero. Final accuracy on validation and test images; test accuracy at the step of least "
    "validation loss, and that step. None is corrected for how many there are."
)


@dataclasses.dataclass(frozen=True)
class Report:
    """What the report says, before it is laid out."""

    headline: list[str]
    groups: list[Group]
    rows: list[Row]
    contrasts: list[Contrast]
    measurements: list[Measurement]
    left_out: list[str]
    """A line for each file that should be shown but cannot be read."""
    charts: "list[Chart]"
    cost: list[Row]

    @property
    def cost_table(self) -> list[tuple[str, ...]]:
        """What the trainings took as text, in the columns `COSTS`, and last in all."""
        return [*map(_cost_cells, self.cost), *([_cost_cells(_in_all(self.cost))] if len(self.cost) > 1 else [])]

    @property
    def contrast_table(self) -> list[tuple[str, ...]]:
        """The contrasts as text, in the columns `CONTRASTS`."""
        return [_contrast_cells(contrast) for contrast in self.contrasts]

    @property
    def warnings(self) -> list[str]:
        """A line for each mask that has collapsed."""
        return [f"{group.title}: {group.collapse}" for group in self.groups if group.collapse]

    @property
    def shown(self) -> list[tuple[Group, tuple[str, ...]]]:
        """The groups, each with its cells in the columns `HEADINGS`; without those of which nothing was trained, where
        these are many."""
        tried = {(*listing.place(row), row["variant"]) for row in self.rows if row["status"] != "missing"}
        begun = [group for group in self.groups if (*listing.place(vars(group)), group.variant) in tried]
        return [(group, _cells(group)) for group in (self.groups if len(self.groups) - len(begun) <= FEW else begun)]

    @property
    def table(self) -> list[tuple[str, ...]]:
        """The groups that are shown, as text."""
        return [cells for _, cells in self.shown]

    @property
    def failures(self) -> list[Row]:
        return [row for row in self.rows if row["status"] not in ("done", "missing")]


def report(run: Run) -> Report:
    """Write the report of what the run has so far, and return it. Raises InputError before the dense training is done."""
    rows = following.rows(run)
    if not any(row["status"] == "done" and row["variant"] == "dense" for row in rows):
        raise InputError(f"{run.folder} has nothing to report yet: run `imp train` first")
    groups = grouping.groups(rows, run.recipe.delta)
    dense = curves.read(run)
    drawn, unread = _charts(run, rows, groups, dense)
    measured, left_out = measurements.read(run.bench)
    sentences = [*headline(groups, run, rows), *_strangers(rows)]
    made = Report(sentences, groups, rows, contrasts(rows), measured, [*unread, *left_out], drawn, tidy.costs(rows))
    files.write_text(run.report / "summary.csv", csv_text(listing.COLUMNS, rows))
    files.write_text(run.report / "summary.md", _markdown(made, run))
    files.write_text(run.report / "training.md", curves.markdown(run.recipe, dense, run.environment()))
    _write_tables(made, run.report)
    _write_charts(drawn, run.report)
    files.write_text(run.report / "index.html", _html(made, run))
    return made


def _strangers(rows: Sequence[Row]) -> list[str]:
    """Sentences on the rows that were not made as their replicate's dense network was."""
    stale = sum(row["status"] == "stale" for row in rows)
    dense = {row["replicate"]: row["made_by"] for row in rows if row["variant"] == "dense"}
    others = [row for row in rows if row["status"] == "done" and row["made_by"] != dense[row["replicate"]]]
    sentences = (
        [f"Left out, as not of the dense network that is there: {count_of(stale, 'network')} (see `imp verify`)."]
        if stale
        else []
    )
    if others:
        sentences.append(
            f"Trained by other versions or another kind of device than the dense network: {count_of(len(others), 'network')} "
            f"({others[0]['made_by']}; the column made_by of summary.csv). Differences may be of that."
        )
    return sentences


def _write_tables(made: Report, folder: Path) -> None:
    """The page's tables as CSV; those of its charts come with them."""
    groups = [dataclasses.asdict(group) for group in made.groups]
    differences = flattened(made.contrasts)
    for name, rows in (("groups", groups), ("contrasts", differences), ("costs", made.cost)):
        if rows:
            files.write_text(folder / f"{name}.csv", csv_text(list(rows[0]), rows))
        else:
            (folder / f"{name}.csv").unlink(missing_ok=True)


def _write_charts(drawn: "Sequence[Chart]", folder: Path) -> None:
    """Each chart as picture and table, and none of an earlier report that this one has not."""
    from lottery.results import charts

    tables = {name: text for chart in drawn for name, text in chart.tables().items()}
    gone = [f"{name}.csv" for name in charts.TABLES if name not in tables]
    gone += [f"{name}.{kind}" for name in charts.NAMES if name not in tables for kind in ("svg", "png")]
    for name in gone:
        (folder / name).unlink(missing_ok=True)
    for name, text in tables.items():
        files.write_text(folder / f"{name}.csv", text)
    for chart in drawn:
        files.write_text(folder / f"{chart.name}.svg", chart.svg())
        files.write_bytes(folder / f"{chart.name}.png", chart.png())


def _charts(
    run: Run, rows: Sequence[Row], groups: Sequence[Group], dense: Mapping[str, Sequence[journal.Row]]
) -> "tuple[list[Chart], list[str]]":
    """A chart of each kind of which there is something to show; and a line for each damaged file that others would show."""
    from lottery.results import charts  # Altair, which is slow to load

    unread: list[str] = []

    def read(rows: Callable[[], Any], nothing: Any) -> Any:
        try:
            return rows()
        except InputError as error:
            unread.append(f"left out of the report: {error}")
            return nothing

    found = tidy.accuracies(groups)
    layers = read(lambda: tidy.layers(run, run.recipe.thresholds.collapse), [])
    bars, cuts = read(lambda: tidy.magnitudes(run), ([], []))
    course = read(lambda: tidy.courses(run, rows), [])
    tickets = [row for row in found if row["network"] == "ticket"]
    training = curves.tidy(dense)
    drawn = [
        *([charts.accuracy(found)] if any(row["network"] != "dense" for row in found) else []),
        *([charts.early_stop(found)] if tickets else []),
        *([charts.differences(found)] if any(row["difference"] is not None for row in tickets) else []),
        *([charts.layers(layers)] if layers else []),
        *([charts.magnitudes(bars, cuts)] if bars else []),
        *([charts.courses(course)] if course and tickets else []),
        *([charts.training(training)] if training else []),
    ]
    return drawn, unread


def _cost_cells(row: Row) -> tuple[str, ...]:
    return (
        f"{row['network']}{', ' + row['method'] if row['method'] not in ('', 'oneshot') else ''}",
        str(row["networks"]),
        f"{row['epochs']:,.1f}",
        duration(3600 * row["device_hours"]),
        duration(row["seconds_each"]),
    )


def _in_all(cost: Sequence[Row]) -> Row:
    sums = {key: sum(row[key] for row in cost) for key in ("networks", "epochs", "device_hours")}
    seconds = sum(row["seconds_each"] * row["networks"] for row in cost) / sums["networks"]
    return {"network": "in all", "method": "", **sums, "seconds_each": seconds}


def _cells(group: Group) -> tuple[str, ...]:
    count = str(group.count) if group.count == group.planned else f"{group.count} of {group.planned}"
    rewind = "" if group.variant == "dense" else group.rewind
    place = (group.variant, mask_name(group.quantile, group.method, group.level), _density(group), rewind, count)
    if not group.count:
        return (*place, *[""] * 8, group.verdict or "")
    spread = f" ± {group.spread * 100:.2f}" if group.spread is not None else ""
    difference = "" if math.isnan(group.difference) or group.variant == "dense" else f"{group.difference * 100:+.2f}"
    if group.deviation is not None:
        difference += f" ({group.low * 100:+.2f} .. {group.high * 100:+.2f})"
    return (
        *place,
        f"{group.validation_accuracy * 100:.2f}{spread}",
        f"{group.test_accuracy * 100:.2f}",
        f"{group.early_step:.0f}",
        f"{group.early_test_accuracy * 100:.2f}",
        difference,
        "" if group.deviation is None else f"{group.deviation * 100:.2f}",
        "" if group.needed is None else str(group.needed),
        group.against or "" if difference else "",
        group.verdict or "",
    )


def _density(group: Group | Contrast) -> str:
    """With an exclamation mark where a layer has collapsed."""
    return "" if math.isnan(group.density) else f"{group.density:.2%}{' !' if group.collapse else ''}"


def _contrast_cells(contrast: Contrast) -> tuple[str, ...]:
    points = [contrast.differences[name] for name in ("validation_accuracy", "test_accuracy", "test_accuracy_there")]
    return (
        mask_name(contrast.quantile, contrast.method, contrast.level),
        _density(contrast),
        contrast.rewind,
        f"{contrast.against}{' !' if contrast.collapse_against else ''}",
        str(points[0].count),
        *(_interval(difference, 100, ".2f") for difference in points),
        _interval(contrast.differences["least_validation_loss_step"], 1, ".0f"),
    )


def _interval(difference: Difference, scale: float, form: str) -> str:
    """A mean and its interval, with a star where that is clear of zero."""
    mean = f"{difference.mean * scale:+{form}}"
    if difference.low is None or difference.high is None:
        return mean
    star = " *" if difference.is_clear else ""
    return f"{mean} ({difference.low * scale:+{form}} .. {difference.high * scale:+{form}}){star}"


def _markdown(made: Report, run: Run) -> str:
    lines = [f"# {run.recipe.name}", "", *made.headline, "", *_table(HEADINGS, made.table), "", DIFFERENCE_EXPLAINED]
    if made.warnings:
        lines += ["", "## Layer collapse (!)", "", *(f"- {warning}" for warning in made.warnings)]
    if made.contrasts:
        lines += [
            "",
            "## Differences, paired by replicate",
            "",
            CONTRASTS_EXPLAINED,
            "",
            *_table(CONTRASTS, made.contrast_table),
        ]
    return "\n".join(lines) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]


def _html(made: Report, run: Run) -> str:
    from lottery.results import charts

    return pages.fill(
        "stages/report.html",
        report=made,
        charts={chart.name: chart for chart in made.charts},
        script=charts.script(),
        cost_headings=COSTS,
        headings=HEADINGS,
        contrast_headings=CONTRASTS,
        contrasts_explained=CONTRASTS_EXPLAINED,
        name=run.recipe.name,
        delta=run.recipe.delta,
        collapse=run.recipe.thresholds.collapse,
        recipe=recipe.to_toml(run.recipe),
        made_in=run.environment(),
    )
