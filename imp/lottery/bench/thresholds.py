"""`imp bench thresholds`: seconds and memory that the masks of a campaign take, beside sorting its magnitudes, without which
they cannot be had."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lottery import masks, store
from lottery.bench import apart, measure
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.grids import parse_quantiles
from lottery.progress import Reporter
from lottery.recipe import Recipe
from lottery.run import Run
from lottery.stages.thresholds import thresholds

DRAW = "lottery.bench.trials.drawn:draw"
CLASSES = 1000
COLUMNS = (
    Column("name", ""),
    Column("weights", "weights"),
    Column("masks", "masks"),
    Column("seconds", "s", ",.2f"),
    Column("low", "fastest", ",.2f"),
    Column("high", "slowest", ",.2f"),
    Column("sort_seconds", "sorting alone, s", ",.2f"),
    Column("bytes_per_weight", "bytes a weight", ",.1f"),
    Column("written_mb", "MB written", ",.1f"),
)


def bench_thresholds(recipes: Sequence[Recipe], quantiles: str, repeats: int, reporter: Reporter) -> Sheet:
    """A row for the freshly drawn network of each of `recipes`: from its snapshot on disk to the masks of `quantiles` and
    their table on disk, what Python and NumPy take to start not counted.

    `bytes_per_weight` is by how much the process grew at most, over the weights that are ranked. Raises InputError for
    quantiles that are none.
    """
    count = len(parse_quantiles(quantiles))
    rows = []
    for recipe in recipes:
        with tempfile.TemporaryDirectory() as place:
            run = Run(Path(place, "run"), _untrained(recipe, f"{place}/records"))
            reporter.say(f"drawing {_name(recipe)}")
            apart.call(DRAW, recipe=run.recipe.model_dump(), folder=str(run.folder), classes=CLASSES)
            reporter.say(f"measuring {_name(recipe)}")
            rows.append(_row(run, quantiles, count, repeats))
    notes = [
        "from the snapshot on disk to masks and table on disk; bytes a weight: the process's growth, of the weights ranked",
        f"medians of {repeats} runs",
    ]
    figure = Bars("name", "seconds", "seconds", "low", "high")
    return Sheet("thresholds", f"The masks of quantiles {quantiles}", measure.machine(), COLUMNS, rows, figure, notes)


def _untrained(recipe: Recipe, records: str) -> Recipe:
    """The recipe of a run of one replicate that does not come to training, so that no point of it can lie past the end."""
    return recipe.model_copy(
        update={
            "replicates": 1,
            "pruning": ["oneshot"],
            "data": recipe.data.model_copy(update={"path": records}),
            "train": recipe.train.model_copy(update={"steps": 1, "schedule": "constant", "warmup": "0", "snapshots": "0"}),
            "retrain": recipe.retrain.model_copy(update={"rewind": "0"}),
        }
    )


def _name(recipe: Recipe) -> str:
    model = recipe.model
    return f"{model.name}, alpha {model.alpha:g}" if model.name == "mobilenet_v2" else model.name


def _row(run: Run, quantiles: str, count: int, repeats: int) -> dict[str, Any]:
    _masks(run, quantiles)
    found = [_masks(run, quantiles) for _ in range(repeats)]
    walls, peaks = zip(*found, strict=True)
    written = sum(path.stat().st_size for path in run.replicate(1).masks.iterdir())
    magnitudes = _magnitudes(run)
    return {
        "name": _name(run.recipe),
        "weights": magnitudes.size,
        "masks": count,
        "seconds": statistics.median(walls),
        "low": min(walls),
        "high": max(walls),
        "sort_seconds": statistics.median(_sorting(magnitudes) for _ in range(repeats)),
        "bytes_per_weight": statistics.median(peaks) / magnitudes.size,
        "written_mb": written / 1e6,
    }


def _masks(run: Run, quantiles: str) -> tuple[float, int]:
    """Seconds and bytes of making all masks of `run` anew."""
    replicate = run.replicate(1)
    shutil.rmtree(replicate.masks, ignore_errors=True)
    replicate.thresholds.unlink(missing_ok=True)
    with measure.peak_memory() as peak:
        began = time.perf_counter()
        thresholds(run, Reporter(quiet=True), quantiles)
        return time.perf_counter() - began, peak()


def _magnitudes(run: Run) -> np.ndarray:
    settings = run.recipe.thresholds
    state = store.load_state(run.replicate(1).snapshot(run.plan().total_steps), slots=False)
    return np.concatenate([np.abs(array).ravel() for array in masks.prunable(state, settings.scope, settings.exclude).values()])


def _sorting(magnitudes: np.ndarray) -> float:
    own = magnitudes.copy()
    began = time.perf_counter()
    own.sort()
    return time.perf_counter() - began
