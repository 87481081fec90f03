"""Stage 5: the report. index.html with everything on one page; summary.csv with every network, summary.md with the groups and
how they differ, training.md with the course of the dense trainings; each table as CSV, each chart as PNG, SVG and CSV."""

import dataclasses
import gzip
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep import files
from data_prep.errors import InputError
from lottery import journal, pages, recipe, store, verdicts
from lottery.progress import duration
from lottery.results import curves, grouping, listing, measurements, tidy
from lottery.results.contrasts import Contrast, Difference, contrasts, flattened
from lottery.results.grouping import Group
from lottery.results.listing import Row
from lottery.results.measurements import Measurement
from lottery.run import Run
from lottery.tables import csv_text

if TYPE_CHECKING:
    from lottery.results.charts import Chart

HEADINGS = (
    *("network", "mask", "density", "rewound to", "runs", "validation", "test", "least loss at", "test there"),
    *("difference", "against", "verdict"),
)
CONTRASTS = (
    *("ticket", "density", "rewound to", "against", "runs", "validation", "test", "test at least loss"),
    "step of least loss",
)


FEW = 12  # groups without a result, which a table has room for
COSTS = ("networks", "trained", "epochs", "device time", "each")

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
        return [f"{group.title}: {group.collapse}" for group in self.groups if group.variant == "ticket" and group.collapse]

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
    rows = listing.rows(run)
    if not any(row["status"] == "done" and row["variant"] == "dense" for row in rows):
        raise InputError(f"{run.folder} has nothing to report yet: run `imp train` first")
    groups = grouping.groups(rows, run.recipe.delta)
    dense = curves.read(run)
    drawn, unread = _charts(run, rows, groups, dense)
    measured, left_out = measurements.read(run.bench)
    sentences = headline(groups, run, rows)
    made = Report(sentences, groups, rows, contrasts(rows), measured, [*unread, *left_out], drawn, tidy.costs(rows))
    files.write_text(run.report / "summary.csv", csv_text(listing.COLUMNS, rows))
    files.write_text(run.report / "summary.md", _markdown(made, run))
    files.write_text(run.report / "training.md", curves.markdown(run.recipe, dense, _environment(run)))
    _write_tables(made, run.report)
    _write_charts(drawn, run.report)
    files.write_text(run.report / "index.html", _html(made, run))
    return made


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


def headline(groups: Sequence[Group], run: Run, rows: Sequence[Row]) -> list[str]:
    """The answer in sentences: what the dense network reaches, and for each rewind point the sparsest matching ticket."""
    dense = next(group for group in groups if group.variant == "dense")
    sentences = [
        f"The dense network reaches {dense.validation_accuracy:.2%} on validation images and "
        f"{dense.test_accuracy:.2%} on test images ({_runs(dense.count)})."
    ]
    for key, tickets in grouping.series(groups).items():
        sentences.append(_sentence(_series_name(*key), tickets))
        if matching := [group for group in tickets if group.verdict == "matching"]:
            sentences[-1] += f" {_worth(run, rows, matching[-1])}"
    missing = sum(group.planned - group.count for group in groups)
    if missing:
        sentences.append(f"{missing} of {sum(group.planned for group in groups)} networks have no result: see `imp status`.")
    if dense.planned < verdicts.LEAST_REPLICATES:
        least = verdicts.LEAST_REPLICATES
        sentences.append(
            f"Verdicts need {least} replicates, this run has {dense.planned}: "
            f"`imp run --run {shlex.quote(str(run.folder))} --set replicates={least}` adds the others."
        )
    return sentences


def _series_name(method: str, rewind: str) -> str:
    return f"Rewound to {rewind}" if method == "oneshot" else f"In rounds of {method} from {rewind}"


