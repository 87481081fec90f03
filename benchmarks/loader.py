"""How long an epoch waits for its examples, loaded by workers of tf.data and by our feeds: `python benchmarks/loader.py`."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from harness import MOBILENET, STILL, Bench, Recipe, duration, measurement, size_of, with_training

from lottery import cli
from lottery.base.errors import InputError
from lottery.base.progress import count_of
from lottery.bench.sheet import Column, bars
from lottery.bench.timing import spread

COLUMNS = (
    Column("name", ""),
    Column("load_s", "load, s", ".2f"),
    Column("step_s", "steps, s", ".2f"),
    *duration("epoch_s", "epoch, s", ".2f"),
    Column("load_share", "waiting", ".1%"),
)

Epochs = Sequence[tuple[float, float]]  # of each epoch, seconds that its steps waited for examples, and of the whole


@measurement(repeats=5, network=MOBILENET)
def loader(
    bench: Bench,
    images: Annotated[int | None, typer.Option(min=1, help="Images, or texts, of an epoch.", show_default="12800")] = None,
) -> None:
    """An epoch with images or texts loaded by 0, 1, 2, 4, 8 workers of tf.data, streamed, and from memory: where it waits."""
    recipe, count = bench.recipe(), bench.pick(images, 12_800, 1_280)
    if count < recipe.train.batch:
        raise InputError(
            f"train.batch {recipe.train.batch:,} is more than the {count:,} {bench.noun} of an epoch: raise --images"
        )
    recipe = with_training(recipe, **STILL)
    contenders = {
        **{
            f"tf.data, {count_of(workers, 'worker')}": partial(time_plain_epochs, workers=workers)
            for workers in ((2,) if bench.quick else (0, 1, 2, 4, 8))
        },
        **{feed: partial(time_our_epochs, feed=feed) for feed in ("stream", "memory")},
    }
    for name, time_epochs in contenders.items():
        with bench.row(name):
            epochs = bench.call(time_epochs, recipe=recipe, images=count, repeats=1 + bench.repeats)[1:]  # the first warms up
            load = statistics.median(waited for waited, _ in epochs)
            step = statistics.median(whole - waited for waited, whole in epochs)
            whole = spread("epoch_s", [whole for _, whole in epochs])
            bench.rows.append({"name": name, "load_s": load, "step_s": step, **whole, "load_share": load / whole["epoch_s"]})
    data = recipe.data
    varied = ", ".join(["cropped"] * bool(data.crop) + ["mirrored"] * data.flip) or "as they are"
    of, work = (f"{size_of(recipe)}, {varied}", "vary") if bench.noun == "images" else (size_of(recipe), "unpack")
    bench.sheet(
        f"An epoch of {count} {bench.noun} of {of}: {recipe.model.name}, batch {recipe.train.batch}",
        COLUMNS,
        bars(bench.rows, "name", "epoch_s", "seconds an epoch", spread=True),
        "0 workers: images are read when they are asked for",
        f"memory and stream {work} images inside the compiled step",
        f"medians of {count_of(bench.repeats, 'epoch')} after one to warm up; {recipe.train.threads} intra-op threads",
    )


def time_our_epochs(recipe: Recipe, feed: str, images: int, repeats: int) -> Epochs:
    """Train for so many epochs on noise that is streamed, or in memory."""
    import loops
    import noise

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


def time_plain_epochs(recipe: Recipe, workers: int, images: int, repeats: int) -> Epochs:
    """The same with examples loaded by so many workers of tf.data."""
    import tfdata

    from lottery.engine import devices

    devices.set_up_tensorflow(recipe.train)
    epochs = []
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "examples.tfrecord")
        tfdata.write(path, recipe.records(), images)
        step = tfdata.plain_step(recipe)
        batches = tfdata.one_by_one(path, tfdata.parser(recipe), recipe.train.batch, workers)
        for _ in range(repeats):
            began = asked = time.perf_counter()
            waited = 0.0
            for batch in batches:
                waited += time.perf_counter() - asked
                step(batch).numpy()
                asked = time.perf_counter()
            waited += time.perf_counter() - asked
            epochs.append((waited, time.perf_counter() - began))
    return epochs


if __name__ == "__main__":
    cli.main(loader)
