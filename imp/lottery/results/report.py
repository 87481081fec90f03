"""Stage 5: the report. index.html with everything on one page; summary.csv with every network, summary.md with the groups and
how they differ, training.md with the course of the dense trainings; each table as CSV, each chart as PNG, SVG and CSV."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas

from data_prep import files
from data_prep.errors import InputError
from lottery.experiment import controls, reading
from lottery.experiment.graph import DENSE
from lottery.progress import count_of, duration
from lottery.results import contrasts, curves, following, frame, grouping, measurements, pages, tidy
from lottery.results.headline import headline
from lottery.results.measurements import Measurement
from lottery.results.tidy import Findings
from lottery.rundir.run import Run

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
    "95 % t bound, which decide the verdict (a two-sided 95 % interval is wider). The bounds cover other seeds, not other "
    "images: all replicates share these validation images, so look at the test images too. sd: the standard deviation of that "
    "difference over replicates; three replicates give only a rough idea of it. for 80 %: how many replicates with that "
    "deviation call a network exactly as good as the one it is compared with matching in 80 % of cases."
)
CONTRASTS_EXPLAINED = (
    "Means over replicates that have both, in points (steps in the last column), with two-sided 95 % Student t intervals; "
    "a star marks those clear of zero. Final accuracy on validation and test images; test accuracy at the step of least "
    "validation loss, and that step. The intervals are not corrected for their number."
)


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of the report, before it is laid out."""

    run: Run
    headline: list[str]
    rows: pandas.DataFrame
    groups: pandas.DataFrame
    contrasts: pandas.DataFrame
    costs: pandas.DataFrame
    charts: "list[Chart]"
    measurements: list[Measurement]
    left_out: list[str]
    """A line for each file that should be shown but cannot be read."""

    @cached_property
    def shown(self) -> list[tuple[Any, tuple[str, ...]]]:
        """The groups, each with its cells in the columns `HEADINGS`. If many groups have no trained network, these are left
        out."""
        tried = self.rows.loc[self.rows["status"] != "missing", frame.KIND].drop_duplicates()
        begun = self.groups.merge(tried, on=frame.KIND)
        shown = self.groups if len(self.groups) - len(begun) <= FEW else begun
        return [(group, _cells(group)) for group in frame.each(shown)]

    @property
    def table(self) -> list[tuple[str, ...]]:
        """The groups that are shown, as text."""
        return [cells for _, cells in self.shown]

    @cached_property
    def contrast_table(self) -> list[tuple[str, ...]]:
        """The contrasts as text, in the columns `CONTRASTS`."""
        kinds = self.contrasts.groupby(["family", "mask", "rewind", "against"], sort=False)
        return [_contrast_cells({row.figure: row for row in frame.each(figures)}) for _, figures in kinds]

    @property
    def cost_table(self) -> list[tuple[str, ...]]:
        """What the trainings took as text, in the columns `COSTS`, and last in all."""
        sums = self.costs[["networks", "epochs", "device_hours"]].sum()
        seconds = (self.costs["seconds_each"] * self.costs["networks"]).sum() / sums["networks"]
        in_all = pandas.DataFrame([{"network": "in all", "family": "", **sums, "seconds_each": seconds}])
        costs = pandas.concat([self.costs, in_all]) if len(self.costs) > 1 else self.costs
        return [
            (
                f"{row.network}{', ' + row.family if row.family else ''}",
                f"{row.networks:.0f}",
                f"{row.epochs:,.1f}",
                duration(3600 * row.device_hours),
                duration(row.seconds_each),
            )
            for row in frame.each(costs)
        ]

    @property
    def warnings(self) -> list[str]:
        """A line for each mask that has collapsed."""
        return [f"{_title(group)}: {group.collapse}" for group in frame.each(self.groups) if group.collapse]

    @property
    def failures(self) -> list[str]:
        """A line for each network that did not come to its end."""
        failed = self.rows[~self.rows["status"].isin(["done", "missing"])]
        return [f"replicate {row.replicate}, {_title(row)}: {row.status}, {row.reason}" for row in frame.each(failed)]


def report(run: Run) -> Report:
    """Write the report of a run as far as it is, and return it. Raises InputError if no dense training is done yet."""
    rows = following.rows(run)
    if not ((rows["status"] == "done") & (rows["variant"] == DENSE)).any():
        raise InputError(f"{run.folder} has nothing to report yet: run `imp train` first")
    groups = grouping.groups(run, rows)
    charts, unread = _charts(Findings(run, rows, groups))
    measured, left_out = measurements.read(run.bench)
    made = Report(
        run,
        [*headline(groups, run, rows), *_strangers(rows)],
        rows,
        groups,
        contrasts.contrasts(run, rows),
        tidy.costs(rows),
        charts,
        measured,
        [*unread, *left_out],
    )
    files.write_text(run.report / "summary.md", _markdown(made))
    files.write_text(run.report / "training.md", curves.markdown(run))
    _write_tables(made)
    files.write_text(run.report / "index.html", _html(made))
    return made


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


