"""`imp bench feed`: how many images a second reach the compiled step, from memory, streamed, and by plain tf.data."""

import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from data_prep import records
from lottery.bench import measure
from lottery.bench.parts import pipelines
from lottery.bench.parts.noise import make_noise
from lottery.bench.sheet import Sheet
from lottery.engine.augment import augment
from lottery.engine.devices import set_up_tensorflow
from lottery.engine.feed import Feed
from lottery.engine.memory import MemoryFeed
from lottery.engine.stream import StreamFeed
from lottery.progress import Reporter
from lottery.recipe import Data, Train

CLASSES = 10
STEPS_PER_CALL = 1000  # a call of the training loop lasts half a second
WINDOWS = 8  # so many stretches, because a set that is streamed is too large for one
NAIVE, TUNED = "tf.data, one by one, then batched", "the same, parallel and prefetched"


def bench_feed(images: int, size: int, batch: int, crop: int, flip: bool, repeats: int, reporter: Reporter) -> Sheet:
    """Feed one epoch of `images` made-up images of `size` x `size`, cropped (after `crop` pixels of padding) and mirrored
    if so asked.

    Plain tf.data reads an Example per image, parses it, varies it, and batches; streaming and it read from the page cache.
    Every batch ends as uint8 in a compiled step that looks at it.
    """
    devices = set_up_tensorflow(Train(threads=measure.cores()))  # all of them, which tf.data takes anyway
    data = Data(size=size, crop=crop, flip=flip, shuffle=max(records.BLOCK, images // WINDOWS))
    with tempfile.TemporaryDirectory() as place:
        folder, examples = Path(place), Path(place, "examples.tfrecord")
        reporter.say(f"making {images} images of {size}x{size}")
        manifest = make_noise(folder, images, size, CLASSES)
        pipelines.write_examples(examples, folder, manifest)
        strategy = tf.distribute.get_strategy()
        with measure.peak_memory() as peak:
            memory = MemoryFeed(folder, manifest, data, strategy, on_host=devices[0].startswith("CPU"))
            extras = {"resident_peak_over_raw_bytes": peak() / manifest.bytes}
        contenders: dict[str, Callable[[], object]] = {
            NAIVE: partial(_consume, pipelines.one_by_one(examples, data, batch)),
            TUNED: partial(_consume, pipelines.one_by_one(examples, data, batch, tf.data.AUTOTUNE)),
            "stream": _epoch(StreamFeed(folder, manifest, data, devices), batch),
            "memory": _epoch(memory, batch),
        }
        fed = manifest.count("train") // batch * batch
        rows = measure.compare(contenders, fed, math.prod(manifest.shape), NAIVE, repeats, reporter)
    varied = ", ".join([f"padded by {crop} and cropped"] * bool(crop) + ["mirrored"] * flip) or "as they are"
    title = f"{images} images of {size}x{size} in batches of {batch}, {varied}"
    return measure.rates("feed", title, rows, extras)


@tf.function(reduce_retracing=True)
def _consume(batches: tf.data.Dataset) -> tf.Tensor:
    seen = tf.constant(0, tf.int64)
    for images, labels in batches:
        seen += tf.cast(images[0, 0, 0, 0], tf.int64) + labels[0]
    return seen


def _epoch(feed: Feed, batch: int) -> Callable[[], None]:
    """A function that feeds the next epoch of `feed` to a compiled step."""

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
