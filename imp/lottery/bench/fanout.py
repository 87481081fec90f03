"""`imp bench fanout`: tickets an hour by 1 .. n ranks, beside one process with one thread and with all cores, and what of a
pair is not training."""

import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import Failed, InputError
from data_prep.prepare import Settings
from lottery.bench import measure
from lottery.bench.parts.noise import make_noise
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.grids import parse_interval
from lottery.progress import Reporter
from lottery.tables import count_of

HELD = 0.2  # of the training images, again as validation and as test images


@dataclass(frozen=True)
class Grid:
    """`pairs` one-shot tickets of `model` (`alpha` None where it knows none), each of `epochs` of `images` of `size` x `size`
    in batches of `batch`, looking at validation and test images every `evaluate` (such as 1ep)."""

    model: str
    alpha: float | None
    size: int
    batch: int
    images: int
    epochs: int
    pairs: int
    evaluate: str = "1ep"


@dataclass(frozen=True)
class Row:
    """How `ranks` ranks of `threads` intra-op threads trained a grid, in the median of `repeats` runs; `low` and `high` are the
    slowest and the fastest run's tickets an hour, `ratio` is against the fastest single process.

    `pair_seconds` is a mean over the pairs that were not a rank's first, `other_seconds` what of it was not spent in training
    steps, of which `evaluate_seconds` went into looking at validation and test images, the rest into beginning and ending
    (what is saved on the way counts as training). `start_seconds` passed before the first pair, or were more for it than for
    later ones: start-up, building the graph, compiling.
    """

    ranks: int
    threads: int
    tickets_per_hour: float
    low: float
    high: float
    ratio: float
    pair_seconds: float
    other_seconds: float
    evaluate_seconds: float
    start_seconds: float
    repeats: int

    @property
    def title(self) -> str:
        threads = count_of(self.threads, "thread")
        return f"{self.ranks} ranks, {threads} each" if self.ranks > 1 else f"one process, {threads}"


@dataclass(frozen=True)
class _Run:
    """One retraining of the grid, in seconds."""

    wall: float
    pair: float
    other: float
    evaluate: float
    start: float


@dataclass(frozen=True, order=True)
class _Pair:
    """When a pair was begun, when its result was there, and of the seconds between, those in training steps and those spent
    on looking at validation and test images."""

    begun: float
    ended: float
    trained: float
    evaluated: float


COLUMNS = (
    Column("title", ""),
    Column("tickets_per_hour", "tickets/h", ",.1f"),
    Column("low", "slowest", ",.1f"),
    Column("high", "fastest", ",.1f"),
    Column("ratio", "ratio", ".2f"),
    Column("pair_seconds", "s a pair", ",.1f"),
    Column("other_seconds", "not training, s", ".2f"),
    Column("other_share", "share", ".1%"),
    Column("evaluate_share", "evaluating", ".1%"),
    Column("start_seconds", "start, s", ".1f"),
)


def bench_fanout(grid: Grid, most: int, repeats: int, reporter: Reporter) -> Sheet:
    """Rows of one process with one thread, one with a thread for each core, and 2 .. `most` ranks of one thread.

    Raises InputError when a rank would have but one pair, from which its start cannot be told apart, and for an `evaluate`
    that says nothing.
    """
    parse_interval(grid.evaluate)
    if grid.pairs < 2 * most:
        raise InputError(f"{grid.pairs} pairs are too few for {most} ranks: give each two or more (--pairs {2 * most})")
    settings = [(1, 1), (1, measure.cores()), *((ranks, 1) for ranks in range(2, most + 1))]
    settings = list(dict.fromkeys(settings))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        made_with = dataclasses.asdict(Settings("folder:noise", grid.size))
        (folder / "records").mkdir()
        make_noise(folder / "records", grid.images, grid.size, 10, round(grid.images * HELD), made_with)
        for threads in dict.fromkeys(threads for _, threads in settings):
            reporter.say(f"training the dense network, with {threads} threads")
            _imp(folder, "train", *_recipe(grid, folder, threads))
            _imp(folder, "thresholds", "--run", f"dense-{threads}")
        runs: dict[tuple[int, int], list[_Run]] = {setting: [] for setting in settings}
        for turn in range(repeats):
            for ranks, threads in settings:
                reporter.say(f"run {turn + 1} of {repeats}: {ranks} ranks, {threads} threads")
                runs[ranks, threads].append(_retrain(folder, ranks, threads, grid))
    walls = {setting: statistics.median(run.wall for run in found) for setting, found in runs.items()}
    fastest = min(wall for (ranks, _), wall in walls.items() if ranks == 1)
    rows = [_row(setting, found, grid.pairs, fastest / walls[setting]) for setting, found in runs.items()]
    title = f"{grid.pairs} pairs of {count_of(grid.epochs, 'epoch')}: {grid.model}, {grid.size}x{grid.size}, batch {grid.batch}"
    notes = [
        "ratio: against the fastest single process; not training: of a pair after the first, beginning, evaluating, ending; "
        f"evaluating: every {grid.evaluate}, {2 * round(grid.images * HELD):,} images for {grid.images:,} that are trained on",
        measure.medians(repeats),
    ]
    figure = Bars("title", "tickets_per_hour", "tickets an hour", "low", "high")
    return Sheet("fanout", title, measure.machine(), COLUMNS, [_listed(row) for row in rows], figure, notes)


