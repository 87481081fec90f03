"""Stage 5: the report. index.html with everything on one page; summary.md with its tables; each table as CSV (summary.csv has
every network), each chart as PNG, SVG and CSV."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import pandas

from lottery.base import files
from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.results import frame, markdown, pages
from lottery.results.block import Block
from lottery.results.findings import Findings
from lottery.results.several import Several
from lottery.rundir.names import RECIPE
from lottery.rundir.run import Run


@dataclasses.dataclass(frozen=True)
class Report:
    """What the report says, before it is laid out."""

    findings: Findings
    blocks: list[Block]
    left_out: list[str]
    """A line for each file that should be shown but cannot be read."""

    @property
    def run(self) -> Run:
        return self.findings.run

    @property
    def headline(self) -> list[str]:
        """The answer in sentences."""
        return self.findings.headline.sentences

    @property
    def rows(self) -> pandas.DataFrame:
        """The networks; here and in `groups`, the figures of the deciding metric are called by its name
        (`validation_accuracy`)."""
        return frame.named(self.findings.rows, self.run.metric)

    @property
    def groups(self) -> pandas.DataFrame:
        """Their means and verdicts over replicates."""
        return frame.named(self.findings.groups, self.run.metric)


def report(run: Run) -> Report:
    """Write the report of a run as far as it is, and return it. Raises InputError before the first evaluation."""
    from lottery.results import sections  # and with them Altair, which is slow to load

    findings = Findings(run)
    if not findings.has_dense and findings.training.empty:
        raise InputError(f"{run.folder} has nothing to report yet: run `imp train` first")
    blocks = sections.blocks(findings, sections.SECTIONS if findings.has_dense else sections.BEFORE_TICKETS)
    made = Report(findings, blocks, [*dict.fromkeys(findings.left_out)])
    _write(made)
    return made


def _write(made: Report) -> None:
    """The pages, tables as CSV and charts as pictures; none of an earlier report that this one has not."""
    from lottery.results import drawing

    run = made.run
    files.write_text(run.report / "summary.md", markdown.page(run.recipe.name, made.findings.headline.opening, made.blocks))
    page = pages.fill(
        "results/report.html",
        report=made,
        script=drawing.script(),
        recipe=reading.to_toml(run.recipe),
        made_in=run.environment(),
    )
    _write_page(run.report, page, made.blocks)


def report_several(several: Several, folder: Path) -> list[Block]:
    """Write the page of several runs into `folder`, and return its parts. Raises InputError where that is a file or a run, and
    for a run without a trained dense network."""
    from lottery.results import drawing
    from lottery.results.sections import runs

    if folder.is_file() or (folder / RECIPE).exists():
        raise InputError(f"--out {folder} is a {'file' if folder.is_file() else 'run'}: name a folder for the page")
    for run in several.runs.values():
        if not run.trained_plan():
            raise InputError(f"{run.folder} has nothing to report yet: run `imp train` first")
    title, blocks = ", ".join(several.runs), runs.blocks(several)
    recipes = {name: reading.to_toml(run.recipe) for name, run in several.runs.items()}
    page = pages.fill("results/several.html", title=title, blocks=blocks, recipes=recipes, script=drawing.script())
    files.write_text(folder / "summary.md", markdown.page(title, [], blocks))
    _write_page(folder, page, blocks)
    return blocks


def _write_page(folder: Path, page: str, blocks: Sequence[Block]) -> None:
    """A page, and the files of its parts; none of an earlier page that this one has not."""
    index = folder / "index.html"
    earlier = re.findall(r'<a href="([\w-]+\.(?:csv|svg|png))"', index.read_text("utf-8")) if index.exists() else []
    for block in blocks:
        for chart in block.charts:
            files.write_text(folder / f"{chart.name}.svg", chart.svg)
            files.write_bytes(folder / f"{chart.name}.png", chart.png)
        for name, table in block.csv.items():
            files.write_text(folder / name, table.to_csv(index=False))
    for name in set(earlier).difference(*(block.files for block in blocks)):
        (folder / name).unlink(missing_ok=True)
    files.write_text(index, page)
