"""`imp bench loader`: an epoch with images loaded by so many workers, streamed, and resident, each in a process of its own."""

import statistics
from collections.abc import Sequence
from typing import Any

from data_prep.errors import Failed, InputError
from lottery.bench import apart, measure
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.progress import Reporter
from lottery.recipe import Recipe
from lottery.tables import count_of

OURS = ("stream", "memory")
COLUMNS = (
    Column("name", ""),
    Column("load_s", "load, s", ".2f"),
    Column("step_s", "steps, s", ".2f"),
    Column("epoch_s", "epoch, s", ".2f"),
    Column("low", "fastest", ".2f"),
    Column("high", "slowest", ".2f"),
    Column("load_share", "waiting", ".1%"),
)


def bench_loader(recipe: Recipe, images: int, workers: Sequence[int], repeats: int, quick: bool, reporter: Reporter) -> Sheet:
    """Rows for tf.data with so many `workers`, one image at a time, and for our two ways; `load_s` is how long an epoch's steps
    waited for images, `step_s` how long they took. Raises Failed where one cannot be measured."""
    if images < recipe.train.batch:
        raise InputError(f"train.batch {recipe.train.batch:,} is more than the {images:,} images of an epoch: raise --images")
    rows = []
    ways: list[int | str] = [*workers, *OURS]
    with apart.calling(together=quick) as call:
        for how in ways:
            name = how if isinstance(how, str) else f"tf.data, {count_of(how, 'worker')}"
            reporter.say(f"measuring {name}")
            try:
                found = call(
                    "lottery.bench.trials.loader:measure_loading",
                    recipe=recipe.model_dump(),
                    how=how,
                    images=images,
                    repeats=repeats,
                )
            except Failed as error:
                raise Failed(f"{name}: {error}") from None
            rows.append(_row(name, found))
    size, data = recipe.data.size, recipe.data
    varied = ", ".join(["cropped"] * bool(data.crop) + ["mirrored"] * data.flip) or "as they are"
    title = f"An epoch of {images} images of {size}x{size}, {varied}: {recipe.model.name}, batch {recipe.train.batch}"
    notes = [
        "0 workers: images are read when they are asked for; memory and stream vary them inside the compiled step",
        f"medians of {repeats} epochs after one to warm up; {recipe.train.threads} intra-op threads",
    ]
    return Sheet(
        "loader", title, measure.machine(), COLUMNS, rows, Bars("name", "epoch_s", "seconds an epoch", "low", "high"), notes
    )


def _row(name: str, found: list[list[float]]) -> dict[str, Any]:
    loads, epochs = zip(*found, strict=True)
    load, epoch = statistics.median(loads), statistics.median(epochs)
    return {
        "name": name,
        "load_s": load,
        "step_s": statistics.median(epoch - load for load, epoch in found),
        "epoch_s": epoch,
        "low": min(epochs),
        "high": max(epochs),
        "load_share": load / epoch,
    }
