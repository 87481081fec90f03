"""Commands that read a run: report, status, compare, export."""

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.commands.options import JsonOption, RunOption, alone, opened, print_json, reporter
from lottery.tables import percent, print_table

if TYPE_CHECKING:
    from lottery.results.grouping import Group

WATCH_SECONDS = 2.0


def report(run: RunOption = None, as_json: JsonOption = False) -> None:
    """Accuracy against density, with controls and verdicts: a page with charts, and each as PNG, SVG and CSV."""
    from lottery.stages.report import DIFFERENCE_EXPLAINED, HEADINGS, report
    from lottery.tracking import publish

    alone()
    source = opened(run, must_exist=True)
    made = report(source)
    publish(source.recipe, source.folder, source.report)
    for line in made.left_out:
        reporter().say(line)
    if as_json:
        print_json({"headline": made.headline, "networks": made.rows, "groups": [_finite(group) for group in made.groups]})
        return
    print_table(source.recipe.name, HEADINGS, made.table)
    print(DIFFERENCE_EXPLAINED)
    for sentence in made.headline:
        print(sentence)
    print(f"Open {source.report / 'index.html'}")


def _finite(group: "Group") -> dict[str, Any]:
    """A group for JSON, which has neither infinities nor NaN."""
    fields = dataclasses.asdict(group)
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in fields.items()}


def status(
    run: RunOption = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show every network and go on showing, until all are done.")] = False,
) -> None:
    """What is done, under way, failed and missing, and the time left."""
    from lottery.progress import duration
    from lottery.stages.status import status

    source = opened(run, must_exist=True)
    if watch:
        if as_json:
            raise typer.BadParameter("--watch shows a table: leave out --json")
        from lottery.commands import watching

        watching.watch(source, WATCH_SECONDS)
        return
    lines = status(source)
    if as_json:
        print_json([dataclasses.asdict(line) for line in lines])
        return
    print_table(
        str(source.folder),
        ("stage", "done", "under way", "failed", "missing", "time left"),
        [
            (
                line.stage,
                *map(str, (line.done, line.under_way, line.failed, line.missing)),
                "" if line.seconds_left is None else duration(line.seconds_left),
            )
            for line in lines
        ],
    )
    for line in lines:
        for detail in line.details:
            print(detail)


def compare(run: RunOption = None, as_json: JsonOption = False) -> None:
    """How alike masks are across replicates, rewind points, methods and rounds, compared with chance."""
    from lottery.stages.compare import compare, nesting, tables

    alone()
    source = opened(run, must_exist=True)
    groups = compare(source, reporter())
    if as_json:
        print_json([group.as_json() for group in groups])
        return
    for table in tables(groups, source.recipe.thresholds.collapse):
        print_table(table.title, table.headings, table.lines)
        if table.explained:
            print(table.explained)
    for sentence in nesting(groups):
        print(sentence)
    print(f"Every pair, layer by layer: {source.report / 'compare.csv'}")


def export(
    ticket: Annotated[str, typer.Option(metavar="NAME", help="Such as q90-step-000034, rounds/lr-step-000000/03 or dense.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="keras, tflite or npz.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Else in the run's export folder.")] = None,
    variant: Annotated[str, typer.Option(help="ticket, reinit, shuffle, random or extended.")] = "ticket",
    replicate: Annotated[int, typer.Option(min=1, help="Which replicate's.")] = 1,
    run: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """A trained network as a file that others load, and how small it compresses."""
    from data_prep.errors import InputError
    from lottery.stages.export import FORMATS, export

    alone()
    if to not in FORMATS:
        raise InputError(f"--to {to}: write keras, tflite or npz")
    target = opened(run, must_exist=True)
    made = export(target, reporter(), ticket, FORMATS[to], out, replicate, variant)
    if as_json:
        print_json(dataclasses.asdict(made))
        return
    print_table(
        made.path,
        ("bytes", "gzip -9", "dense, gzip -9", "of dense", "density", "exact zeros", "test"),
        [
            (
                f"{made.bytes:,}",
                f"{made.gzip_bytes:,}",
                f"{made.dense_gzip_bytes:,}",
                percent(made.gzip_share),
                percent(made.density),
                f"{made.zeros:,} of {made.weights:,}",
                percent(made.test_accuracy),
            )
        ],
    )
    if to != "npz":
        mean, deviation = target.recipe.data.mean, target.recipe.data.deviation
        print(f"It takes images of float32, (pixel / 255 - {mean}) / {deviation}, and gives logits.")
