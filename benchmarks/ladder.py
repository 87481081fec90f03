"""A plain training, made faster by one change after another, in the order that pays: `python benchmarks/ladder.py`."""

import itertools
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import turns
import typer
from harness import MOBILENET, STILL, Bench, Recipe, measurement, rate, with_training
from precision import MEMORY

from lottery import cli
from lottery.base.errors import InputError
from lottery.bench import timing
from lottery.bench.harness import machine
from lottery.bench.sheet import Column, bars

COLUMNS = (
    Column("name", ""),
    Column("batch", "batch"),
    Column("memory_gb", "memory, GB", ".2f"),
    Column("ms_per_step", "ms/step", ",.2f"),
    *rate("images_per_s", "images/s"),
    Column("share", "of the baseline", ".0%"),
    Column("kept", "kept"),
)
BASE = "baseline: float32, small batch, a call a step"


@measurement(repeats=7, network=MOBILENET)
def ladder(
    bench: Bench,
    batch: Annotated[int, typer.Option(min=1, help="The batch before it is made larger.")] = 32,
) -> None:
    """A plain training, made faster by one thing after another, in the order that pays."""
    recipe = bench.image_recipe()
    larger = recipe.train.batch
    if batch > larger:
        raise InputError(f"--batch {batch} is to be the smaller one, but the recipe has train.batch {larger}")
    plain = recipe.model_copy(update={"data": recipe.data.model_copy(update={"crop": 0, "flip": False})})
    images = max(bench.pick(None, 12_800, 1_280), 2 * larger)
    # What each rung changes of the one that it stands on: the `feed` of `time_rung`, or values of the recipe's `train` table.
    rungs: dict[str, dict[str, Any]] = {
        BASE: {"precision": "float32", "batch": batch, "feed": "scaled", "xla": "off"},
        "+ mixed precision": {"precision": "mixed_float16" if machine()["gpus"] else "mixed_bfloat16"},
        "+ larger batch": {"batch": larger},
        "+ uint8 to the device, scaled there": {"feed": "bytes"},
        "+ parsed by batches, in parallel, ahead": {"feed": "together"},
        "+ images resident, our loop": {"feed": "single"},
        "+ many steps a call": {"feed": "many"},
        "+ XLA": {"feed": "many", "xla": "on"},
    }
    below = rungs[BASE]
    for name, change in rungs.items():
        rung = below | change
        with bench.row(name):
            train = {key: value for key, value in rung.items() if key != "feed"}
            how = {"feed": rung["feed"], "images": images, "seconds": bench.seconds, "repeats": bench.repeats}
            walls, memory = bench.call(time_rung, recipe=with_training(plain, **STILL, **train), **how)
            rates = timing.spread("images_per_s", [rung["batch"] / wall for wall in walls])
            kept = all(rates["images_per_s"] > row["images_per_s"] for row in bench.rows if row["kept"])
            step = {"memory_gb": memory, "ms_per_step": 1000 * statistics.median(walls)}
            bench.rows.append({"name": name, **rung, **step, **rates, "kept": kept})
            below = rung if kept else below
    baseline = next((row["images_per_s"] for row in bench.rows if row["name"] == BASE), None)
    for row in bench.rows:
        row["share"] = baseline and row["images_per_s"] / baseline
    bench.sheet(
        f"From a plain training to ours: {recipe.model.name}, {recipe.data.size}x{recipe.data.size}",
        COLUMNS,
        bars(bench.rows, "name", "images_per_s", "images a second", spread=True),
        "each row has all that the rows above it have that were kept, which are those that made it faster; no augmentation; "
        + MEMORY,
        f"{bench.apart}; {recipe.train.threads} intra-op threads",
    )


def time_rung(recipe: Recipe, feed: str, images: int, seconds: float, repeats: int) -> tuple[list[float], float]:
    """Train the recipe's network on so many images of noise. Returns seconds of a step, in each run of so many `seconds`, and
    the most GB of memory that it took.

    `feed` is what the host does for each batch. `scaled`: parse image by image, to float32; `bytes`: the same, to uint8;
    `together`: parse a batch at a time, in parallel, ahead; `single`: nothing, the images are resident, but a step is a call;
    `many`: nothing, as we train.
    """
    import loops

    from lottery.engine import devices

    names = devices.set_up_tensorflow(recipe.train)
    with tempfile.TemporaryDirectory() as place, timing.peak_memory(names[0]) as peak:
        if feed in ("single", "many"):
            trainer = loops.on_noise(recipe, names, images)()
            if feed == "single":
                trainer._adapt = lambda count, seconds: None  # type: ignore[method-assign]
            take = loops.stepping(trainer)
        else:
            take = plain_stepping(recipe, feed, images, Path(place, "examples.tfrecord"))
        return turns.step_walls(take, seconds, repeats), peak() / 1e9


def plain_stepping(recipe: Recipe, feed: str, images: int, path: Path) -> Any:
    """A function that takes the next so many steps of a loop in Python, to which the host brings each batch."""
    import tensorflow as tf
    import tfdata

    data, size = recipe.data, recipe.train.batch
    shape = [size, data.size, data.size, data.channels]

    def parse(serialised: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(serialised, tfdata.IMAGE)
        return {"image": tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), shape), "label": parsed["label"]}

    tfdata.write(path, recipe.records(), images)
    if feed == "together":
        batches = tf.data.TFRecordDataset(str(path)).batch(size, drop_remainder=True)
        batches = batches.map(parse, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    else:
        batches = tfdata.one_by_one(path, partial(tfdata.image, data, scaled=feed == "scaled"), size)
    step, source = tfdata.plain_step(recipe), iter(batches.repeat())

    def take(count: int) -> None:
        for batch in itertools.islice(source, count):
            loss = step(batch)
        loss.numpy()

    return take


if __name__ == "__main__":
    cli.main(ladder)
