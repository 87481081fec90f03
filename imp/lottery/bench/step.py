"""`imp bench step` and `imp bench masks`: our training loop and Keras's `fit`, without and with a mask."""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.bench import timing
from lottery.bench.harness import MOBILENET, STILL, Bench, Recipe, measurement
from lottery.bench.sheet import Column, bars, duration, rate

if TYPE_CHECKING:
    import keras


IMAGE_BYTES = 1 << 26  # of noise that is held resident; Keras has the same as float32
COLUMNS = (
    Column("title", ""),
    *rate("images_per_s", "images/s"),
    Column("ms_per_step", "ms/step", ",.2f"),
    Column("peak_memory_bytes", "peak bytes", ".3g"),
    Column("keras_fit_images_per_s", "Keras fit"),
    Column("keras_ratio", "ratio", ".2f"),
    Column("mask_overhead", "mask", "+.1%"),
    Column("control_overhead", "control", "+.1%"),
    Column("peak_share", "of matmul", ".0%"),
)
MASK_COLUMNS = (
    Column("name", ""),
    *duration("ms_per_step", "ms/step", ",.2f"),
    Column("mask_share", "mask's share", ".1%"),
)
# Width multiplier, size and batch with which this project trains a network, and any other.
STANDARD = {
    "mobilenet_v2": [(1.0, 64, 96), (0.35, 32, 128)],
    "resnet20": [(1.0, 32, 128)],
    "lenet_300_100": [(1.0, 28, 60)],
}
OTHER = (1.0, 32, 128)
STEP_CONTENDERS = ("masked", "unmasked", "control", "matmul", "fit")
MASKED = {
    "unmasked": "our loop, no mask",
    "masked": "our loop, mask in the compiled step",
    "fit": "Keras fit, no mask",
    "callback": "Keras fit, mask by a callback after the batch",
}

Walls = dict[str, list[float]]  # seconds of a step (`matmul`: of a product), by contender, of each of its runs


@measurement(repeats=11, few=2)
def step(
    bench: Bench,
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
    threads: Annotated[int, typer.Option(min=0, help="Intra-op; 0: one per core.")] = 0,
) -> None:
    """Images a second that the training loop trains on, what a mask costs, and Keras's own `fit` beside it."""
    models, threads = model or (["lenet_300_100"] if bench.quick else []), threads or timing.cores()
    for case in list(cases(models, alpha, size, batch or [], precision or [], [False, True][: 1 + remat], threads)):
        row = {**told(case), "classes": classes, "repeats": bench.repeats}
        with bench.row(row["title"]):
            how: dict[str, Any] = {"contenders": STEP_CONTENDERS, "classes": classes, "seconds": bench.seconds}
            images = images_of(case.data.size)
            bench.rows.append(row | bench.call(time_contenders, recipe=case, images=images, repeats=bench.repeats, **how)[1])
    bench.sheet(
        "Training steps, a random half of each kernel pruned",
        COLUMNS,
        bars(bench.rows, "title", "keras_ratio", "images a second, by those of Keras's fit"),
        "mask: time that a mask adds; control: the same between two networks without one, which is noise",
        f"{bench.medians}, {threads} intra-op threads",
    )


@measurement(repeats=7, few=2, network=MOBILENET)
def masks(bench: Bench) -> None:
    """What a mask costs: inside the compiled step, and as a Python callback after each batch."""
    recipe = bench.image_recipe()
    train, size = recipe.train, recipe.data.size
    images = max(bench.pick(None, 6_400, 640), 2 * train.batch)
    how: dict[str, Any] = {"contenders": tuple(MASKED), "seconds": bench.seconds, "repeats": bench.repeats}
    walls, _ = bench.call(time_contenders, recipe=recipe, images=images, **how)
    for contender, name in MASKED.items():
        row = {"name": name, **timing.spread("ms_per_step", [1000 * wall for wall in walls[contender]])}
        without = bench.rows[-1]["ms_per_step"] if contender in ("masked", "callback") else None
        bench.rows.append({**row, "mask_share": without and 1 - without / row["ms_per_step"]})
    bench.sheet(
        f"A mask of half of each kernel: {recipe.model.name}, {size}x{size}, batch {train.batch}, {train.precision}",
        MASK_COLUMNS,
        bars(bench.rows, "name", "ms_per_step", "ms a step", spread=True),
        "mask's share: of the step's time, against the row above it",
        bench.medians,
    )


def cases(
    models: Sequence[str],
    alpha: float | None,
    size: int | None,
    batches: Sequence[int],
    precisions: Sequence[str],
    remats: Sequence[bool],
    threads: int,
) -> Iterator[Recipe]:
    """Recipes of `models`, or else of the standard rows, in each of `batches` and `precisions`, with and without `remats`: SGD
    with Nesterov momentum and L2 decay, no augmentation.

    What is not given is as in the model's first standard row. Raises InputError for what cannot be measured.
    """
    from lottery.experiment.reading import resolve

    named = [(name, STANDARD.get(name, [OTHER])[0]) for name in models]
    for name, row in named or [(name, row) for name, rows in STANDARD.items() for row in rows]:
        model, data = {"name": name, "alpha": row[0] if alpha is None else alpha}, {"size": size or row[1], "crop": 0}
        for batch, precision, remat in itertools.product(batches or [row[2]], precisions or ["float32"], remats):
            if batch > images_of(data["size"]):
                held = f"the {images_of(data['size'])} images of {data['size']}x{data['size']}"
                raise InputError(f"--batch {batch} is more than {held}: lower it")
            train = {**STILL, "schedule": "constant", "threads": threads}
            train |= {"batch": batch, "precision": precision, "remat": remat}
            yield resolve({"model": model, "data": data, "train": train}, origin="bench step")


