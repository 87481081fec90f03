"""`imp bench precision` and `imp bench remat`: what a step costs in numbers of half the width, and with activations computed
twice, each row in a process of its own."""

import statistics
from typing import Any

from data_prep.errors import Failed
from lottery.bench import apart, measure
from lottery.bench.apart import TooLarge
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.engine import capacity
from lottery.progress import Reporter
from lottery.recipe import Recipe

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
EPOCH_IMAGES = 50_000
RUN_SECONDS, SMALL_RUN_SECONDS = 2.0, 0.1
COLUMNS = (
    Column("name", ""),
    Column("batch", "batch"),
    Column("step_ms", "ms/step", ",.1f"),
    Column("low", "fastest", ",.1f"),
    Column("high", "slowest", ",.1f"),
    Column("update_ms", "optimizer, ms", ",.2f"),
    Column("images_per_s", "images/s"),
    Column("epoch_s", "epoch, s", ",.1f"),
    Column("memory_gb", "memory, GB", ".2f"),
)
NOTES = (
    f"epoch: {EPOCH_IMAGES:,} images; optimizer: its update alone, which is part of the step; memory: that of the process's "
    "growth on CPUs, of the device's allocator on GPUs",
)


def bench_precision(recipe: Recipe, repeats: int, quick: bool, reporter: Reporter) -> tuple[Sheet, list[str]]:
    """A row for each of `PRECISIONS`, and the names of those that could not be measured."""
    cases = [(name, _with(recipe, precision=name)) for name in PRECISIONS]
    return _sheet("precision", "Precision", recipe, cases, repeats, quick, reporter)


def bench_remat(
    recipe: Recipe, largest: int, memory_gb: float, repeats: int, quick: bool, reporter: Reporter
) -> tuple[Sheet, list[str]]:
    """Rows without and with rematerialisation, at the recipe's batch and at the largest that fits, which is sought by halving
    from `largest`; on CPUs what fits is what takes `memory_gb` at most (0: half of what is free)."""
    limit = int(memory_gb * 1e9) or capacity.host_budget(0)
    cases = []
    for remat, name in ((False, "activations held"), (True, "computed twice")):
        own = _with(recipe, remat=remat)
        batch = _largest(own, name, largest, limit, reporter)
        cases += [(name, own), (f"{name}, largest batch", _with(own, batch=batch))] if batch else [(name, own)]
    return _sheet("remat", "Rematerialisation", recipe, cases, repeats, quick, reporter, limit)


def _sheet(
    command: str,
    what: str,
    recipe: Recipe,
    cases: list[tuple[str, Recipe]],
    repeats: int,
    quick: bool,
    reporter: Reporter,
    limit: int = 1 << 62,
) -> tuple[Sheet, list[str]]:
    rows, failed = [], []
    for name, case in cases:
        reporter.say(f"measuring {name}, batch {case.train.batch}")
        try:
            rows.append(_row(name, case, _cost(case, repeats, SMALL_RUN_SECONDS if quick else RUN_SECONDS, limit)))
        except Failed as error:
            reporter.say(f"failed: {name}: {error}")
            failed.append(name)
    title = f"{what}: {recipe.model.name}, {recipe.data.size}x{recipe.data.size}"
    notes = [*NOTES, f"medians of {repeats} runs, each row in a process of its own; {recipe.train.threads} intra-op threads"]
    figure = Bars("name", "images_per_s", "images a second")
    return Sheet(command, title, measure.machine(), COLUMNS, rows, figure, notes), failed


def _largest(recipe: Recipe, name: str, batch: int, limit: int, reporter: Reporter) -> int | None:
    """The first of `batch` and its halves that fits; None where not even the recipe's own does."""
    while batch > recipe.train.batch:
        try:
            _cost(_with(recipe, batch=batch), 1, 0.0, limit)
            return batch
        except TooLarge as error:
            reporter.say(f"{name}: batch {batch} does not fit ({error}), trying half of it")
            batch //= 2
    return None


def _cost(recipe: Recipe, repeats: int, seconds: float, limit: int) -> dict[str, Any]:
    values = _with(recipe, devices=1, learning_rate=1e-3, warmup="0").model_dump()
    found = apart.call(
        "lottery.bench.trials.cost:measure_cost", recipe=values, seconds=seconds, repeats=repeats, limit_bytes=limit
    )
    return dict(found)


def _with(recipe: Recipe, **train: Any) -> Recipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=train)})


def _row(name: str, recipe: Recipe, found: dict[str, Any]) -> dict[str, Any]:
    median = statistics.median(found["step_ms"])
    rate = 1000 * recipe.train.batch / median
    return {
        "name": name,
        "batch": recipe.train.batch,
        "step_ms": median,
        "low": min(found["step_ms"]),
        "high": max(found["step_ms"]),
        "update_ms": statistics.median(found["update_ms"]),
        "images_per_s": rate,
        "epoch_s": EPOCH_IMAGES / rate,
        "memory_gb": found["peak_bytes"] / 1e9,
    }
