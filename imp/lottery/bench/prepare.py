"""`imp bench prepare`: JPEG files to records, beside plain Pillow and beside decoding alone."""

import io
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from data_prep.prepare import Means, Settings, prepare
from data_prep.sources import Source, open_source
from lottery.bench import measure
from lottery.bench.sheet import Sheet
from lottery.progress import Reporter

SHAPE = (500, 375)  # width and height of an average ImageNet photograph
UNIQUE = 500
QUALITY = 90
PILLOW = "Pillow, decoded whole"


def bench_prepare(images: int, size: int, workers: int, repeats: int, folder: Path | None, reporter: Reporter) -> Sheet:
    """Prepare `images` JPEG files at `size`, or those of class folders in `folder`, by 1 .. `workers` processes.

    Plain Pillow decodes each at full scale and resizes it with its fastest average (the box filter), in one process, and
    writes nothing. Decoding alone is what a preparation cannot be faster than.
    """
    with tempfile.TemporaryDirectory() as place:
        if folder is None:
            folder = Path(place, "photographs")
            reporter.say(f"making {images} photographs of {SHAPE[0]}x{SHAPE[1]}")
            make_photographs(folder, images)
        files = _files(open_source(f"folder:{folder}"))
        out = Path(place, "records")
        contenders: dict[str, Callable[[], object]] = {
            PILLOW: partial(_each, files, partial(_plain, size=size)),
            "decoding alone, at reduced scale": partial(_each, files, partial(_decoded, size=size)),
        }
        for count in range(1, workers + 1):
            name = f"imp prepare, {count} worker{'s' if count > 1 else ''}"
            contenders[name] = partial(_prepare, Settings(f"folder:{folder}", size), out, count)
        mean_bytes = sum(path.stat().st_size for path in files) // len(files)
        rows = measure.compare(contenders, len(files), mean_bytes, PILLOW, repeats, reporter)
    alone, several = rows[2], rows[-1]
    extras = {"workers_speed_up": several.images_per_s / alone.images_per_s} if workers > 1 else {}
    title = f"{len(files)} JPEG files, {mean_bytes / 1000:.0f} kB each in the mean, to {size}x{size}"
    return measure.rates("prepare", title, rows, extras)


def _files(source: Source) -> list[Path]:
    splits = [split for split in (source.train, source.test) if split]
    pictures = [picture for split in splits for picture in split.part(np.arange(len(split.labels))).load().pictures]
    return [picture for picture in pictures if isinstance(picture, Path)]


def make_photographs(folder: Path, count: int) -> None:
    """Crops of the two photographs that scikit-learn ships, as JPEG in a folder per photograph."""
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    photographs = [Image.fromarray(array) for array in load_sample_images().images]
    encoded = [_crop(photographs[number % 2], rng) for number in range(UNIQUE)]
    for number in range(count):
        path = folder / ("china", "flower")[number % 2] / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded[number % UNIQUE])


def _crop(photograph: Image.Image, rng: np.random.Generator) -> bytes:
    """A random part of at least half the width, of the usual shape."""
    width = int(photograph.width * rng.uniform(0.5, 0.85))
    height = width * SHAPE[1] // SHAPE[0]
    left, top = (int(rng.integers(0, free + 1)) for free in (photograph.width - width, photograph.height - height))
    content = io.BytesIO()
    part = photograph.crop((left, top, left + width, top + height)).resize(SHAPE, Image.Resampling.BICUBIC)
    part.save(content, "JPEG", quality=QUALITY)
    return content.getvalue()


def _each(files: list[Path], work: Callable[[Path], object]) -> None:
    for path in files:
        work(path)


def _plain(path: Path, size: int) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BOX))


def _decoded(path: Path, size: int) -> None:
    with Image.open(path) as image:
        image.draft(None, (size, size))
        image.load()


def _prepare(settings: Settings, out: Path, workers: int) -> None:
    prepare(settings, out, Means(workers=workers))
    shutil.rmtree(out)
