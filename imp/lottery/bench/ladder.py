"""`imp bench ladder`: a plain training, made faster by one thing after another, each in a process of its own; what makes it
slower on this machine is taken back."""

import dataclasses
import statistics
from collections.abc import Mapping
from functools import partial
from typing import Any

from data_prep.errors import Failed, InputError
from lottery.bench import apart, measure
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.progress import Reporter
from lottery.recipe import Recipe, resolve

TRIAL = "lottery.bench.trials.ladder:measure_rung"
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
    Column("kept", "kept"),
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


def changes(recipe: Recipe, half: str) -> dict[str, dict[str, Any]]:
    """What each rung changes of the one that it stands on, by name; `half` is the narrower precision."""
    return {
        "+ mixed precision": {"precision": half},
        "+ larger batch": {"batch": recipe.train.batch},
        "+ uint8 to the device, scaled there": {"feed": "bytes"},
        "+ parsed by batches, in parallel, ahead": {"feed": "together"},
        "+ images resident, our loop": {"feed": "resident"},
        "+ many steps a call": {"feed": "resident", "many": True},
        "+ XLA": {"feed": "resident", "many": True, "xla": True},
    }


def bench_ladder(recipe: Recipe, batch: int, repeats: int, quick: bool, reporter: Reporter) -> tuple[Sheet, list[str]]:
    """The sheet, and the names of those rungs that could not be measured: each is told with its reason."""
    if batch > recipe.train.batch:
        raise InputError(f"--batch {batch} is to be the smaller one, but the recipe has train.batch {recipe.train.batch}")
    plain = resolve(recipe.model_dump() | {"data": {**recipe.data.model_dump(), "crop": 0, "flip": False}})
    how = {
        "recipe": plain.model_dump(),
        "images": max(SMALL if quick else IMAGES, 2 * recipe.train.batch),
        "seconds": SMALL_RUN_SECONDS if quick else RUN_SECONDS,
        "repeats": repeats,
    }
    half = "mixed_float16" if measure.machine()["gpus"] else "mixed_bfloat16"
    base = Rung("baseline: float32, small batch, a call a step", "float32", batch)
    with apart.calling(together=quick) as call:
        rows, failed = _climb(base, changes(recipe, half), partial(call, TRIAL, **how), reporter)
    title = f"From a plain training to ours: {recipe.model.name}, {recipe.data.size}x{recipe.data.size}"
    notes = [
        "each row has all that the rows above it have that were kept, which are those that made it faster; no augmentation; "
        "memory: that of the process's growth on CPUs, of the device's allocator on GPUs",
        f"medians of {repeats} runs, {apart.note(together=quick)}; {recipe.train.threads} intra-op threads",
    ]
    figure = Bars("name", "images_per_s", "images a second", "low", "high")
    return Sheet("ladder", title, measure.machine(), COLUMNS, rows, figure, notes), failed


def _climb(
    base: Rung, changes: Mapping[str, dict[str, Any]], call: apart.Call, reporter: Reporter
) -> tuple[list[dict[str, Any]], list[str]]:
    """Measure one rung after another, each a change to the fastest so far; the names of those that failed are told apart."""
    rows: list[dict[str, Any]] = []
    failed = []
    below, best, baseline = base, 0.0, None
    for name, change in {base.name: {}, **changes}.items():
        rung = dataclasses.replace(below, name=name, **change) if change else base
        reporter.say(f"measuring {name}")
        try:
            row = _row(rung, call(rung=vars(rung)))
        except Failed as error:
            reporter.say(f"failed: {name}: {error}")
            failed.append(name)
            continue
        rate = row["images_per_s"]
        if rung is base:
            baseline = rate
        rows.append(row | {"share": rate / baseline if baseline else None, "kept": rate > best})
        if rate > best:
            below, best = rung, rate
    return rows, failed


def _row(rung: Rung, found: dict[str, Any]) -> dict[str, Any]:
    ms = found["ms"]
    median = statistics.median(ms)
    return {
        **vars(rung),
        "memory_gb": found["peak_bytes"] / 1e9,
        "ms_per_step": median,
        "images_per_s": 1000 * rung.batch / median,
        "low": 1000 * rung.batch / max(ms),
        "high": 1000 * rung.batch / min(ms),
    }