def told(case: Recipe) -> dict[str, Any]:
    """What a row says of its case, under a `title`; `alpha` is None where the network knows no width multiplier."""
    from lottery.experiment.decisive import decisive

    name, size, train = case.model.name, case.data.size, case.train
    alpha = case.model.alpha if "model.alpha" in decisive(case) else None
    multiplied = "" if alpha is None else f" alpha {alpha:g}"
    title = f"{name}{multiplied}, {size}x{size}, batch {train.batch}, {train.precision}{' remat' * train.remat}"
    keys = ("batch", "precision", "remat", "threads")
    return {"title": title, "model": name, "alpha": alpha, "size": size, **{key: getattr(train, key) for key in keys}}


def images_of(size: int) -> int:
    """How many images of `size` x `size` are made up."""
    return IMAGE_BYTES // (size * size * 3)


def time_contenders(
    recipe: Recipe, images: int, contenders: Sequence[str], seconds: float, repeats: int, classes: int = 10
) -> tuple[Walls, dict[str, float]]:
    """Train the recipe's network on so many images of noise, for as many steps a run as last so many seconds, in turn.

    The contenders: `masked`, under a random mask of half of each kernel; `unmasked`; `control`, the same again; Keras's `fit`;
    `callback`, `fit` with one that masks; `matmul`, products of large matrices. Returns their times, and the figures of `step`
    where all that those compare are there.
    """
    import keras

    from lottery.bench import loops
    from lottery.bench.limits import matmul
    from lottery.engine import devices

    train, size = recipe.train, recipe.data.size
    names = devices.set_up_tensorflow(train)
    keras.utils.set_random_seed(0)
    trainer = loops.on_noise(recipe, names, images, classes)
    with timing.peak_memory(names[0]) as peak:
        masked = trainer(masked=True)
        take = loops.stepping(masked)
        steps = timing.lasting(take, seconds, masked.steps_per_epoch)
        peak_bytes = peak()
    stock = partial(loops.stock_network, recipe.model, size, classes, train.precision)
    fit = partial(loops.stock_fit, train=train, images=steps * train.batch, xla=masked.xla)
    network, (product, product_flops) = stock(), matmul(names[0])
    work: dict[str, timing.Work] = {"masked": partial(take, steps), "matmul": product, "fit": fit(network)}
    for contender in contenders:
        if contender in ("unmasked", "control"):
            work[contender] = partial(loops.stepping(trainer()), steps)
    if "callback" in contenders:
        hindered = stock()
        work["callback"] = fit(hindered, callbacks=[loops.mask_after_batch(hindered)])
    timings = timing.in_turn({name: work[name] for name in contenders}, repeats, Reporter())
    walls = {name: [wall / (1 if name == "matmul" else steps) for wall, _ in pairs] for name, pairs in timings.items()}
    if "matmul" not in walls:
        return walls, {}
    flops = 6 * multiply_adds(network) * train.batch  # forwards, and backwards once for the inputs and once for the weights
    return walls, {**figures(walls, train.batch, flops, product_flops), "peak_memory_bytes": peak_bytes}


def figures(walls: Walls, batch: int, step_flops: int, product_flops: int) -> dict[str, float]:
    """Of the contender under a mask, unless they say so.

    `mask_overhead` is the share of time that a mask adds, in the median of pairs of runs, of which each was run one straight
    after the other; `control_overhead` is the same between two trainers without a mask, and so what chance makes of it.
    `keras_ratio` is our rate over that of `fit`; `peak_share` is the arithmetic of the convolutions and dense layers in a
    second over that of a large float32 matrix product (above 1 where a kernel finds a way that needs less, such as Winograd's).
    """
    seconds = {name: statistics.median(values) for name, values in walls.items()}

    def overhead(name: str) -> float:
        return statistics.median(wall / plain for wall, plain in zip(walls[name], walls["unmasked"], strict=True)) - 1

    return {
        **timing.spread("images_per_s", [batch / wall for wall in walls["masked"]]),
        "ms_per_step": 1000 * seconds["masked"],
        "keras_fit_images_per_s": batch / seconds["fit"],
        "keras_ratio": seconds["fit"] / seconds["masked"],
        "mask_overhead": overhead("masked"),
        "control_overhead": overhead("control"),
        "peak_share": step_flops / seconds["masked"] / (product_flops / seconds["matmul"]),
    }


def multiply_adds(network: "keras.Model") -> int:
    """Multiplications, each with its addition, of one image's way through the convolutions and dense layers of `network`.

    Every weight of a kernel is used once at each position of its layer's output.
    """
    return sum(
        weight.shape.num_elements() * math.prod(extent or 1 for extent in layer.output.shape[1:-1])
        for layer in network.layers
        for weight in layer.trainable_weights
        if weight.path.endswith("kernel")
    )
