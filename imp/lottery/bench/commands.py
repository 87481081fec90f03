"""The measurements as commands."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lottery.bench.fanout import Row as FanoutRow
    from lottery.bench.measure import Bench
    from lottery.bench.step import Row

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


@app.command()
def step(
    model: Annotated[
        list[str] | None, typer.Option(help="A network, as in a recipe; repeatable. Without it, the four standard rows.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Width multiplier, where the network has one.")] = None,
    size: Annotated[int | None, typer.Option(min=8, help="Height and width of the images, in pixels.")] = None,
    classes: Annotated[int, typer.Option(min=2)] = 10,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Repeatable.")] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="float32 (default), mixed_bfloat16 or mixed_float16; repeatable.")
    ] = None,
    remat: Annotated[bool, typer.Option("--remat", help="Also with rematerialisation.")] = False,
    threads: Annotated[int, typer.Option(min=0, help="Intra-op, for Keras too; 0: one per core.")] = 0,
    repeats: Annotated[int, typer.Option(min=10, help="Runs of each, in turn, after some to warm up.")] = 11,
    as_json: JsonOption = False,
) -> None:
    """Images a second that the training loop trains on, what a mask costs, and Keras's own `fit` beside it."""
    from lottery.bench.measure import cores
    from lottery.bench.step import bench_step, cases
    from lottery.progress import Reporter

    table = cases(model or [], alpha, size, classes, batch or [], precision or [], remat, threads or cores(), repeats)
    rows = bench_step(table, Reporter())
    _print_steps(rows, as_json)
    if len(rows) < len(table):
        raise typer.Exit(1)


@app.command()
def fanout(
    model: Annotated[str, typer.Option(help="A network, as in a recipe.")] = "mobilenet_v2",
    alpha: Annotated[float | None, typer.Option(help="Width multiplier, where the network has one.")] = 0.35,
    size: Annotated[int, typer.Option(min=8, help="Height and width of the images, in pixels.")] = 32,
    batch: Annotated[int, typer.Option(min=1)] = 128,
    images: Annotated[int, typer.Option(min=10, help="Training images; a fifth as many to validate and to test.")] = 12_800,
    epochs: Annotated[int, typer.Option(min=1, help="Length of each pair.")] = 4,
    pairs: Annotated[int, typer.Option(min=2, help="Tickets of the grid.")] = 4,
    ranks: Annotated[int, typer.Option(min=0, help="Up to so many; 0: one for each core.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each, in turn.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Tickets an hour by 1 .. n ranks, and what of a pair is not training."""
    from lottery.bench.fanout import Grid, bench_fanout
    from lottery.bench.measure import cores, machine
    from lottery.progress import Reporter

    grid = Grid(model, None if model != "mobilenet_v2" else alpha, size, batch, images, epochs, pairs)
    rows = bench_fanout(grid, ranks or cores(), repeats, Reporter())
    if as_json:
        print(json.dumps({**vars(grid), "machine": machine(), "rows": [dataclasses.asdict(row) for row in rows]}, indent=2))
        return
    _print_fanout(rows, f"{pairs} pairs of {epochs} epochs: {model}, {size}x{size}, batch {batch}")
    print(_medians(repeats, machine()))


def _print_fanout(rows: "Sequence[FanoutRow]", title: str) -> None:
    from lottery.tables import print_table

    print_table(
        title,
        ("", "tickets/h", "slowest", "fastest", "ratio", "s a pair", "not training", "share", "start, s"),
        [
            (
                row.title,
                *(f"{value:,.1f}" for value in (row.tickets_per_hour, row.low, row.high)),
                f"{row.ratio:.2f}",
                f"{row.pair_seconds:.1f}",
                f"{row.other_seconds:.2f}",
                f"{row.other_seconds / row.pair_seconds:.1%}",
                f"{row.start_seconds:.1f}",
            )
            for row in rows
        ],
    )
    print("ratio: against the fastest single process; not training: of a pair after the first, reading, evaluating, saving")


def _print_steps(rows: "Sequence[Row]", as_json: bool) -> None:
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return
    from lottery.tables import print_table

    if not rows:
        return
    print_table(
        "training steps, a random half of each kernel pruned",
        ("", "images/s", "slowest", "fastest", "ms/step", "peak MB", "Keras fit", "ratio", "mask", "control", "of matmul"),
        [
            (
                row.title,
                *(f"{value:,.0f}" for value in (row.images_per_s, row.low, row.high)),
                f"{row.ms_per_step:.2f}",
                f"{row.peak_memory_bytes / 1e6:,.0f}",
                f"{row.keras_fit_images_per_s:,.0f}",
                f"{row.keras_ratio:.2f}",
                *(f"{share:+.1%}" for share in (row.mask_overhead, row.control_overhead)),
                f"{row.peak_share:.0%}",
            )
            for row in rows
        ],
    )
    print("mask: time that a mask adds; control: the same between two networks without one, which is noise")
    print(f"{_medians(rows[0].repeats, rows[0].machine)}, {rows[0].threads} intra-op threads")


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
    print(_medians(bench.rows[0].repeats, bench.machine))
    print(f"one thread copies {bench.copy_gb_per_s:.1f} GB/s here")
    for name, value in bench.extras.items():
        print(f"{name.replace('_', ' ')}: {value:.2f}")


def _medians(repeats: int, machine: Mapping[str, Any]) -> str:
    return f"medians of {repeats} runs of each, in turn; {machine['processor']}, {machine['cores']} cores"