def _sentence(name: str, tickets: Sequence[Group]) -> str:
    best = grouping.sparsest_matching(tickets)
    matching = [group for group in tickets if group.verdict == "matching"]
    if matching and matching[-1] is not best:
        others = [group for group in tickets if group.verdict != "matching" and group.density > matching[-1].density]
        densities = ", ".join(f"{group.density:.2%}" for group in others)
        return f"{name}, tickets match down to one that keeps {_share(matching[-1])}, but not, or not yet, at {densities}."
    if best:
        return f"{name}, the sparsest winning ticket keeps {_share(best)}."
    level = [group for group in tickets if group.verdict == "undecided" and group.difference >= 0]
    if level:
        return f"{name}, undecided; the sparsest ticket at or above {level[-1].against} so far keeps {_share(level[-1])}."
    if any(group.verdict == "undecided" for group in tickets):
        return f"{name}, undecided; no ticket's mean is at or above the dense network's so far."
    return f"{name}, no ticket of this grid matches the dense network."


def _share(group: Group) -> str:
    return f"{group.density:.2%} of the prunable weights ({group.difference * 100:+.2f} points against {group.against})"


def _worth(run: Run, rows: Sequence[Row], best: Group) -> str:
    """What a winning ticket reaches, and its size beside the dense network's (where nothing happened to their weights)."""
    done = [row for row in rows if row["status"] == "done"]
    place = (best.variant, best.method, best.quantile, best.level, best.rewind_step)
    ticket = next(row for row in done if tuple(row[key] for key in _PLACE) == place)
    replicate = run.replicate(ticket["replicate"])
    last = max(replicate.snapshot_steps(), default=0)
    reached = f"It reaches {best.test_accuracy:.2%} on test images"
    try:
        small, whole = map(_compressed, (run.network_in(ticket["folder"]).final, replicate.snapshot(last)))
    except InputError:
        return f"{reached}."
    return f"{reached}; compressed it takes {small / 1000:,.0f} kB, the dense network {whole / 1000:,.0f}."


_PLACE = ("variant", "method", "quantile", "level", "rewind_step")


def _compressed(path: Path) -> int:
    """The bytes of a network's weights and statistics after gzip."""
    state = store.load_state(path, slots=False)
    return len(gzip.compress(b"".join(array.tobytes() for array in (state.weights | state.statistics).values())))


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
    place = (group.variant, _mask(group), _density(group), rewind, count)
    if not group.count:
        return (*place, *[""] * 6, group.verdict or "")
    spread = f" ± {group.spread * 100:.2f}" if group.spread is not None else ""
    difference = "" if math.isnan(group.difference) or group.variant == "dense" else f"{group.difference * 100:+.2f}"
    if difference and group.count > 1:
        difference += f" ({group.low * 100:+.2f} .. {group.high * 100:+.2f})"
    return (
        *place,
        f"{group.validation_accuracy * 100:.2f}{spread}",
        f"{group.test_accuracy * 100:.2f}",
        f"{group.early_step:.0f}",
        f"{group.early_test_accuracy * 100:.2f}",
        difference,
        group.against or "" if difference else "",
        group.verdict or "",
    )


def _mask(group: Group | Contrast) -> str:
    if group.quantile is not None:
        return f"q{group.quantile:g}"
    return "" if group.level is None else f"{group.method} {group.level}"


def _density(group: Group | Contrast) -> str:
    """With an exclamation mark where a layer has collapsed."""
    return "" if math.isnan(group.density) else f"{group.density:.2%}{' !' if group.collapse else ''}"


def _contrast_cells(contrast: Contrast) -> tuple[str, ...]:
    points = [contrast.differences[name] for name in ("validation_accuracy", "test_accuracy", "test_accuracy_there")]
    return (
        _mask(contrast),
        _density(contrast),
        contrast.rewind,
        contrast.against,
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


def _runs(count: int) -> str:
    return "one run" if count == 1 else f"mean of {count} runs"


def _markdown(made: Report, run: Run) -> str:
    lines = [f"# {run.recipe.name}", "", *made.headline, "", *_table(HEADINGS, made.table)]
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
        made_in=_environment(run),
    )


def _environment(run: Run) -> dict[str, Any]:
    path = run.folder / "environment.json"
    return files.read_json(path) if path.exists() else {}
