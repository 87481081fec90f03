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
    bench = _Bench(repeats, quick, reporter)
    with apart.calling(together=quick) as call:
        for name in PRECISIONS:
            bench.add(name, _with(recipe, precision=name), call)
    return bench.sheet("precision", "Precision", recipe), bench.failed


def bench_remat(
    recipe: Recipe, largest: int, memory_gb: float, repeats: int, quick: bool, reporter: Reporter
) -> tuple[Sheet, list[str]]:
    """Rows without and with rematerialisation, at the recipe's batch and at the largest that fits, which is sought by halving
    from `largest`; on CPUs what fits is what takes `memory_gb` at most (0: half of what is free)."""
    bench = _Bench(repeats, quick, reporter, int(memory_gb * 1e9) or capacity.host_budget(0))
    with apart.calling(together=quick) as call:
        for remat, name in ((False, "activations held"), (True, "computed twice")):
            own = _with(recipe, remat=remat)
            bench.add(name, own, call)
            bench.add_largest(f"{name}, largest batch", own, largest)
    return bench.sheet("remat", "Rematerialisation", recipe), bench.failed


class _Bench:
    """Rows in the making: medians of `repeats` runs, on CPUs in `limit` bytes of memory; `failed` names what has none."""

    def __init__(self, repeats: int, quick: bool, reporter: Reporter, limit: int = 1 << 62):
        self.repeats, self.quick, self.reporter, self.limit = repeats, quick, reporter, limit
        self.seconds = SMALL_RUN_SECONDS if quick else RUN_SECONDS
        self.rows: list[dict[str, Any]] = []
        self.failed: list[str] = []

    def add(self, name: str, recipe: Recipe, call: apart.Call) -> None:
        """Measure `recipe`."""
        try:
            self._measure(name, recipe, call)
        except Failed as error:
            self._say_failed(name, error)

    def add_largest(self, name: str, recipe: Recipe, batch: int) -> None:
        """Measure `recipe` with the first of `batch` and its halves that fits, as long as it is more than the recipe's own;
        each in a process of its own, because one that takes too much is ended."""
        while batch > recipe.train.batch:
            try:
                self._measure(name, _with(recipe, batch=batch), apart.call)
                return
            except TooLarge as error:
                self.reporter.say(f"{name}: batch {batch} does not fit ({error}), trying half of it")
                batch //= 2
            except Failed as error:
                self._say_failed(name, error)
                return

    def sheet(self, command: str, what: str, recipe: Recipe) -> Sheet:
        title = f"{what}: {recipe.model.name}, {recipe.data.size}x{recipe.data.size}"
        notes = [
            *NOTES,
            f"medians of {self.repeats} runs, {apart.note(self.quick)}; {recipe.train.threads} intra-op threads",
        ]
        figure = Bars("name", "images_per_s", "images a second")
        return Sheet(command, title, measure.machine(), COLUMNS, self.rows, figure, notes)

    def _measure(self, name: str, recipe: Recipe, call: apart.Call) -> None:
        self.reporter.say(f"measuring {name}, batch {recipe.train.batch}")
        found = call(
            "lottery.bench.trials.cost:measure_cost",
            recipe=_with(recipe, devices=1, learning_rate=1e-3, warmup="0").model_dump(),
            seconds=self.seconds,
            repeats=self.repeats,
            limit_bytes=self.limit,
        )
        self.rows.append(_row(name, recipe, found))

    def _say_failed(self, name: str, error: Failed) -> None:
        self.reporter.say(f"failed: {name}: {error}")
        self.failed.append(name)


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
