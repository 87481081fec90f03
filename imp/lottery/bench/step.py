"""`imp bench step` and `imp bench masks`: our training loop and Keras's `fit`, without and with a mask."""

import itertools
import math
import statistics
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data_prep.errors import InputError
from lottery.bench import timing
from lottery.bench.harness import MOBILENET, STILL, Bench, Recipe, measurement
from lottery.bench.sheet import Bars, Column, Rows, Sheet, duration, rate
from lottery.progress import Reporter

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
) -> Sheet:
    """Images a second that the training loop trains on, what a mask costs, and Keras's own `fit` beside it."""
    models = model or (["lenet_300_100"] if bench.quick else [])
    train = {**STILL, "schedule": "constant", "threads": threads or timing.cores()}
    rows = []
    for case in cases(models, alpha, size, batch or [], precision or [], remat, train):
        title, images = title_of(case), images_of(case.data.size)
        with bench.row(title):
            how: dict[str, Any] = {"contenders": STEP_CONTENDERS, "classes": classes, "seconds": bench.seconds}
            figures = bench.call(time_contenders, recipe=case, images=images, repeats=bench.repeats, **how)[1]
            told = {key: getattr(case.train, key) for key in ("batch", "precision", "remat", "threads")}
            named = {"model": case.model.name, "alpha": alpha_of(case), "size": case.data.size, "classes": classes}
            rows.append({"title": title, **named, **told, "repeats": bench.repeats, **figures})
    return bench.sheet(
        "Training steps, a random half of each kernel pruned",
        COLUMNS,
        rows,
        Bars("title", "keras_ratio", "images a second, by those of Keras's fit"),
        "mask: time that a mask adds; control: the same between two networks without one, which is noise",
        f"{bench.medians}, {train['threads']} intra-op threads",
    )


@measurement(repeats=7, few=2, network=MOBILENET)
def masks(bench: Bench) -> Sheet:
    """What a mask costs: inside the compiled step, and as a Python callback after each batch."""
    recipe = bench.recipe()
    train, size = recipe.train, recipe.data.size
    images = max(bench.pick(None, 6_400, 640), 2 * train.batch)
    names = {
        "unmasked": "our loop, no mask",
        "masked": "our loop, mask in the compiled step",
        "fit": "Keras fit, no mask",
        "callback": "Keras fit, mask by a callback after the batch",
    }
    how: dict[str, Any] = {"contenders": tuple(names), "seconds": bench.seconds, "repeats": bench.repeats}
    walls, _ = bench.call(time_contenders, recipe=recipe, images=images, **how)
    rows: Rows = []
    for contender, name in names.items():
        row = {"name": name, **timing.spread("ms_per_step", [1000 * wall for wall in walls[contender]])}
        without = rows[-1]["ms_per_step"] if contender in ("masked", "callback") else None
        rows.append({**row, "mask_share": without and 1 - without / row["ms_per_step"]})
    return bench.sheet(
        f"A mask of half of each kernel: {recipe.model.name}, {size}x{size}, batch {train.batch}, {train.precision}",
        MASK_COLUMNS,
        rows,
        Bars("name", "ms_per_step", "ms a step", "low", "high"),
        "mask's share: of the step's time, against the row above it",
        bench.medians,
    )


def cases(
    models: Sequence[str],
    alpha: float | None,
    size: int | None,
    batches: Sequence[int],
    precisions: Sequence[str],
    remat: bool,
    train: dict[str, Any],
) -> list[Recipe]:
    """Recipes of `models`, or else of the standard rows, in each of `batches` and `precisions`, and with `remat` so as well:
    SGD with Nesterov momentum and L2 decay, no augmentation, the other values of `train`.

    What is not given is as in the model's first standard row. Raises InputError for what cannot be measured.
    """
    from lottery.experiment.reading import resolve

    named = [(name, STANDARD.get(name, [OTHER])[0]) for name in models]
    table = []
    for name, row in named or [(name, row) for name, rows in STANDARD.items() for row in rows]:
        model, data = {"name": name, "alpha": row[0] if alpha is None else alpha}, {"size": size or row[1], "crop": 0}
        for batch, precision, again in itertools.product(
            batches or [row[2]], precisions or ["float32"], [False, True] if remat else [False]
        ):
            if batch > images_of(data["size"]):
                held = f"the {images_of(data['size'])} images of {data['size']}x{data['size']}"
                raise InputError(f"--batch {batch} is more than {held}: lower it")
            own = {**train, "batch": batch, "precision": precision, "remat": again}
            table.append(resolve({"model": model, "data": data, "train": own}, origin="bench step"))
    return table


