"""Our training loop, with and without a mask, beside Keras's `fit`: `python benchmarks/step.py`."""

import statistics
from functools import partial
from typing import Any

import turns
from harness import STILL, Bench, Recipe, measurement, rate, size_of, with_training

from lottery import cli
from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.bench import timing
from lottery.bench.sheet import Column, bars

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
STANDARD = (  # as this project trains each network
    ("model.name=mobilenet_v2", "model.alpha=1", "data.size=64", "train.batch=96"),
    ("model.name=mobilenet_v2", "model.alpha=0.35", "data.size=32", "train.batch=128"),
    ("model.name=resnet20", "data.size=32", "train.batch=128"),
    ("model.name=lenet_300_100", "data.size=28", "train.batch=60"),
)
PLAIN = ("data.crop=0", "train.schedule=constant")


@measurement(repeats=11, network=("four standard networks", PLAIN))
def step(bench: Bench) -> None:
    """Images a second that the training loop trains on, what a mask costs, and Keras's own `fit`."""
    networks = [()] if bench.recipe_file or bench.overrides else STANDARD[-1:] if bench.quick else STANDARD
    threads = [] if bench.recipe_file else [f"train.threads={timing.cores()}"]
    recipes = [with_training(bench.image_recipe(*network, *threads), **STILL) for network in networks]
    for recipe in recipes:
        data, train, title = recipe.data, recipe.train, title_of(recipe)
        images = IMAGE_BYTES // (data.size**2 * data.channels)
        if train.batch > images:
            raise InputError(f"train.batch {train.batch} is more than {images}, which is how many images fit: lower it")
        row = {"title": title, "model": recipe.model.name, "size": data.size, "repeats": bench.repeats}
        row |= {key: getattr(train, key) for key in ("batch", "precision", "threads")}
        with bench.row(title):
            how: dict[str, Any] = {"seconds": bench.seconds, "repeats": bench.repeats}
            bench.rows.append(row | bench.call(time_contenders, recipe=recipe, images=images, **how))
    bench.sheet(
        "Training steps, a random half of each kernel pruned",
        COLUMNS,
        bars(bench.rows, "title", "keras_ratio", "images a second, by those of Keras's fit"),
        "mask: time that a mask adds; control: the same between two networks without one, which is noise",
        f"{bench.medians}, {recipes[0].train.threads} intra-op threads",
    )


def title_of(recipe: Recipe) -> str:
    """Such as `mobilenet_v2 alpha 0.35, 32x32, batch 128, float32`."""
    from lottery.experiment.decisive import decisive

    model, train = recipe.model, recipe.train
    width = f" alpha {model.alpha:g}" if "model.alpha" in decisive(recipe) else ""
    return f"{model.name}{width}, {size_of(recipe)}, batch {train.batch}, {train.precision}"


def time_contenders(recipe: Recipe, images: int, seconds: float, repeats: int) -> dict[str, float | None]:
    """Train the recipe's network on so many images of noise, for as many steps a run as last so many seconds, in turn: under a
    random mask of half of each kernel, without one, the same again, and by Keras's `fit`; and multiply large matrices. Returns
    the `figures`, and the bytes that training takes under the mask."""
    import keras
    import loops
    from limits import matmul

    from lottery.engine import devices
    from lottery.networks.topology import topology
    from lottery.pruning.costs import macs

    train, names = recipe.train, devices.set_up_tensorflow(recipe.train)
    keras.utils.set_random_seed(0)
    trainer = loops.on_noise(recipe, names, images)
    with timing.peak_memory(names[0]) as peak:
        masked = trainer(masked=True)
        take = loops.stepping(masked)
        steps = turns.lasting(take, seconds, masked.steps_per_epoch)
        peak_bytes = peak()
    product, product_flops = matmul(names[0])
    contenders: dict[str, turns.Work] = {
        "masked": partial(take, steps),
        "unmasked": partial(loops.stepping(trainer()), steps),
        "control": partial(loops.stepping(trainer()), steps),
        "matmul": product,
        "fit": loops.stock_fit(recipe, images=steps * train.batch, xla=masked.xla),
    }
    walls = turns.in_turn(contenders, repeats, Reporter())
    walls = {name: [wall / (1 if name == "matmul" else steps) for wall in run_walls] for name, run_walls in walls.items()}
    multiplied = macs({}, topology(masked.model))
    flops = multiplied and 6 * multiplied * train.batch  # forwards, and backwards for the inputs and for the weights
    return {**figures(walls, train.batch, flops, product_flops), "peak_memory_bytes": peak_bytes}


def figures(walls: turns.Walls, batch: int, step_flops: int | None, product_flops: int) -> dict[str, float | None]:
    """What follows from the seconds of a step (`matmul`: of a product) by contender: of that under a mask, unless it says so.

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
        "peak_share": step_flops and step_flops / seconds["masked"] / (product_flops / seconds["matmul"]),
    }


if __name__ == "__main__":
    cli.main(step)
