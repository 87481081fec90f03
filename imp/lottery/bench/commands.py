"""The measurements as commands."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lottery.bench.measure import Bench

app = typer.Typer(no_args_is_help=True, help="Measure this machine.")

RepeatsOption = Annotated[int, typer.Option(min=1, help="Runs of each, in turn, after one to warm up.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def prepare(
    folder: Annotated[
        Path | None, typer.Argument(help="Class folders of JPEG files of your own; else photographs are made up.")
    ] = None,
    images: Annotated[int, typer.Option(min=10, help="How many to make up.")] = 10_000,
    size: Annotated[int, typer.Option(min=8, help="Height and width of the records, in pixels.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Up to so many processes; 0: one per core.")] = 0,
    repeats: RepeatsOption = 5,
    as_json: JsonOption = False,
) -> None:
    """JPEG files to records, beside plain Pillow and beside decoding alone."""
    from lottery.bench.measure import cores
    from lottery.bench.prepare import bench_prepare
    from lottery.progress import Reporter

    _print(bench_prepare(images, size, workers or cores(), repeats, folder, Reporter()), as_json)


@app.command()
def feed(
    images: Annotated[int, typer.Option(min=1, help="How many to feed.")] = 20_000,
    size: Annotated[int, typer.Option(min=8, help="Their height and width, in pixels.")] = 64,
    batch: Annotated[int, typer.Option(min=1)] = 256,
    crop: Annotated[int, typer.Option(min=0, help="Pixels of padding before a random crop.")] = 0,
    flip: Annotated[bool, typer.Option("--flip", help="Mirror half of them.")] = False,
    repeats: RepeatsOption = 7,
    as_json: JsonOption = False,
) -> None:
    """Images a second that reach the compiled step: from memory, streamed, and by plain tf.data."""
    from data_prep.errors import InputError
    from lottery.progress import Reporter
    from lottery.start import start_tensorflow

    if batch > images:
        raise InputError(f"--batch {batch} is more than --images {images}: lower it")
    start_tensorflow()
    from lottery.bench.feed import bench_feed

    _print(bench_feed(images, size, batch, crop, flip, repeats, Reporter()), as_json)


def _print(bench: "Bench", as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(bench), indent=2))
        return
    from lottery.tables import print_table

    print_table(
        bench.title,
        ("", "images/s", "slowest", "fastest", "MB/s", "per core", "ratio"),
        [
            (
                row.name,
                *(f"{value:,.0f}" for value in (row.images_per_s, row.low, row.high, row.mb_per_s, row.per_core)),
                f"{row.ratio:.2f}",
            )
            for row in bench.rows
        ],
    )
    print(
        f"medians of {bench.rows[0].repeats} runs of each, in turn; "
        f"{bench.machine['processor']}, {bench.machine['cores']} cores"
    )
    print(f"one thread copies {bench.copy_gb_per_s:.1f} GB/s here")
    for name, value in bench.extras.items():
        print(f"{name.replace('_', ' ')}: {value:.2f}")