def _listed(row: Row) -> dict[str, Any]:
    shares = {f"{part}_share": getattr(row, f"{part}_seconds") / row.pair_seconds for part in ("other", "evaluate")}
    return {"title": row.title, **dataclasses.asdict(row), **shares}


def _row(setting: tuple[int, int], runs: Sequence[_Run], pairs: int, ratio: float) -> Row:
    hourly = [3600 * pairs / run.wall for run in runs]
    return Row(
        *setting,
        tickets_per_hour=statistics.median(hourly),
        low=min(hourly),
        high=max(hourly),
        ratio=ratio,
        pair_seconds=statistics.median(run.pair for run in runs),
        other_seconds=statistics.median(run.other for run in runs),
        evaluate_seconds=statistics.median(run.evaluate for run in runs),
        start_seconds=statistics.median(run.start for run in runs),
        repeats=len(runs),
    )


def _recipe(grid: Grid, folder: Path, threads: int) -> list[str]:
    """The options of `imp train` that make the dense network of `grid`."""
    quantiles = ",".join(f"{50 + 49 * index / grid.pairs:g}" for index in range(grid.pairs))
    values = {
        "model.name": grid.model,
        **({} if grid.alpha is None else {"model.alpha": grid.alpha}),
        "train.batch": grid.batch,
        "train.epochs": grid.epochs,
        "train.evaluate": grid.evaluate,
        "train.threads": threads,
        "train.warmup": "0",
        "train.snapshots": "0",
        "thresholds.quantiles": quantiles,
        "retrain.rewind": "0",
        "retrain.controls": "[]",
    }
    sets = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    return ["--run", f"dense-{threads}", "--records", str(folder / "records"), *sets]


def _retrain(folder: Path, ranks: int, threads: int, grid: Grid) -> _Run:
    """Train the grid from its dense network and its masks, in a run directory of its own."""
    run = folder / "run"
    shutil.copytree(folder / f"dense-{threads}", run)
    began = time.time()
    _imp(folder, "retrain", "--run", "run", "--ranks", str(ranks))
    wall = time.time() - began
    pairs = sorted(_pair(path) for path in run.glob("replicate-1/retrain/*/ticket/result.json"))
    first, later = pairs[0], pairs[ranks:]
    pair = statistics.fmean(one.ended - one.begun for one in later)
    shutil.rmtree(run)
    return _Run(
        wall,
        pair,
        pair - statistics.fmean(one.trained for one in later),
        statistics.fmean(one.evaluated for one in later),
        first.begun - began + (first.ended - first.begun) - pair,
    )


def _pair(result: Path) -> _Pair:
    steps, trained, seconds = 0, 0.0, 0.0
    batch = json.loads((result.parent / "made_with.json").read_text())["values"]["train.batch"]
    for line in (result.parent / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        trained += (row["step"] - steps) * batch / row["timing"]["images_per_second"]
        seconds += row["timing"]["seconds"]
        steps = row["step"]
    begun, ended = ((result.parent / name).stat().st_mtime for name in ("made_with.json", "result.json"))
    return _Pair(begun, ended, trained, seconds - trained)


def _imp(folder: Path, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "lottery", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"imp {arguments[0]} ended with code {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
