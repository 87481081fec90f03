"""Measurements of how images are made ready and fed."""

from pathlib import Path
from typing import Annotated

import typer

from lottery.bench.commands.options import (
    JsonOption,
    OutOption,
    QuickOption,
    RecipeOption,
    RepeatsOption,
    SetOption,
    conclude,
    measured,
    pick,
    repeats_of,
)


def prepare(
    folder: Annotated[
        Path | None, typer.Argument(help="Class folders of JPEG files of your own; else photographs are made up.")
    ] = None,
    images: Annotated[int | None, typer.Option(min=10, help="How many to make up.", show_default="10000")] = None,
    size: Annotated[int, typer.Option(min=8, help="Height and width of the records, in pixels.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Up to so many processes; 0: one per core.")] = 0,
    repeats: RepeatsOption = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """JPEG files to records, beside plain Pillow and beside decoding alone."""
    from lottery.bench.measure import cores
    from lottery.bench.prepare import bench_prepare
    from lottery.progress import Reporter

    count = pick(images, 10_000, 300, quick)
    sheet = bench_prepare(count, size, workers or cores(), pick(repeats, 7, 2, quick), folder, Reporter())
    conclude(sheet, as_json, out)


def feed(
    images: Annotated[int | None, typer.Option(min=1, help="How many to feed.", show_default="20000")] = None,
    size: Annotated[int, typer.Option(min=8, help="Their height and width, in pixels.")] = 64,
    batch: Annotated[int, typer.Option(min=1)] = 256,
    crop: Annotated[int, typer.Option(min=0, help="Pixels of padding before a random crop.")] = 0,
    flip: Annotated[bool, typer.Option("--flip", help="Mirror half of them.")] = False,
    repeats: RepeatsOption = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Images a second that reach the compiled step: from memory, streamed, and by plain tf.data."""
    from data_prep.errors import InputError
    from lottery.progress import Reporter
    from lottery.start import start_tensorflow

    count = pick(images, 20_000, 2_000, quick)
    if batch > count:
        raise InputError(f"--batch {batch} is more than --images {count}: lower it")
    start_tensorflow()
    from lottery.bench.feed import bench_feed

    conclude(bench_feed(count, size, batch, crop, flip, pick(repeats, 7, 2, quick), Reporter()), as_json, out)


def loader(
    recipe: RecipeOption = None,
    set_: SetOption = None,
    images: Annotated[int | None, typer.Option(min=1, help="Images of an epoch.", show_default="12800")] = None,
    repeats: Annotated[int | None, repeats_of(5)] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """An epoch with images loaded by 0, 1, 2, 4, 8 workers, streamed, and from memory: where it waits."""
    from lottery.bench.loader import bench_loader
    from lottery.progress import Reporter

    count = pick(images, 12_800, 1_280, quick)
    workers = (0, 2) if quick else (0, 1, 2, 4, 8)
    sheet = bench_loader(measured(recipe, set_), count, workers, pick(repeats, 5, 1, quick), quick, Reporter())
    conclude(sheet, as_json, out)