def _charts(findings: Findings) -> "tuple[list[Chart], list[str]]":
    """A chart of each kind of which there is something to show; and a line for each damaged file that others would show."""
    from lottery.results import charts  # Altair, which is slow to load

    drawn, unread = [], []
    for chart in charts.CHARTS:
        try:
            drawn.append(chart(findings))
        except InputError as error:
            unread.append(f"left out of the report: {error}")
    return [chart for chart in drawn if chart], unread


def _write_tables(made: Report) -> None:
    """The page's tables as CSV and its charts as pictures; none of an earlier report that this one has not."""
    from lottery.results import charts

    frames = {"summary": made.rows, "groups": made.groups, "contrasts": made.contrasts, "costs": made.costs}
    tables = {name: rows.to_csv(index=False) for name, rows in frames.items() if len(rows)}
    written: dict[str, str | bytes] = {f"{name}.csv": text for name, text in tables.items()}
    for chart in made.charts:
        written |= {f"{name}.csv": text for name, text in chart.tables().items()}
        written |= {f"{chart.name}.svg": chart.svg(), f"{chart.name}.png": chart.png()}
    for name in (f"{name}.{kind}" for name in (*frames, *charts.TABLES) for kind in ("csv", "svg", "png")):
        content = written.get(name)
        if content is None:
            (made.run.report / name).unlink(missing_ok=True)
        else:
            files.write_bytes(made.run.report / name, content if isinstance(content, bytes) else content.encode())


def _title(row: Any) -> str:
    """The name of a network or a group in sentences."""
    return DENSE if row.variant == DENSE else f"{row.variant}, {row.family} {row.mask}, rewound to {row.rewind}"


def _cells(group: Any) -> tuple[str, ...]:
    count = str(group.count) if group.count == group.planned else f"{group.count} of {group.planned}"
    rewind = "" if group.variant == DENSE else group.rewind
    place = (group.variant, f"{group.family} {group.mask}".strip(), _density(group), rewind, count)
    if not group.count:
        return (*place, *[""] * 8, group.verdict or "")
    spread = f" ± {group.spread * 100:.2f}" if group.spread is not None else ""
    difference = "" if group.difference is None or group.variant == DENSE else f"{group.difference * 100:+.2f}"
    if group.deviation is not None:
        difference += f" ({group.low * 100:+.2f} .. {group.high * 100:+.2f})"
    return (
        *place,
        f"{group.validation_accuracy * 100:.2f}{spread}",
        f"{group.test_accuracy * 100:.2f}",
        f"{group.least_validation_loss_step:.0f}",
        f"{group.test_accuracy_there * 100:.2f}",
        difference,
        "" if group.deviation is None else f"{group.deviation * 100:.2f}",
        "" if group.needed is None else str(group.needed),
        group.against or "" if difference else "",
        group.verdict or "",
    )


def _density(row: Any) -> str:
    """The density, with an exclamation mark if a layer has collapsed."""
    return "" if row.density is None else f"{row.density:.2%}{' !' if row.collapse else ''}"


def _contrast_cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    first = next(iter(figures.values()))
    return (
        f"{first.family} {first.mask}",
        _density(first),
        first.rewind,
        f"{first.against}{' !' if first.collapse_against else ''}",
        str(first.count),
        *(_interval(figures[name], 100, ".2f") for name in ("validation_accuracy", "test_accuracy", "test_accuracy_there")),
        _interval(figures["least_validation_loss_step"], 1, ".0f"),
    )


def _interval(difference: Any, scale: float, form: str) -> str:
    """A mean and its interval, with a star if that is clear of zero."""
    mean = f"{difference.mean * scale:+{form}}"
    if difference.low is None or difference.high is None:
        return mean
    star = " *" if difference.clear else ""
    return f"{mean} ({difference.low * scale:+{form}} .. {difference.high * scale:+{form}}){star}"


def _markdown(made: Report) -> str:
    lines = [f"# {made.run.recipe.name}", "", *made.headline, "", *_table(HEADINGS, made.table), "", DIFFERENCE_EXPLAINED]
    if made.warnings:
        lines += ["", "## Layer collapse (!)", "", *(f"- {warning}" for warning in made.warnings)]
    if made.contrast_table:
        lines += ["", "## Differences, paired by replicate", "", CONTRASTS_EXPLAINED, ""]
        lines += _table(CONTRASTS, made.contrast_table)
    return "\n".join(lines) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]


def _html(made: Report) -> str:
    from lottery.results import charts

    recipe = made.run.recipe
    named = [name for family in recipe.families.values() for name in family.controls]
    return pages.fill(
        "results/report.html",
        report=made,
        script=charts.script(),
        cost_headings=COSTS,
        headings=HEADINGS,
        difference_explained=DIFFERENCE_EXPLAINED,
        contrast_headings=CONTRASTS,
        contrasts_explained=CONTRASTS_EXPLAINED,
        controls=list({one.name: one for one in map(controls.of, named)}.values()),
        settings=recipe,
        recipe=reading.to_toml(recipe),
        made_in=made.run.environment(),
    )
