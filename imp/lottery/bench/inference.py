"""`imp bench inference`: exported tickets beside the dense network, in TensorFlow Lite, each in a process of its own."""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import Failed
from lottery.bench import apart, measure
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.progress import Reporter
from lottery.results import lookup
from lottery.run import Run
from lottery.stages import export
from lottery.tables import count_of

KINDS = {"tflite": "float32", "tflite_dynamic": "8-bit kernels"}
RUN_SECONDS, SMALL_RUN_SECONDS = 1.0, 0.02
COLUMNS = (
    Column("name", ""),
    Column("us", "µs an image", ",.1f"),
    Column("low", "fastest", ",.1f"),
    Column("high", "slowest", ",.1f"),
    Column("memory_mb", "memory, MB", ",.1f"),
    Column("file_kb", "file, kB", ",.1f"),
    Column("gzip_kb", "after gzip, kB", ",.1f"),
)


def bench_inference(
    run: Run,
    tickets: Sequence[str],
    replicate: int,
    threads: Sequence[int],
    repeats: int,
    quick: bool,
    reporter: Reporter,
) -> tuple[Sheet, list[str]]:
    """Rows for the dense network and each of `tickets`, in float32 and with kernels quantised to 8 bits (dynamic range), by so
    many `threads`, and the names of those files that could not be made. Raises InputError when there is no such ticket."""
    names = [lookup.DENSE, *(ticket for ticket in tickets if ticket != lookup.DENSE)]
    for name in names:
        lookup.trained(run, run.replicate(replicate), name)
    rows: list[dict[str, Any]] = []
    failed = []
    with tempfile.TemporaryDirectory() as place, apart.calling(together=True) as make, apart.calling(together=quick) as call:
        for name in names:
            for to, kind in KINDS.items():
                title = f"{name}, {kind}"
                reporter.say(f"measuring {title}")
                path = Path(place, f"{len(rows)}.tflite")
                try:
                    given = {
                        "run": str(run.folder.resolve()),
                        "ticket": name,
                        "replicate": replicate,
                        "to": to,
                        "path": str(path),
                    }
                    make("lottery.bench.trials.inference:make_file", **given)
                    rows += [_row(call, title, path, count, repeats, quick) for count in threads]
                except Failed as error:
                    reporter.say(f"failed: {title}: {error}")
                    failed.append(title)
    manifest = run.manifest()
    title = (
        f"Inference by TensorFlow Lite: {run.recipe.model.name}, {manifest.shape[0]}x{manifest.shape[1]}, an image at a time"
    )
    notes = [
        "zeros are computed with like any other weight: a ticket is smaller after gzip, not faster",
        f"medians of {repeats} runs, {apart.note(together=quick)}; memory: by how much it grew",
    ]
    return Sheet(
        "inference", title, measure.machine(), COLUMNS, rows, Bars("name", "us", "µs an image", "low", "high"), notes
    ), failed


def _row(call: apart.Call, title: str, path: Path, threads: int, repeats: int, quick: bool) -> dict[str, Any]:
    seconds = SMALL_RUN_SECONDS if quick else RUN_SECONDS
    found = call(
        "lottery.bench.trials.inference:measure_file", path=str(path), threads=threads, seconds=seconds, repeats=repeats
    )
    content = path.read_bytes()
    return {
        "name": f"{title}, {count_of(threads, 'thread')}",
        "threads": threads,
        "us": statistics.median(found["us"]),
        "low": min(found["us"]),
        "high": max(found["us"]),
        "memory_mb": found["peak_bytes"] / 1e6,
        "file_kb": len(content) / 1e3,
        "gzip_kb": export.gzipped(content) / 1e3,
    }
