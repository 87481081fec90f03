"""Measurements of the machine, of what lies around the training of tickets, and of what is exported."""

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
from lottery.commands.options import RunOption, opened

ALPHAS = "1", "6.55"  # of MobileNetV2: 3.5 and 100 million weights, all ranked


def limits(
    repeats: RepeatsOption = None, quick: QuickOption = False, as_json: JsonOption = False, out: OutOption = None
) -> None:
    """How fast this machine copies and multiplies, which everything else is measured against."""
    from lottery.bench.limits import bench_limits
    from lottery.progress import Reporter

    conclude(bench_limits(pick(repeats, 7, 2, quick), quick, Reporter()), as_json, out)


def thresholds(
    recipe: RecipeOption = None,
    set_: SetOption = None,
    quantiles: Annotated[str, typer.Option(metavar="GRID", help="A mask for each.")] = "60..99",
    repeats: RepeatsOption = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Seconds and memory of the masks of a whole campaign, from 3.5 and from 100 million weights."""
    from lottery.bench.thresholds import bench_thresholds
    from lottery.progress import Reporter

    if recipe or set_ or quick:
        recipes = [measured(recipe, set_)]
    else:
        recipes = [measured(None, [f"model.alpha={alpha}", "thresholds.exclude=[]"]) for alpha in ALPHAS]
    conclude(bench_thresholds(recipes, quantiles, pick(repeats, 7, 1, quick), Reporter()), as_json, out)


def fanout(
    model: Annotated[str, typer.Option(help="A network, as in a recipe.")] = "mobilenet_v2",
    alpha: Annotated[float | None, typer.Option(help="Width multiplier, where the network has one.")] = 0.35,
    size: Annotated[int, typer.Option(min=8, help="Height and width of the images, in pixels.")] = 32,
    batch: Annotated[int, typer.Option(min=1)] = 128,
    images: Annotated[
        int | None, typer.Option(min=10, help="To train on; a fifth as many to validate and to test.", show_default="12800")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Length of each pair.", show_default="4")] = None,
    evaluate: Annotated[str, typer.Option(help="How often validation and test images are looked at.")] = "1ep",
    pairs: Annotated[int, typer.Option(min=2, help="Tickets of the grid.")] = 4,
    ranks: Annotated[int, typer.Option(min=0, help="Up to so many; 0: one for each core.")] = 0,
    repeats: Annotated[int | None, repeats_of(3)] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Tickets an hour by 1 .. n ranks, and what of a pair is not training."""
    from lottery.bench.fanout import Grid, bench_fanout
    from lottery.bench.measure import cores
    from lottery.progress import Reporter

    grid = Grid(
        "lenet_300_100" if quick else model,
        alpha if model == "mobilenet_v2" and not quick else None,
        size,
        batch,
        pick(images, 12_800, 1_280, quick),
        pick(epochs, 4, 1, quick),
        pairs,
        evaluate,
    )
    conclude(bench_fanout(grid, ranks or cores(), pick(repeats, 3, 1, quick), Reporter()), as_json, out)


def inference(
    run: RunOption = None,
    ticket: Annotated[
        list[str] | None, typer.Option(help="Such as q90-step-000034; repeatable.", show_default="the first and the last")
    ] = None,
    replicate: Annotated[int, typer.Option(min=1, help="Of which replicate.")] = 1,
    threads: Annotated[list[int] | None, typer.Option(min=1, help="Repeatable.", show_default="1, 2, 4")] = None,
    repeats: RepeatsOption = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Exported tickets beside the dense network: microseconds, memory, size."""
    from lottery.bench.inference import bench_inference
    from lottery.progress import Reporter
    from lottery.results import lookup

    target = opened(run, must_exist=True)
    if not ticket:
        there = [name for name in lookup.finished(target.replicate(replicate)) if " " not in name and name != lookup.DENSE]
        ticket = list(dict.fromkeys([*there[:1], *there[-1:]]))
    counts = threads or ([1] if quick else [1, 2, 4])
    sheet, failed = bench_inference(target, ticket, replicate, counts, pick(repeats, 7, 1, quick), quick, Reporter())
    conclude(sheet, as_json, out, failed)
