"""`imp bench prepare`: what records cost to make."""

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lottery.bench import rates, timing
from lottery.bench.harness import Bench, measurement
from lottery.bench.sheet import Sheet
from lottery.progress import count_of

SHAPE = (500, 375)  # width and height of an average ImageNet photograph
UNIQUE = 500
QUALITY = 90


@measurement(repeats=7, few=2)
def prepare(
    bench: Bench,
    folder: Annotated[
        Path | None, typer.Argument(help="Class folders of JPEG files of your own; else photographs are made up.")
    ] = None,
    images: Annotated[int | None, typer.Option(min=10, help="How many to make up.", show_default="10000")] = None,
    size: Annotated[int, typer.Option(min=8, help="Height and width of the records, in pixels.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Up to so many processes; 0: one per core.")] = 0,
) -> Sheet:
    """JPEG files to records, beside plain Pillow and beside decoding alone."""
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

        def ours(workers: int) -> None:
            make_records(settings, records, Means(workers=workers))
            shutil.rmtree(records)

        contenders: dict[str, timing.Work] = {
            "Pillow, decoded whole": partial(_resize, photographs, size),
            "decoding alone, at reduced scale": partial(_decode, photographs, size),
        }
        for number in range(1, workers + 1):
            contenders[f"imp prepare, {count_of(number, 'worker')}"] = partial(ours, number)
        timings = timing.in_turn(contenders, bench.repeats, bench.reporter)
        mean_bytes = sum(path.stat().st_size for path in photographs) // len(photographs)
    rows = rates.rows(timings, len(photographs), mean_bytes)
    speed_up = {"workers_speed_up": rows[-1]["images_per_s"] / rows[2]["images_per_s"]} if workers > 1 else {}
    title = f"{len(photographs)} JPEG files, {mean_bytes / 1000:.0f} kB each in the mean, to {size}x{size}"
    return rates.sheet(bench, title, rows, **speed_up)


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


def _resize(photographs: list[Path], size: int) -> None:
    """As plain Pillow does it: decoded at full scale, resized with its fastest average (the box filter), not written."""
    from PIL import Image, ImageOps

    for path in photographs:
        with Image.open(path) as image:
            ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BOX)


def _decode(photographs: list[Path], size: int) -> None:
    """What a preparation cannot be faster than."""
    from PIL import Image

    for path in photographs:
        with Image.open(path) as image:
            image.draft(None, (size, size))
            image.load()
