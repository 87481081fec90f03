"""Measurements of the training step."""

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

ThreadsOption = Annotated[int, typer.Option(min=0, help="Intra-op; 0: one per core.")]


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
    threads: ThreadsOption = 0,
    repeats: Annotated[int | None, repeats_of(11)] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Images a second that the training loop trains on, what a mask costs, and Keras's own `fit` beside it."""
    from lottery.bench.measure import cores
    from lottery.bench.step import bench_step, cases
    from lottery.progress import Reporter

    models = model or (["lenet_300_100"] if quick else [])
    count = pick(repeats, 11, 2, quick)
    table = cases(models, alpha, size, classes, batch or [], precision or [], remat, threads or cores(), count)
    sheet, failed = bench_step(table, Reporter())
    conclude(sheet, as_json, out, failed)


def profile(
    recipe: RecipeOption = None,
    set_: SetOption = None,
    cprofile: Annotated[bool, typer.Option("--cprofile", help="Also DIR/profile.prof of the host, for snakeviz.")] = False,
    nvtx: Annotated[bool, typer.Option("--nvtx", help="Ranges that NVIDIA's Nsight shows; needs the package nvtx.")] = False,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Where a step's time goes: input, forward, backward, update, mask, host; and with --out the trace that says so."""
    from lottery.bench.profile import bench_profile
    from lottery.progress import Reporter

    sheet, lines = bench_profile(measured(recipe, set_), quick, out, cprofile, nvtx, Reporter())
    conclude(sheet, as_json, out)
    for line in [] if as_json else lines:
        print(line)


def ladder(
    recipe: RecipeOption = None,
    set_: SetOption = None,
    batch: Annotated[int, typer.Option(min=1, help="The batch before it is made larger.")] = 32,
    repeats: RepeatsOption = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """A plain training, made faster by one thing after another, in the order that pays."""
    from lottery.bench.ladder import bench_ladder
    from lottery.progress import Reporter

    sheet, failed = bench_ladder(measured(recipe, set_), batch, pick(repeats, 7, 1, quick), quick, Reporter())
    conclude(sheet, as_json, out, failed)


def masks(
    recipe: RecipeOption = None,
    set_: SetOption = None,
    repeats: RepeatsOption = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """What a mask costs: inside the compiled step, and as a Python callback after each batch."""
    from lottery.progress import Reporter
    from lottery.start import start_tensorflow

    wanted = measured(recipe, set_)
    start_tensorflow()
    from lottery.bench.masks import bench_masks

    conclude(bench_masks(wanted, pick(repeats, 7, 2, quick), quick, Reporter()), as_json, out)


def precision(
    recipe: RecipeOption = None,
    set_: SetOption = None,
    repeats: RepeatsOption = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """A step in float32, mixed bfloat16 and mixed float16: time, the optimizer's part, memory."""
    from lottery.bench.costs import bench_precision
    from lottery.progress import Reporter

    sheet, failed = bench_precision(measured(recipe, set_), pick(repeats, 7, 1, quick), quick, Reporter())
    conclude(sheet, as_json, out, failed)


def remat(
    recipe: RecipeOption = None,
    set_: SetOption = None,
    largest: Annotated[
        int | None, typer.Option(min=1, help="The batch to begin with in search of the largest.", show_default="4096")
    ] = None,
    memory: Annotated[float, typer.Option(min=0, help="GB that a training may take on CPUs; 0: half of what is free.")] = 0,
    repeats: RepeatsOption = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """A step with activations held and with them computed twice, in the same batch and each in its own largest."""
    from lottery.bench.costs import bench_remat
    from lottery.progress import Reporter

    wanted = measured(recipe, set_)
    start = pick(largest, 4096, 2 * wanted.train.batch, quick)
    sheet, failed = bench_remat(wanted, start, memory, pick(repeats, 7, 1, quick), quick, Reporter())
    conclude(sheet, as_json, out, failed)