def images_of(size: int) -> int:
    """How many images of `size` x `size` are made up."""
    return IMAGE_BYTES // (size * size * 3)


def alpha_of(recipe: Recipe) -> float | None:
    """The network's width multiplier; None where it knows none."""
    from lottery.experiment.recipe import decisive

    return recipe.model.alpha if "model.alpha" in decisive(recipe) else None


def title_of(recipe: Recipe) -> str:
    size, train = recipe.data.size, recipe.train
    alpha = "" if alpha_of(recipe) is None else f" alpha {recipe.model.alpha:g}"
    return f"{recipe.model.name}{alpha}, {size}x{size}, batch {train.batch}, {train.precision}{' remat' * train.remat}"


def time_contenders(
    recipe: Recipe, images: int, contenders: Sequence[str], seconds: float, repeats: int, classes: int = 10
) -> tuple[Walls, dict[str, float]]:
    """Train the recipe's network on so many images of noise, for as many steps a run as last so many seconds, in turn.

    The contenders: `masked`, under a random mask of half of each kernel; `unmasked`; `control`, the same again; Keras's `fit`;
    `callback`, `fit` with one that masks; `matmul`, products of large matrices. Returns their times, and the figures of `step`
    where all that those compare are there.
    """
    import keras

    from lottery.bench import others, ours
    from lottery.bench.limits import matmul
    from lottery.engine import devices

    train, size = recipe.train, recipe.data.size
    names = devices.set_up_tensorflow(train)
    keras.utils.set_random_seed(0)
    on_noise = ours.OnNoise(recipe, names, images, classes)
    with ours.peak_memory(names[0]) as peak:
        masked = on_noise.masked()
        take = ours.stepping(masked)
        steps = timing.lasting(take, seconds, masked.steps_per_epoch)
        peak_bytes = peak()
    stock = partial(others.stock_network, recipe.model, size, classes, train.precision)
    fit = partial(others.stock_fit, train=train, images=steps * train.batch, size=size, classes=classes, xla=masked.xla)
    network, (product, product_flops) = stock(), matmul(names[0])
    work: dict[str, timing.Work] = {"masked": partial(take, steps), "matmul": product, "fit": fit(network)}
    for contender in ("unmasked", "control"):
        if contender in contenders:
            work[contender] = partial(ours.stepping(on_noise.trainer()), steps)
    if "callback" in contenders:
        hindered = stock()
        work["callback"] = fit(hindered, callbacks=[others.mask_after_batch(hindered)])
    timings = timing.in_turn({name: work[name] for name in contenders}, repeats, Reporter(), there_and_back=True)
    walls = {name: [wall / (1 if name == "matmul" else steps) for wall, _ in pairs] for name, pairs in timings.items()}
    if "matmul" not in walls:
        return walls, {}
    flops = training_flops(network, train.batch), product_flops
    return walls, {**_figures(walls, train.batch, *flops), "peak_memory_bytes": peak_bytes}


def _figures(walls: Walls, batch: int, step_flops: int, product_flops: int) -> dict[str, float]:
    """Of the contender under a mask, unless they say so.

    `mask_overhead` is the share of time that a mask adds, in the median of pairs of runs; `control_overhead` is the same
    between two trainers without a mask, and so what chance makes of it. `keras_ratio` is our rate over that of `fit`;
    `peak_share` is the arithmetic of the convolutions and dense layers in a second over that of a large float32 matrix product
    (above 1 where a kernel finds a way that needs less, such as Winograd's).
    """
    seconds = {name: statistics.median(values) for name, values in walls.items()}
    return {
        **timing.spread("images_per_s", [batch / wall for wall in walls["masked"]]),
        "ms_per_step": 1000 * seconds["masked"],
        "keras_fit_images_per_s": batch / seconds["fit"],
        "keras_ratio": seconds["fit"] / seconds["masked"],
        "mask_overhead": overhead(walls["masked"], walls["unmasked"]),
        "control_overhead": overhead(walls["control"], walls["unmasked"]),
        "peak_share": step_flops / seconds["masked"] / (product_flops / seconds["matmul"]),
    }


def overhead(walls: Sequence[float], without: Sequence[float]) -> float:
    """The median over the pairs, of which each was run one straight after the other."""
    return statistics.median(wall / plain for wall, plain in zip(walls, without, strict=True)) - 1


def training_flops(network: "keras.Model", batch: int) -> int:
    """Floating point operations of a training step: forwards, and backwards once for the inputs and once for the weights."""
    return 3 * 2 * multiply_adds(network) * batch


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
