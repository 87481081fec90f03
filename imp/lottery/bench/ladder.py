"""`imp bench ladder`: a plain training, made faster by one thing after another, each in a process of its own."""

import dataclasses
import statistics
from typing import Any

from data_prep.errors import Failed, InputError
from lottery.bench import apart, measure
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.progress import Reporter
from lottery.recipe import Recipe, resolve

IMAGES, SMALL = 12_800, 1_280
RUN_SECONDS, SMALL_RUN_SECONDS = 2.0, 0.1
COLUMNS = (
    Column("name", ""),
    Column("batch", "batch"),
    Column("memory_gb", "memory, GB", ".2f"),
    Column("ms_per_step", "ms/step", ",.2f"),
    Column("images_per_s", "images/s"),
    Column("low", "slowest"),
    Column("high", "fastest"),
    Column("share", "of the baseline", ".0%"),
)


@dataclasses.dataclass(frozen=True)
class Rung:
    """How a training goes about it: `feed` is what the host does for each batch (`scaled`: parse image by image, to float32;
    `bytes`: the same, to uint8; `together`: parse a batch at a time, in parallel, ahead; `resident`: nothing, the images are
    on the device); `many` steps a call, or one."""

    name: str
    precision: str
    batch: int
    feed: str = "scaled"
    many: bool = False
    xla: bool = False


def rungs(recipe: Recipe, small_batch: int, half: str) -> list[Rung]:
    """The ladder, from the bottom: each rung keeps what those below it have. `half` is the narrower precision."""
    batch = recipe.train.batch
    if small_batch > batch:
        raise InputError(f"--batch {small_batch} is to be the smaller one, but the recipe has train.batch {batch}")
    base = Rung("baseline: float32, small batch, a call a step", "float32", small_batch)
    narrow = dataclasses.replace(base, name="+ mixed precision", precision=half)
    large = dataclasses.replace(narrow, name="+ larger batch", batch=batch)
    raw = dataclasses.replace(large, name="+ uint8 to the device, scaled there", feed="bytes")
    ahead = dataclasses.replace(raw, name="+ parsed by batches, in parallel, ahead", feed="together")
    resident = dataclasses.replace(ahead, name="+ images resident, our loop", feed="resident")
    many = dataclasses.replace(resident, name="+ many steps a call", many=True)
    return [base, narrow, large, raw, ahead, resident, many, dataclasses.replace(many, name="+ XLA", xla=True)]


def bench_ladder(recipe: Recipe, batch: int, repeats: int, quick: bool, reporter: Reporter) -> tuple[Sheet, list[str]]:
    """The sheet, and the names of those rungs that could not be measured: each is told with its reason."""
    gpus = measure.machine()["gpus"]
    plain = resolve(recipe.model_dump() | {"data": {**recipe.data.model_dump(), "crop": 0, "flip": False}})
    rows: list[dict[str, Any]] = []
    failed = []
    images = max(SMALL if quick else IMAGES, 2 * recipe.train.batch)
    how = {"images": images, "seconds": SMALL_RUN_SECONDS if quick else RUN_SECONDS, "repeats": repeats}
    with apart.calling(together=quick) as call:
        for rung in rungs(recipe, batch, "mixed_float16" if gpus else "mixed_bfloat16"):
            reporter.say(f"measuring {rung.name}")
            try:
                found = call("lottery.bench.trials.ladder:measure_rung", recipe=plain.model_dump(), rung=vars(rung), **how)
            except Failed as error:
                reporter.say(f"failed: {rung.name}: {error}")
                failed.append(rung.name)
                continue
            rows.append(_row(rung, found["ms"], found["peak_bytes"]))
    for row in rows:
        row["share"] = row["images_per_s"] / rows[0]["images_per_s"]
    title = f"From a plain training to ours: {recipe.model.name}, {recipe.data.size}x{recipe.data.size}"
    notes = [
        "each row has all that the rows above it have; no augmentation; memory: that of the process's growth on CPUs, of the "
        "device's allocator on GPUs",
        f"medians of {repeats} runs, {apart.note(together=quick)}; {recipe.train.threads} intra-op threads",
    ]
    figure = Bars("name", "images_per_s", "images a second", "low", "high")
    return Sheet("ladder", title, measure.machine(), COLUMNS, rows, figure, notes), failed


def _row(rung: Rung, ms: list[float], peak_bytes: int) -> dict[str, Any]:
    median = statistics.median(ms)
    return {
        **vars(rung),
        "memory_gb": peak_bytes / 1e9,
        "ms_per_step": median,
        "images_per_s": 1000 * rung.batch / median,
        "low": 1000 * rung.batch / max(ms),
        "high": 1000 * rung.batch / min(ms),
    }
