"""Commands that read a run: recipe, report, status, explore, compare."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lottery.base.progress import LINE_SECONDS, count_of, duration
from lottery.commands.options import JsonOption, RecipeOptions, RunOption, opened, print_json, reporter
from lottery.results.tables import print_table, whole

if TYPE_CHECKING:
    from lottery.results.report import Report
    from lottery.results.status import Line
    from lottery.rundir.run import Run

WATCH_SECONDS = 10.0  # each time, all results are read anew and Slurm is asked


def recipe(run: RecipeOptions) -> None:
    """Print a recipe in full, with the meaning of each key."""
    from lottery.experiment.reading import explained

    print(explained(run.open().recipe), end="")


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run directories: several on one page; default: that of --run."),
    ] = None,
    run: RunOption = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder for a page of several runs.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report: accuracy against density, controls and verdicts on a page; charts as PNG, SVG and CSV, too. Of several
    runs: where they differ, and how far the others are from the first."""
    from lottery.base.errors import InputError
    from lottery.results.report import report
    from lottery.trackers.mirror import publish

    folders = [*([run] if run else []), *(runs or [])]
    if len(folders) > 1:
        if not out:
            raise InputError("name the folder for the page of several runs with --out")
        _report_several(folders, out, as_json)
        return
    if out:
        raise InputError("--out is for the page of several runs: that of one is in its folder, report/index.html")
    source = opened(folders[0] if folders else None, must_exist=True)
    made = report(source)
    publish(source.recipe, source.folder, source.report)
    show_report(source, made, as_json)


def _report_several(folders: Sequence[Path], out: Path, as_json: bool) -> None:
    """Write the page of several runs; print what was found, and the tables."""
    from lottery.results.frame import dicts
    from lottery.results.report import report_several
    from lottery.results.several import open_several

    several = open_several(folders)
    blocks = report_several(several, out)
    if as_json:
        tables = {"networks": several.frame(), "contrasts": several.contrasts}
        print_json(
            {
                "headline": blocks[0].sentences,
                "keys": several.keys.to_dict("records"),
                **{name: dicts(table) for name, table in tables.items()},
            }
        )
        return
    for block in blocks[1:]:
        if block.table:
            print_table(block.title, list(block.table[0]), [list(line.values()) for line in block.table])
    print(*blocks[0].sentences, sep="\n")
    print(f"Open {out / 'index.html'}")


def show_report(run: "Run", made: "Report", as_json: bool) -> None:
    """Print the headline and the table of the report, and where its page is."""
    from lottery.results.frame import dicts
    from lottery.results.sections import networks

    for line in made.left_out:
        reporter().say(line)
    if as_json:
        tables = {"networks": made.rows, "groups": made.groups, "criteria": made.findings.checks}
        print_json({"headline": made.headline, **{name: dicts(table) for name, table in tables.items()}})
        return
    table = networks.table(made.findings)
    print_table(run.recipe.name, list(table[0]), [list(line.values()) for line in table])
    print(networks.difference_explained(run))
    for sentence in made.headline:
        print(sentence)
    print(f"Open {run.report / 'index.html'}")


def status(
    run: RunOption = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until no network is left to train.")] = False,
) -> None:
    """Show what is done, under way, failed and missing, and the time left."""
    from lottery.results.status import status

    source = opened(run, must_exist=True)
    if watch:
        if as_json:
            raise typer.BadParameter("--watch shows a table: leave out --json")
        watch_status(source)
    elif as_json:
        print_json([dataclasses.asdict(line) for line in status(source)])
    else:
        show_status(source, status(source))


def watch_status(run: "Run") -> None:
    """Show the status of a run again and again, until no network is left to train: in place on a terminal, else one below the
    other."""
    from rich.console import Console

    from lottery.results.status import is_over, status

    console = Console()
    while True:
        lines = status(run)
        console.clear()
        show_status(run, lines)
        if is_over(lines):
            return
        time.sleep(WATCH_SECONDS if console.is_terminal else LINE_SECONDS)


