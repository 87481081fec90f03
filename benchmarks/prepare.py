"""JPEG files to records, compared with plain Pillow: `python benchmarks/prepare.py [FOLDER]`."""

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import turns
import typer
from harness import Bench, measurement, rate

from lottery import cli
from lottery.base.progress import count_of
from lottery.bench import timing
from lottery.bench.sheet import Column, Rows, bars

SHAPE = (500, 375)  # width and height of an average ImageNet photograph
UNIQUE = 500
QUALITY = 90
COLUMNS = (Column("name", ""), *rate("images_per_s", "images/s"), Column("mb_per_s", "MB/s"), Column("ratio", "ratio", ".2f"))


@measurement(repeats=7)
def prepare(
    bench: Bench,
    folder: Annotated[
        Path | None, typer.Argument(help="Class folders of JPEG files of your own; else photographs are made up.")
    ] = None,
    images: Annotated[int | None, typer.Option(min=10, help="How many to make up.", show_default="10000")] = None,
    size: Annotated[int, typer.Option(min=8, help="Height and width of the records, in pixels.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Up to so many processes; 0: one per core.")] = 0,
) -> None:
    """JPEG files to records, compared with plain Pillow and with decoding alone."""
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
        open_source(settings.source)  # raises InputError where it is not one
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

        contenders: dict[str, turns.Work] = {"Pillow, decoded whole": resize, "decoding alone, at reduced scale": decode}
        for number in range(1, workers + 1):
            contenders[f"imp prepare, {count_of(number, 'worker')}"] = partial(ours, number)
        walls = turns.in_turn(contenders, bench.repeats, bench.reporter)
        mean_bytes = sum(path.stat().st_size for path in photographs) // len(photographs)
    bench.rows += compared(walls, len(photographs), mean_bytes)
    title = f"{len(photographs)} JPEG files, {mean_bytes / 1000:.0f} kB each in the mean, to {size}x{size}"
    bench.sheet(title, COLUMNS, bars(bench.rows, "name", "images_per_s", "images a second", spread=True), bench.medians)


def make_photographs(folder: Path, count: int) -> None:
    """Random parts of the two photographs that scikit-learn ships, as JPEG in a folder per photograph; after `UNIQUE` of them,
    copies."""
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


def compared(walls: turns.Walls, images: int, image_bytes: int) -> Rows:
    """What each contender did of `images` images of `image_bytes` each, in the median of its runs; `ratio` is against the
    first contender."""
    rows: Rows = []
    for name, seconds in walls.items():
        row: dict[str, Any] = {"name": name, **timing.spread("images_per_s", [images / wall for wall in seconds])}
        row["repeats"] = len(seconds)
        row["mb_per_s"] = row["images_per_s"] * image_bytes / 1e6
        rows.append({**row, "ratio": row["images_per_s"] / (rows or [row])[0]["images_per_s"]})
    return rows


if __name__ == "__main__":
    cli.main(prepare)
