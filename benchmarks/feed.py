"""Images a second that reach the compiled step, from memory, streamed, and by plain tf.data: `python benchmarks/feed.py`."""

import itertools
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import turns
import typer
from harness import Bench, measurement, size_of
from prepare import COLUMNS, compared

from lottery import cli
from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.bench import timing
from lottery.bench.sheet import bars

if TYPE_CHECKING:
    from lottery.engine.feed import Feed
    from lottery.experiment.recipe import Data

STEPS_PER_CALL = 1000  # a call of the training loop lasts half a second
WINDOWS = 8  # so many stretches, because a set that is streamed is too large for one


@measurement(repeats=7, network=("images of 64x64 as they are", ("data.size=64", "data.crop=0", "train.batch=256")))
def feed(
    bench: Bench,
    images: Annotated[int | None, typer.Option(min=1, help="How many to feed.", show_default="20000")] = None,
) -> None:
    """Images a second that reach the compiled step: from memory, streamed, and by plain tf.data."""
    from data_prep import records

    recipe, count = bench.image_recipe(), bench.pick(images, 20_000, 2_000)
    data, batch = recipe.data, recipe.train.batch
    if batch > count:
        raise InputError(f"train.batch {batch} is more than --images {count}: lower it")
    bench.reporter.say(f"feeding {count} images of {size_of(recipe)}")
    data = data.model_copy(update={"shuffle": max(records.BLOCK, count // WINDOWS)})
    walls = bench.call(time_feeds, data=data, images=count, batch=batch, repeats=bench.repeats)
    varied = ", ".join([f"padded by {data.crop} and cropped"] * bool(data.crop) + ["mirrored"] * data.flip) or "as they are"
    bench.rows += compared(walls, count // batch * batch, data.size**2 * data.channels)
    title = f"{count} images of {size_of(recipe)} in batches of {batch}, {varied}"
    bench.sheet(title, COLUMNS, bars(bench.rows, "name", "images_per_s", "images a second", spread=True), bench.medians)


def time_feeds(data: "Data", images: int, batch: int, repeats: int) -> turns.Walls:
    """Seconds of an epoch by each way of feeding.

    Plain tf.data reads an Example per image, parses it, varies it, and batches; streaming and it read from the page cache.
    Every batch ends as uint8 in a compiled step that looks at it.
    """
    import noise
    import tensorflow as tf
    import tfdata

    from data_prep.prepare import Settings
    from lottery.engine import devices
    from lottery.engine.feed import MemoryFeed
    from lottery.engine.stream import StreamFeed
    from lottery.experiment.recipe import Train

    names = devices.set_up_tensorflow(Train(threads=timing.cores()))  # all of them, which tf.data takes anyway

    @tf.function(reduce_retracing=True)
    def consume(batches: tf.data.Dataset) -> tf.Tensor:
        seen = tf.constant(0, tf.int64)
        for batch in batches:
            seen += tf.cast(batch["image"][0, 0, 0, 0], tf.int64) + batch["label"][0]
        return seen

    with tempfile.TemporaryDirectory() as place:
        folder, examples = Path(place), Path(place, "examples.tfrecord")
        settings = Settings("folder:noise", data.size)
        manifest = noise.make_noise(folder, images, settings)
        tfdata.write(examples, settings, images)
        memory = MemoryFeed(folder, manifest, data, tf.distribute.get_strategy(), on_host=devices.on_cpu(names))
        parse = partial(tfdata.image, data)
        tuned = tfdata.one_by_one(examples, parse, batch, tf.data.AUTOTUNE)
        contenders: dict[str, turns.Work] = {
            "tf.data, one by one, then batched": partial(consume, tfdata.one_by_one(examples, parse, batch)),
            "the same, parallel and prefetched": partial(consume, tuned),
            "stream": _epochs(StreamFeed(folder, manifest, data, names), batch),
            "memory": _epochs(memory, batch),
        }
        return turns.in_turn(contenders, repeats, Reporter())


def _epochs(feed: "Feed", batch: int) -> turns.Work:
    """A function that feeds the next epoch of `feed` to a compiled step."""
    import tensorflow as tf

    from lottery.engine.augment import augment

    @tf.function(input_signature=[feed.rows_spec(batch), feed.draws_spec(batch)])
    def steps(rows: Any, draws: Any) -> tf.Tensor:
        seen = tf.constant(0)
        for step in tf.range(tf.shape(rows[0])[0]):
            row, draw = tf.nest.map_structure(lambda tensor, step=step: tensor[step], (rows, draws))
            images, labels = feed.examples(row)
            images = augment(images, draw, feed.data)
            seen += tf.cast(images[0, 0, 0, 0], tf.int32) + labels[0]
        return seen

    epochs = itertools.count()

    def epoch() -> None:
        batches = feed.epoch(0, next(epochs), batch)
        left = feed.counts["train"] // batch
        while left:
            rows, draws = batches.take(min(STEPS_PER_CALL, left))
            steps(rows, draws).numpy()
            left -= len(rows[0])

    return epoch


if __name__ == "__main__":
    cli.main(feed)
