"""`imp bench loader`: how long an epoch waits for its examples, streamed and from memory."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lottery.base.errors import InputError
from lottery.base.progress import count_of
from lottery.bench.harness import MOBILENET, STILL, Bench, Recipe, measurement, size_of, with_training
from lottery.bench.sheet import Column, bars, duration
from lottery.bench.timing import spread

COLUMNS = (
    Column("name", ""),
    Column("load_s", "load, s", ".2f"),
    Column("step_s", "steps, s", ".2f"),
    *duration("epoch_s", "epoch, s", ".2f"),
    Column("load_share", "waiting", ".1%"),
)
FEEDS = ("stream", "memory")

ImagesOption = Annotated[int | None, typer.Option(min=1, help="Images, or texts, of an epoch.", show_default="12800")]
Epochs = Sequence[tuple[float, float]]  # of each epoch, seconds that its steps waited for examples, and of the whole


@measurement(repeats=5, network=MOBILENET)
def loader(bench: Bench, images: ImagesOption = None) -> None:
    """An epoch with images or texts streamed, and from memory: where it waits."""
    recipe, count = epoch_of(bench, images)
    for feed in FEEDS:
        with bench.row(feed):
            add_row(bench, feed, bench.call(time_epochs, recipe=recipe, feed=feed, images=count, repeats=1 + bench.repeats))
    sheet(bench, recipe, count)


def epoch_of(bench: Bench, images: int | None) -> tuple[Recipe, int]:
    """The recipe, and how many examples an epoch has. Raises InputError where they do not fill a batch."""
    recipe, count = bench.recipe(), bench.pick(images, 12_800, 1_280)
    if count < recipe.train.batch:
        raise InputError(
            f"train.batch {recipe.train.batch:,} is more than the {count:,} {bench.noun} of an epoch: raise --images"
        )
    return with_training(recipe, **STILL), count


def add_row(bench: Bench, name: str, epochs: Epochs) -> None:
    """The medians of all epochs but the first, which warms up."""
    load = statistics.median(waited for waited, _ in epochs[1:])
    step = statistics.median(whole - waited for waited, whole in epochs[1:])
    whole = spread("epoch_s", [whole for _, whole in epochs[1:]])
    bench.rows.append({"name": name, "load_s": load, "step_s": step, **whole, "load_share": load / whole["epoch_s"]})


def sheet(bench: Bench, recipe: Recipe, images: int, *notes: str) -> None:
    data = recipe.data
    varied = ", ".join(["cropped"] * bool(data.crop) + ["mirrored"] * data.flip) or "as they are"
    of, work = (f"{size_of(recipe)}, {varied}", "vary") if bench.noun == "images" else (size_of(recipe), "unpack")
    bench.sheet(
        f"An epoch of {images} {bench.noun} of {of}: {recipe.model.name}, batch {recipe.train.batch}",
        COLUMNS,
        bars(bench.rows, "name", "epoch_s", "seconds an epoch", spread=True),
        *notes,
        f"memory and stream {work} images inside the compiled step",
        f"medians of {count_of(bench.repeats, 'epoch')} after one to warm up; {recipe.train.threads} intra-op threads",
    )


def time_epochs(recipe: Recipe, feed: str, images: int, repeats: int) -> Epochs:
    """Train for so many epochs on noise that is fed by one of `FEEDS`."""
    from lottery.bench import loops, noise
    from lottery.engine import devices
    from lottery.engine.loop import Trainer
    from lottery.engine.stream import StreamFeed

    names = devices.set_up_tensorflow(recipe.train)
    epochs = []
    with tempfile.TemporaryDirectory() as place:
        if feed == "stream":
            manifest = noise.make_noise(Path(place), images, recipe.records())
            trainer = Trainer(recipe, names, lambda strategy: StreamFeed(Path(place), manifest, recipe.data, names))
        else:
            trainer = loops.on_noise(recipe, names, images)()
        for epoch in range(repeats):
            began, before = time.perf_counter(), trainer.waited
            trainer.advance(epoch * trainer.steps_per_epoch, (epoch + 1) * trainer.steps_per_epoch, order_seed=0)
            epochs.append((trainer.waited - before, time.perf_counter() - began))
    return epochs
