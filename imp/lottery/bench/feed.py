"""`imp bench feed`: what feeding images costs, without a network."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data_prep.errors import InputError
from lottery.bench import rates, timing
from lottery.bench.harness import Bench, measurement
from lottery.bench.sheet import Sheet
from lottery.progress import Reporter

if TYPE_CHECKING:
    from lottery.engine.feed import Feed
    from lottery.experiment.recipe import Data

STEPS_PER_CALL = 1000  # a call of the training loop lasts half a second
WINDOWS = 8  # so many stretches, because a set that is streamed is too large for one

Timings = dict[str, list[timing.Timing]]


@measurement(repeats=7, few=2)
def feed(
    bench: Bench,
    images: Annotated[int | None, typer.Option(min=1, help="How many to feed.", show_default="20000")] = None,
    size: Annotated[int, typer.Option(min=8, help="Their height and width, in pixels.")] = 64,
    batch: Annotated[int, typer.Option(min=1)] = 256,
    crop: Annotated[int, typer.Option(min=0, help="Pixels of padding before a random crop.")] = 0,
    flip: Annotated[bool, typer.Option("--flip", help="Mirror half of them.")] = False,
) -> Sheet:
    """Images a second that reach the compiled step: from memory, streamed, and by plain tf.data."""
    from data_prep import records
    from lottery.experiment.recipe import Data

    count = bench.pick(images, 20_000, 2_000)
    if batch > count:
        raise InputError(f"--batch {batch} is more than --images {count}: lower it")
    bench.reporter.say(f"feeding {count} images of {size}x{size}")
    data = Data(size=size, crop=crop, flip=flip, shuffle=max(records.BLOCK, count // WINDOWS))
    timings, extras = bench.call(time_feeds, data=data, images=count, batch=batch, repeats=bench.repeats)
    varied = ", ".join([f"padded by {crop} and cropped"] * bool(crop) + ["mirrored"] * flip) or "as they are"
    title = f"{count} images of {size}x{size} in batches of {batch}, {varied}"
    return rates.sheet(bench, title, rates.rows(timings, count // batch * batch, size * size * 3), **extras)


def time_feeds(data: "Data", images: int, batch: int, repeats: int) -> tuple[Timings, dict[str, float]]:
    """Timings of an epoch by each way of feeding, and single figures.

    Plain tf.data reads an Example per image, parses it, varies it, and batches; streaming and it read from the page cache.
    Every batch ends as uint8 in a compiled step that looks at it.
    """
    import tensorflow as tf

    from lottery.bench import noise, others
    from lottery.engine import devices
    from lottery.engine.memory import MemoryFeed
    from lottery.engine.stream import StreamFeed
    from lottery.experiment.recipe import Train

    names = devices.set_up_tensorflow(Train(threads=timing.cores()))  # all of them, which tf.data takes anyway

    @tf.function(reduce_retracing=True)
    def consume(batches: tf.data.Dataset) -> tf.Tensor:
        seen = tf.constant(0, tf.int64)
        for images, labels in batches:
            seen += tf.cast(images[0, 0, 0, 0], tf.int64) + labels[0]
        return seen

    with tempfile.TemporaryDirectory() as place:
        folder, examples = Path(place), Path(place, "examples.tfrecord")
        manifest = noise.make_noise(folder, images, data.size)
        others.write_examples(examples, images, data.size)
        with timing.peak_memory() as peak:
            memory = MemoryFeed(folder, manifest, data, tf.distribute.get_strategy(), on_host=devices.on_cpu(names))
            extras = {"resident_peak_over_raw_bytes": peak() / manifest.bytes}
        tuned = others.one_by_one(examples, data, batch, tf.data.AUTOTUNE)
        contenders: dict[str, timing.Work] = {
            "tf.data, one by one, then batched": partial(consume, others.one_by_one(examples, data, batch)),
            "the same, parallel and prefetched": partial(consume, tuned),
            "stream": _epochs(StreamFeed(folder, manifest, data, names), batch),
            "memory": _epochs(memory, batch),
        }
        return timing.in_turn(contenders, repeats, Reporter()), extras


def _epochs(feed: "Feed", batch: int) -> Callable[[], None]:
    """A function that feeds the next epoch of `feed` to a compiled step."""
    import tensorflow as tf

    from lottery.engine.augment import augment

    @tf.function(input_signature=[feed.rows_spec(batch), feed.draws_spec(batch)])
    def steps(rows: Any, draws: Any) -> tf.Tensor:
        seen = tf.constant(0)
        for step in tf.range(tf.shape(rows[0])[0]):
            row, draw = tf.nest.map_structure(lambda tensor, step=step: tensor[step], (rows, draws))
            images, labels = feed.images(row)
            images = augment(images, draw, feed.data)
            seen += tf.cast(images[0, 0, 0, 0], tf.int32) + labels[0]
        return seen

    epochs = iter(range(1_000_000))

    def epoch() -> None:
        batches = feed.epoch(0, next(epochs), batch)
        left = feed.counts["train"] // batch
        while left:
            rows, draws = batches.take(min(STEPS_PER_CALL, left))
            steps(rows, draws).numpy()
            left -= len(rows[0])

    return epoch
