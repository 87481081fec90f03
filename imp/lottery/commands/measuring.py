"""The command that measures: `imp bench inference`."""

from pathlib import Path
from typing import Annotated

import typer

from lottery.base.errors import InputError
from lottery.commands.options import JsonOption, RunOption, opened


def _writable(folder: Path | None) -> Path | None:
    """The folder of --out; checked before anything is measured."""
    from lottery.base import files

    try:
        if folder:
            files.make_writable(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot take a measurement ({error.strerror}): name another folder with --out") from None
    return folder


QuickOption = Annotated[bool, typer.Option("--quick", help="Small and short: to see that it runs, not for its figures.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", callback=_writable, help="Write table, JSON, figure and page there too.")
]


def inference(
    run: RunOption = None,
    ticket: Annotated[
        list[str] | None, typer.Option(help="Such as q90-step-000034; repeatable.", show_default="the first and the last")
    ] = None,
    replicate: Annotated[int, typer.Option(min=1, help="Of which replicate.")] = 1,
    threads: Annotated[
        list[int] | None, typer.Option(min=1, help="Repeatable.", show_default="1, 2, 4, as there are cores")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Runs of each, in turn.", show_default="21; 1 with --quick")
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Exported tickets beside the dense network, in each engine: microseconds, speed-up, size, accuracy."""
    from lottery.bench.harness import Bench
    from lottery.bench.inference import compare
    from lottery.bench.process import Process

    count = repeats or (1 if quick else 21)
    with Process() as shared:
        bench = Bench(name="inference", repeats=count, quick=quick, as_json=as_json, out=out, shared=shared)
        compare(bench, opened(run, must_exist=True), ticket or (), replicate, threads or ())
    if bench.failed:
        raise typer.Exit(1)
