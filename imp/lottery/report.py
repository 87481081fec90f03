"""Stage 5: the report. summary.csv with every network, summary.md and index.html with the groups, accuracy.png; training.md
and training.png with the course of the dense trainings."""

import base64
import csv
import dataclasses
import io
import math
import shlex
from collections.abc import Sequence
from typing import Any

import jinja2

from data_prep import files
from data_prep.errors import InputError
from lottery import recipe, results, verdicts
from lottery.results import Group, Row
from lottery.run import Run

HEADINGS = ("network", "density", "rewound to", "runs", "validation", "test", "against dense", "verdict")


@dataclasses.dataclass(frozen=True)
class Report:
    """What the report says, before it is laid out."""

    headline: list[str]
    groups: list[Group]
    rows: list[Row]

    @property
    def table(self) -> list[tuple[str, ...]]:
        """The groups as text, in the columns `HEADINGS`."""
        return [_cells(group) for group in self.groups]

    @property
    def failures(self) -> list[Row]:
        return [row for row in self.rows if row["status"] not in ("done", "missing")]


def report(run: Run) -> Report:
    """Write the report of what the run has so far, and return it. Raises InputError before the dense training is done."""
    rows = results.rows(run)
    if not any(row["status"] == "done" and row["variant"] == "dense" for row in rows):
        raise InputError(f"{run.folder} has nothing to report yet: run `imp train` first")
    groups = results.groups(rows, run.recipe.delta)
    made = Report(headline(groups, run), groups, rows)
    from lottery import curves, figure  # matplotlib, which is slow to load

    picture, dense = figure.accuracy(groups), curves.read(run)
    files.write_text(run.report / "summary.csv", _csv(rows))
    files.write_text(run.report / "summary.md", _markdown(made, run))
    files.write_bytes(run.report / "accuracy.png", picture)
    files.write_text(run.report / "training.md", curves.markdown(run.recipe, dense, _environment(run)))
    files.write_bytes(run.report / "training.png", curves.figure(dense))
    files.write_text(run.report / "index.html", _html(made, run, picture))
    return made


def headline(groups: Sequence[Group], run: Run) -> list[str]:
    """The answer in sentences: what the dense network reaches, and for each rewind point the sparsest matching ticket."""
    dense = next(group for group in groups if group.variant == "dense")
    sentences = [
        f"The dense network reaches {dense.validation_accuracy:.2%} on validation images and "
        f"{dense.test_accuracy:.2%} on test images ({_runs(dense.count)})."
    ]
    for rewind, best in results.sparsest_matching(groups).items():
        tickets = [group for group in groups if group.variant == "ticket" and group.rewind == rewind]
        sentences.append(_sentence(rewind, best, tickets))
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


def _sentence(rewind: str, best: Group | None, tickets: Sequence[Group]) -> str:
    if best:
        return f"Rewound to {rewind}, the sparsest winning ticket keeps {_share(best)}."
    level = [group for group in tickets if group.verdict == "undecided" and group.difference >= 0]
    if level:
        sparsest = max(level, key=lambda group: group.quantile or 0)
        return f"Rewound to {rewind}, undecided; the sparsest ticket at or above dense so far keeps {_share(sparsest)}."
    if any(group.verdict == "undecided" for group in tickets):
        return f"Rewound to {rewind}, undecided; no ticket's mean is at or above the dense network's so far."
    return f"Rewound to {rewind}, no ticket of this grid matches the dense network."


def _share(group: Group) -> str:
    return f"{group.density:.2%} of the prunable weights ({group.difference * 100:+.2f} points against dense)"


def _cells(group: Group) -> tuple[str, ...]:
    count = str(group.count) if group.count == group.planned else f"{group.count} of {group.planned}"
    rewind = "" if group.variant == "dense" else group.rewind
    density = "" if math.isnan(group.density) else f"{group.density:.2%}"
    if not group.count:
        return (group.variant, density, rewind, count, "", "", "", group.verdict or "")
    spread = f" ± {group.spread * 100:.2f}" if group.spread is not None else ""
    difference = "" if math.isnan(group.difference) else f"{group.difference * 100:+.2f}"
    if difference and group.count > 1:
        difference += f" ({group.low * 100:+.2f} .. {group.high * 100:+.2f})"
    validation = f"{group.validation_accuracy * 100:.2f}{spread}"
    return (
        group.variant,
        density,
        rewind,
        count,
        validation,
        f"{group.test_accuracy * 100:.2f}",
        difference,
        group.verdict or "",
    )


def _runs(count: int) -> str:
    return "one run" if count == 1 else f"mean of {count} runs"


def _csv(rows: Sequence[Row]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, results.COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _markdown(made: Report, run: Run) -> str:
    lines = [
        f"# {run.recipe.name}",
        "",
        *made.headline,
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + " --- |" * len(HEADINGS),
        *("| " + " | ".join(cells) + " |" for cells in made.table),
    ]
    return "\n".join(lines) + "\n"


def _html(made: Report, run: Run, picture: bytes) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lottery", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html").render(
        report=made,
        headings=HEADINGS,
        name=run.recipe.name,
        delta=run.recipe.delta,
        picture=base64.b64encode(picture).decode(),
        recipe=recipe.to_toml(run.recipe),
        made_in=_environment(run),
    )


def _environment(run: Run) -> dict[str, Any]:
    path = run.folder / "environment.json"
    return files.read_json(path) if path.exists() else {}
