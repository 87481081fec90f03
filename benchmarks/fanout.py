"""Tickets an hour by 1 .. n ranks, beside one process with one thread and with all cores: `python benchmarks/fanout.py`."""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from harness import LEARNABLE, Bench, Network, measurement, rate, size_of

from lottery import cli
from lottery.base.errors import Failed, InputError
from lottery.base.progress import count_of
from lottery.bench import timing
from lottery.bench.sheet import Column, bars

HELD = 0.2  # of the training images, again as validation and as test images
COLUMNS = (
    Column("title", ""),
    *rate("tickets_per_hour", "tickets/h", ",.1f"),
    Column("ratio", "ratio", ".2f"),
    Column("pair_seconds", "s a pair", ",.1f"),
    Column("other_seconds", "not training, s", ".2f"),
    Column("other_share", "share", ".1%"),
    Column("evaluate_share", "evaluating", ".1%"),
    Column("start_seconds", "start, s", ".1f"),
)

SHORT: Network = (LEARNABLE[0], (*LEARNABLE[1], "train.epochs=4", "train.warmup=0"))
GRID = ("replicates=1", "train.snapshots=0", "families.oneshot.rewind=0", "families.oneshot.controls=[]")
QUICK = ("model.name=lenet_300_100", "train.epochs=1")

Setting = tuple[int, int]  # ranks, and intra-op threads of each
Seconds = dict[str, float]  # of one retraining, as `_retrain` says


@measurement(repeats=3, network=SHORT)
def fanout(
    bench: Bench,
    images: Annotated[
        int | None, typer.Option(min=10, help="To train on; a fifth as many to validate and to test.", show_default="12800")
    ] = None,
    pairs: Annotated[int, typer.Option(min=2, help="Tickets of the grid.")] = 4,
    ranks: Annotated[int, typer.Option(min=0, help="Up to so many; 0: one for each core.")] = 0,
) -> None:
    """Tickets an hour by 1 .. n ranks, and what of a pair is not training."""
    from noise import make_noise

    from lottery.experiment.reading import to_toml

    most, train = ranks or timing.cores(), bench.pick(images, 12_800, 1_280)
    if pairs < 2 * most:  # of a single pair its start cannot be told apart
        raise InputError(f"{pairs} pairs are too few for {most} ranks: give each two or more (--pairs {2 * most})")
    quantiles = ",".join(f"{50 + 49 * index / pairs:g}" for index in range(pairs))
    recipe = bench.recipe(*QUICK * bench.quick, f"families.oneshot.quantiles={quantiles}", *GRID)
    recipe = recipe.model_copy(update={"families": {"oneshot": recipe.families["oneshot"]}})
    length = count_of(recipe.train.steps, "step") if recipe.train.steps else count_of(recipe.train.epochs, "epoch")
    settings = [(1, 1), (1, timing.cores()), *((count, 1) for count in range(2, most + 1))]
    runs: dict[Setting, list[Seconds]] = {setting: [] for setting in settings}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_noise(folder / "records", train, recipe.records(), held=round(train * HELD))
        (folder / "recipe.toml").write_text(to_toml(recipe))
        for threads in dict.fromkeys(threads for _, threads in runs):
            bench.reporter.say(f"training the dense network, with {count_of(threads, 'thread')}")
            run = f"--run=dense-{threads}"
            _imp(folder, "train", run, "--recipe=recipe.toml", "--records=records", f"--set=train.threads={threads}")
            _imp(folder, "thresholds", run)
        for turn in range(bench.repeats):
            for setting, repeated in runs.items():
                bench.reporter.say(f"run {turn + 1} of {bench.repeats}: {_title(*setting)}")
                repeated.append(_retrain(folder, *setting))
    for (each, threads), repeated in runs.items():
        row: dict[str, Any] = {"title": _title(each, threads), "ranks": each, "threads": threads, "repeats": bench.repeats}
        row |= timing.spread("tickets_per_hour", [3600 * pairs / run["wall"] for run in repeated])
        for part in ("pair", "other", "evaluate", "start"):
            row[f"{part}_seconds"] = statistics.median(run[part] for run in repeated)
        for part in ("other", "evaluate"):
            row[f"{part}_share"] = row[f"{part}_seconds"] / row["pair_seconds"]
        bench.rows.append(row)
    fastest = max(row["tickets_per_hour"] for row in bench.rows if row["ranks"] == 1)
    for row in bench.rows:
        row["ratio"] = row["tickets_per_hour"] / fastest
    bench.sheet(
        f"{pairs} pairs of {length}: {recipe.model.name}, {size_of(recipe)}, batch {recipe.train.batch}",
        COLUMNS,
        bars(bench.rows, "title", "tickets_per_hour", "tickets an hour", spread=True),
        "ratio: against the fastest single process; not training: of a pair after the first, beginning, evaluating, ending; "
        f"evaluating: every {recipe.train.evaluate}, {2 * round(train * HELD):,} images for {train:,} that are trained on",
        bench.medians,
    )


def _retrain(folder: Path, ranks: int, threads: int) -> Seconds:
    """Train the grid from its dense network and its masks, in a run directory of its own.

    Returns the seconds of the `wall`, and in the mean of the pairs that were not a rank's first those of the whole `pair`, of
    what was not spent in training steps (`other`), and of what of that went into looking at validation and test images
    (`evaluate`; the rest into beginning and ending; what is saved on the way counts as training). `start` passed before the
    first pair, or was more for it than for later ones: start-up, building the graph, compiling.
    """
    run = folder / "run"
    shutil.copytree(folder / f"dense-{threads}", run)
    began = time.time()
    _imp(folder, "retrain", "--run", "run", "--ranks", str(ranks))
    wall = time.time() - began
    pairs = sorted(pair_times(path) for path in run.glob("replicate-1/*/*/ticket/result.json"))
    shutil.rmtree(run)
    (begun, ended, _, _), later = pairs[0], pairs[ranks:]
    pair = statistics.fmean(ended - begun for begun, ended, _, _ in later)
    other = pair - statistics.fmean(trained for _, _, trained, _ in later)
    evaluate = statistics.fmean(evaluated for _, _, _, evaluated in later)
    start = begun - began + (ended - begun) - pair
    return {"wall": wall, "pair": pair, "other": other, "evaluate": evaluate, "start": start}


def pair_times(result: Path) -> tuple[float, float, float, float]:
    """When a pair was begun, when its result was there, and of the seconds between, those in training steps and those spent on
    looking at validation and test images."""
    steps, trained, seconds = 0, 0.0, 0.0
    batch = json.loads((result.parent / "made_with.json").read_text())["values"]["train.batch"]
    for line in (result.parent / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        trained += (row["step"] - steps) * batch / row["timing"]["images_per_second"]
        seconds += row["timing"]["seconds"]
        steps = row["step"]
    begun, ended = ((result.parent / name).stat().st_mtime for name in ("made_with.json", "result.json"))
    return begun, ended, trained, seconds - trained


def _title(ranks: int, threads: int) -> str:
    each = count_of(threads, "thread")
    return f"{ranks} ranks, {each} each" if ranks > 1 else f"one process, {each}"


def _imp(folder: Path, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "lottery", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"imp {arguments[0]} ended with code {done.returncode}: {done.stderr.strip().splitlines()[-1]}")


if __name__ == "__main__":
    cli.main(fanout)
