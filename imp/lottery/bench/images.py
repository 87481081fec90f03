"""`imp bench prepare` and `imp bench feed`: what records cost to make, and to feed, in images a second."""

import itertools
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.base.errors import InputError
from lottery.base.progress import Reporter, count_of
from lottery.bench import timing
from lottery.bench.harness import Bench, measurement
from lottery.bench.limits import copies
from lottery.bench.sheet import Column, Rows, bars, rate

if TYPE_CHECKING:
    from lottery.engine.feed import Feed
    from lottery.experiment.recipe import Data

SHAPE = (500, 375)  # width and height of an average ImageNet photograph
UNIQUE = 500
QUALITY = 90
STEPS_PER_CALL = 1000  # a call of the training loop lasts half a second
WINDOWS = 8  # so many stretches, because a set that is streamed is too large for one
COLUMNS = (
    Column("name", ""),
    *rate("images_per_s", "images/s"),
    Column("mb_per_s", "MB/s"),
    Column("per_core", "per core second"),
    Column("ratio", "ratio", ".2f"),
)

Timings = Mapping[str, Sequence[timing.Timing]]


@measurement(repeats=7, few=2)
def prepare(
    bench: Bench,
    folder: Annotated[
        Path | None, typer.Argument(help="Class folders of JPEG files of your own; else photographs are made up.")
    ] = None,
    images: Annotated[int | None, typer.Option(min=10, help="How many to make up.", show_default="10000")] = None,
    size: Annotated[int, typer.Option(min=8, help="Height and width of the records, in pixels.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Up to so many processes; 0: one per core.")] = 0,
) -> None:
    """JPEG files to records, beside plain Pillow and beside decoding alone."""
    from PIL import Image, ImageOps

    from data_prep.pictures import FORMATS
    from data_prep.prepare import Means, Settings
    from data_prep.prepare import prepare as make_records
    from data_prep.sources import open_source
    from data_prep.sources.folder import SUFFIXES

    count, workers = bench.pick(images, 10_000, 300), workers or timing.cores()
    with tempfile.TemporaryDirectory() as place:
        if folder is None:
            folder = Path(place, "photographs")
            bench.reporter.say(f"making {count} photographs of {SHAPE[0]}x{SHAPE[1]}")
            make_photographs(folder, count)
        settings, records = Settings(f"folder:{folder}", size), Path(place, "records")
        open_source(settings.source)  # which refuses what is none
        photographs = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES]

        def resize() -> None:
            """As plain Pillow does it: decoded at full scale, resized by plain averages (the box filter), not written."""
            for path in photographs:
                with Image.open(path, formats=FORMATS) as image:
                    ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BOX)

        def decode() -> None:
            """What a preparation cannot be faster than."""
            for path in photographs:
                with Image.open(path, formats=FORMATS) as image:
                    image.draft(None, (size, size))
                    image.load()

        def ours(workers: int) -> None:
            make_records(settings, records, Means(workers=workers))
            shutil.rmtree(records)

        contenders: dict[str, timing.Work] = {"Pillow, decoded whole": resize, "decoding alone, at reduced scale": decode}
        for number in range(1, workers + 1):
            contenders[f"imp prepare, {count_of(number, 'worker')}"] = partial(ours, number)
        timings = timing.in_turn(contenders, bench.repeats, bench.reporter)
        mean_bytes = sum(path.stat().st_size for path in photographs) // len(photographs)
    bench.rows += compared(timings, len(photographs), mean_bytes)
    speed_up = {"workers_speed_up": bench.rows[-1]["images_per_s"] / bench.rows[2]["images_per_s"]} if workers > 1 else {}
    title = f"{len(photographs)} JPEG files, {mean_bytes / 1000:.0f} kB each in the mean, to {size}x{size}"
    _sheet(bench, title, speed_up)


