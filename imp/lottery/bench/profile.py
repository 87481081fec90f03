"""`imp bench profile`: where a training step's time goes, from TensorFlow's own trace of it, in a process of its own."""

import contextlib
import importlib.util
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.errors import InputError
from lottery.bench import apart, measure
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.progress import Reporter
from lottery.recipe import Recipe
from lottery.tables import count_of

IMAGES, SMALL = 6_400, 640
GO_SECONDS, SMALL_GO_SECONDS = 1.0, 0.1
REPEATS, FEW = 4, 1
COLUMNS = (
    Column("name", ""),
    Column("ms_per_step", "ms/step", ",.3f"),
    Column("share", "share", ".1%"),
    Column("operations", "operations/step", ",.1f"),
)
NOTES = (
    "forward: with the loss; mask: the choice of gradients, but where XLA makes it one operation with the update; other: "
    "operations in none of these parts; host: no operation runs, for Python, the scheduler or other programs do",
    "an instant in which several operations run is divided among them equally",
    "a random half of each kernel is pruned; images of noise, in memory",
)
UNSEEN = "the trace has no operations of the GPU (has another profiler taken it?): these are the host's, which only start them"


def bench_profile(
    recipe: Recipe, quick: bool, out: Path | None, cprofile: bool, nvtx: bool, reporter: Reporter
) -> tuple[Sheet, list[str]]:
    """A row for each part of the step, and lines that say how to look at what was written: the trace below `out`/profile-trace
    and, with `cprofile`, what Python did in `out`/profile.prof. `nvtx`: with ranges for NVIDIA's tools. Raises InputError."""
    if cprofile and not out:
        raise InputError("--cprofile writes a file: say where with --out DIR")
    if nvtx and not importlib.util.find_spec("nvtx"):
        raise InputError("--nvtx needs a package that is not installed: pip install nvtx")
    host_profile = out / "profile.prof" if out and cprofile else None
    train = recipe.train.model_copy(update={"devices": 1, "learning_rate": 1e-3, "warmup": "0"})
    with _folder(out) as folder:
        reporter.say(f"tracing {recipe.model.name}")
        try:
            found = apart.call(
                "lottery.bench.trials.profile:measure_parts",
                recipe=recipe.model_copy(update={"train": train}).model_dump(),
                images=SMALL if quick else IMAGES,
                seconds=SMALL_GO_SECONDS if quick else GO_SECONDS,
                repeats=FEW if quick else REPEATS,
                folder=str(folder),
                host_profile=host_profile and str(host_profile),
                nvtx=nvtx,
            )
        except apart.Refused as error:
            raise InputError(str(error)) from None
    lines = [f"the trace: {found['shown']}"] if out else []
    lines += [f"the host's part: `snakeviz {host_profile}` shows it (snakeviz installed)"] if host_profile else []
    return _sheet(recipe, found), lines


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Where the trace goes: to stay, if there is an `out`."""
    if out:
        folder = out / "profile-trace"
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    else:
        with tempfile.TemporaryDirectory() as place:
            yield Path(place)


def _sheet(recipe: Recipe, found: dict[str, Any]) -> Sheet:
    size, train, steps, traced = recipe.data.size, recipe.train, found["steps"], found["traced_ms"]
    rows = [
        {"name": part, "ms_per_step": share * traced, "share": share, "operations": found["operations"][part] / steps}
        for part, share in found["shares"].items()
    ]
    step_ms = statistics.median(found["step_ms"])
    whole = (
        f"{count_of(steps, 'step')} traced: {traced:,.2f} ms each, {step_ms:,.2f} without the trace (median of "
        f"{count_of(len(found['step_ms']), 'run')}), which costs {traced / step_ms - 1:+.1%}"
    )
    notes = [whole, *NOTES, *([UNSEEN] if found["on_gpu"] and not found["seen_on_gpu"] else [])]
    title = f"Where a step's time goes: {recipe.model.name}, {size}x{size}, batch {train.batch}, {train.precision}"
    extras = {"step_ms": step_ms, "traced_step_ms": traced}
    return Sheet("profile", title, measure.machine(), COLUMNS, rows, Bars("name", "ms_per_step", "ms a step"), notes, extras)