def show_status(run: "Run", lines: Sequence["Line"]) -> None:
    """Print a table of what is done and missing, and below it what runs or failed."""
    print_table(
        str(run.folder),
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
            print(detail, flush=True)


def explore(
    run: RecipeOptions,
    model: Annotated[
        bool, typer.Option("--model", help="The network itself, before anything is trained: variables, MACs, what is prunable.")
    ] = False,
    at: Annotated[str, typer.Option(metavar="POINT", help="The dense network at a snapshot: 0, 34it, 1ep or end.")] = "end",
    ticket: Annotated[
        str | None, typer.Option(metavar="NAME", help="A ticket instead of the dense network, such as q90-step-000034.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="ticket, or a control, such as reinit.", show_default="ticket")] = None,
    replicate: Annotated[int, typer.Option(min=1, help="Which replicate.")] = 1,
    quantiles: Annotated[
        str | None, typer.Option(metavar="GRID", help="Quantiles of |w| to show, in per cent.", show_default="50,75,90,99")
    ] = None,
    snapshots: Annotated[bool, typer.Option("--snapshots", help="How the norms change during the dense training.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how large the weights are: count, min, max, mean, norm and quantiles of |w|, by variable."""
    if model:
        _show_network(run.open(), as_json)
        return
    from lottery.base.errors import InputError
    from lottery.experiment.grids import parse_point, parse_quantiles
    from lottery.results import explore

    source = run.open(must_exist=True)
    if snapshots:
        if ticket or variant or quantiles or at != "end":
            raise InputError(
                "--snapshots shows the dense network at all its snapshots: leave out --at, --ticket, --variant and --quantiles"
            )
        title, rows = explore.course(source, replicate)
    else:
        if variant and not ticket:
            raise InputError(f"--variant {variant} needs a ticket: name it with --ticket")
        shown = explore.QUANTILES if quantiles is None else parse_quantiles(quantiles)
        point = None if at == "end" else parse_point(at)
        title, rows = explore.explore(source, point, ticket, variant or "ticket", replicate, shown)
    if as_json:
        print_json(rows)
    elif snapshots:
        print_table(f"{title}, in all", explore.HEADINGS, explore.in_all(rows, source.plan().steps_per_epoch))
    else:
        print_table(title, *explore.table(rows))


def _show_network(source: "Run", as_json: bool) -> None:
    from lottery.stages.network import variables

    pruning, found = source.recipe.pruning, variables(source)
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
        return
    rows = [
        (
            one.path,
            "x".join(map(str, one.shape)),
            whole(one.size),
            whole(one.macs) if one.macs else "",
            "prunable" if one.prunable else f"exclude {one.excluded}" if one.excluded else "",
        )
        for one in found
    ]
    print_table(source.recipe.model.name, ("variable", "shape", "numbers", "MACs", f"scope {pruning.scope}"), rows)
    for name, some in (("in all", found), ("prunable", [one for one in found if one.prunable])):
        counts = [one.macs for one in some if one.macs is not None]
        macs = f"{whole(sum(counts))} MACs" if len(counts) == len(some) else "MACs not known"
        print(f"{name}: {count_of(len(some), 'variable')}, {whole(sum(one.size for one in some))} numbers, {macs}")
    if idle := [pattern for pattern in pruning.exclude if not any(one.excluded == pattern for one in found)]:
        print(f"pruning.exclude: nothing that would be prunable matches {', '.join(idle)}")


def compare(run: RunOption = None, as_json: JsonOption = False) -> None:
    """Show how alike masks are across replicates, rewind points and families, compared with chance."""
    from lottery.results.compare import HEADINGS, compare, tables
    from lottery.stages.alignment import Alignments

    source = opened(run, must_exist=True)
    groups = compare(source, reporter(), Alignments(source).of)
    if as_json:
        print_json(groups)
        return
    for title, rows, explained in tables(source, groups):
        print_table(title, HEADINGS, rows)
        if explained:
            print(explained)
    print(f"Every pair, layer by layer: {source.report / 'compare.csv'}")