def make_photographs(folder: Path, count: int) -> None:
    """Random parts of the two photographs that scikit-learn ships, as JPEG in a folder per photograph."""
    import numpy as np
    from PIL import Image, ImageOps
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    originals = dict(zip(("china", "flower"), map(Image.fromarray, load_sample_images().images), strict=True))
    for name in originals:
        (folder / name).mkdir(parents=True)
    for number in range(count):
        name = ("china", "flower")[number % 2]
        path = folder / name / f"{number:06d}.jpg"
        if number < UNIQUE:
            bleed, across, down = rng.uniform(0.075, 0.25), *rng.random(2)
            part = ImageOps.fit(originals[name], SHAPE, Image.Resampling.BICUBIC, bleed, (across, down))
            part.save(path, "JPEG", quality=QUALITY)
        else:
            shutil.copy(folder / name / f"{number % UNIQUE:06d}.jpg", path)


@measurement(repeats=7, few=2)
def feed(
    bench: Bench,
    images: Annotated[int | None, typer.Option(min=1, help="How many to feed.", show_default="20000")] = None,
    size: Annotated[int, typer.Option(min=8, help="Their height and width, in pixels.")] = 64,
    batch: Annotated[int, typer.Option(min=1)] = 256,
    crop: Annotated[int, typer.Option(min=0, help="Pixels of padding before a random crop.")] = 0,
    flip: Annotated[bool, typer.Option("--flip", help="Mirror half of them.")] = False,
) -> None:
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
    bench.rows += compared(timings, count // batch * batch, size * size * 3)
    _sheet(bench, f"{count} images of {size}x{size} in batches of {batch}, {varied}", extras)


def time_feeds(data: "Data", images: int, batch: int, repeats: int) -> tuple[Timings, dict[str, float]]:
    """Timings of an epoch by each way of feeding, and single figures.

    Plain tf.data reads an Example per image, parses it, varies it, and batches; streaming and it read from the page cache.
    Every batch ends as uint8 in a compiled step that looks at it.
    """
    import tensorflow as tf

    from data_prep.prepare import Settings
    from lottery.bench import noise, tfdata
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
        with timing.peak_memory() as peak:
            memory = MemoryFeed(folder, manifest, data, tf.distribute.get_strategy(), on_host=devices.on_cpu(names))
            extras = {"resident_peak_over_raw_bytes": peak() / manifest.bytes}
        parse = partial(tfdata.image, data)
        tuned = tfdata.one_by_one(examples, parse, batch, tf.data.AUTOTUNE)
        contenders: dict[str, timing.Work] = {
            "tf.data, one by one, then batched": partial(consume, tfdata.one_by_one(examples, parse, batch)),
            "the same, parallel and prefetched": partial(consume, tuned),
            "stream": _epochs(StreamFeed(folder, manifest, data, names), batch),
            "memory": _epochs(memory, batch),
        }
        return timing.in_turn(contenders, repeats, Reporter()), extras


def _epochs(feed: "Feed", batch: int) -> timing.Work:
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


def compared(timings: Timings, images: int, image_bytes: int) -> Rows:
    """What each contender did of `images` images of `image_bytes` each, in the median of its runs.

    `per_core` is images per second of processor time, of all processes together; `ratio` is against the first contender.
    """
    table: Rows = []
    for name, pairs in timings.items():
        walls, processor = zip(*pairs, strict=True)
        row: dict[str, Any] = {"name": name, **timing.spread("images_per_s", [images / wall for wall in walls])}
        row["mb_per_s"] = row["images_per_s"] * image_bytes / 1e6
        row["per_core"] = images / statistics.median(processor)
        row["ratio"] = row["images_per_s"] / (table[0] if table else row)["images_per_s"]
        table.append({**row, "repeats": len(walls)})
    return table


def _sheet(bench: Bench, title: str, extras: Mapping[str, float]) -> None:
    """With the bandwidth of memory (GB/s) that they were measured beside."""
    copied = {"GB_that_one_thread_copies_in_a_second": statistics.median(copies(1, 7))}
    figure = bars(bench.rows, "name", "images_per_s", "images a second", spread=True)
    bench.sheet(title, COLUMNS, figure, bench.medians, **copied, **extras)
