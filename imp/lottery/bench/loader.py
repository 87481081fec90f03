"""`imp bench loader`: how long an epoch waits for its examples, by who loads them."""

import statistics
import tempfile
import time
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


@measurement(repeats=5, network=MOBILENET)
def loader(
    bench: Bench,
    images: Annotated[int | None, typer.Option(min=1, help="Images, or texts, of an epoch.", show_default="12800")] = None,
) -> None:
    """An epoch with images or texts loaded by 0, 1, 2, 4, 8 workers, streamed, and from memory: where it waits."""
    recipe, count = bench.recipe(), bench.pick(images, 12_800, 1_280)
    data, batch = recipe.data, recipe.train.batch
    if count < batch:
        raise InputError(f"train.batch {batch:,} is more than the {count:,} {bench.noun} of an epoch: raise --images")
    for how in [*((0, 2) if bench.quick else (0, 1, 2, 4, 8)), "stream", "memory"]:
        name = how if isinstance(how, str) else f"tf.data, {count_of(how, 'worker')}"
        with bench.row(name):
            still = with_training(recipe, **STILL)
            epochs = bench.call(time_epochs, recipe=still, how=how, images=count, repeats=1 + bench.repeats)[1:]
            load = statistics.median(waited for waited, _ in epochs)
            step = statistics.median(whole - waited for waited, whole in epochs)
            whole = spread("epoch_s", [whole for _, whole in epochs])
            bench.rows.append({"name": name, "load_s": load, "step_s": step, **whole, "load_share": load / whole["epoch_s"]})
    varied = ", ".join(["cropped"] * bool(data.crop) + ["mirrored"] * data.flip) or "as they are"
    of, work = (f"{size_of(recipe)}, {varied}", "vary") if bench.noun == "images" else (size_of(recipe), "unpack")
    bench.sheet(
        f"An epoch of {count} {bench.noun} of {of}: {recipe.model.name}, batch {batch}",
        COLUMNS,
        bars(bench.rows, "name", "epoch_s", "seconds an epoch", spread=True),
        f"0 workers: images are read when they are asked for; memory and stream {work} them inside the compiled step",
        f"medians of {bench.repeats} epochs after one to warm up; {recipe.train.threads} intra-op threads",
    )


def time_epochs(recipe: Recipe, how: int | str, images: int, repeats: int) -> list[tuple[float, float]]:
    """Seconds that the steps of each epoch waited for examples, and seconds of the whole; `how` is a number of workers of
    tf.data, `stream` or `memory`."""
    from lottery.bench import loops, noise, tfdata
    from lottery.engine import devices
    from lottery.engine.loop import Trainer
    from lottery.engine.stream import StreamFeed

    names = devices.set_up_tensorflow(recipe.train)
    epochs = []
    with tempfile.TemporaryDirectory() as place:
        if isinstance(how, int):
            path = Path(place, "examples.tfrecord")
            tfdata.write(path, recipe.records(), images)
            step = loops.plain_step(recipe)
            batches = tfdata.one_by_one(path, tfdata.parser(recipe), recipe.train.batch, how)
        elif how == "stream":
            manifest = noise.make_noise(Path(place), images, recipe.records())
            trainer = Trainer(recipe, names, lambda strategy: StreamFeed(Path(place), manifest, recipe.data, names))
        else:
            trainer = loops.on_noise(recipe, names, images)()
        for epoch in range(repeats):
            began = asked = time.perf_counter()
            if isinstance(how, int):
                waited = 0.0
                for batch in batches:
                    waited += time.perf_counter() - asked
                    step(batch).numpy()
                    asked = time.perf_counter()
                waited += time.perf_counter() - asked
            else:
                before = trainer.waited
                trainer.advance(epoch * trainer.steps_per_epoch, (epoch + 1) * trainer.steps_per_epoch, order_seed=0)
                waited = trainer.waited - before
            epochs.append((waited, time.perf_counter() - began))
    return epochs
