"""`imp bench profile`: where a training step's time goes, from TensorFlow's own trace of it."""

import importlib.util
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from lottery.base.errors import InputError
from lottery.base.progress import count_of
from lottery.bench import timing
from lottery.bench.harness import MOBILENET, STILL, Bench, Recipe, measurement, size_of, with_training
from lottery.bench.sheet import Column, bars

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


@measurement(network=MOBILENET)
def profile(
    bench: Bench,
    cprofile: Annotated[bool, typer.Option("--cprofile", help="Also DIR/profile.prof of the host, for snakeviz.")] = False,
    nvtx: Annotated[bool, typer.Option("--nvtx", help="Ranges that NVIDIA's Nsight shows; needs the package nvtx.")] = False,
) -> None:
    """Where a step's time goes: input, forward, backward, update, mask, host; and with --out the trace that says so."""
    if cprofile and not bench.out:
        raise InputError("--cprofile writes a file: say where with --out DIR")
    if nvtx and not importlib.util.find_spec("nvtx"):
        raise InputError("--nvtx needs a package that is not installed: pip install nvtx")
    recipe = bench.recipe()
    train = recipe.train
    with tempfile.TemporaryDirectory() as place:
        folder = bench.out / "profile-trace" if bench.out else Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        host_profile = bench.out / "profile.prof" if bench.out and cprofile else None
        bench.reporter.say(f"tracing {recipe.model.name}")
        traced = bench.call(
            trace_steps,
            recipe=with_training(recipe, **STILL),
            images=max(bench.pick(None, 6_400, 640), 2 * train.batch),
            seconds=bench.seconds,
            repeats=bench.pick(None, 4, 1),
            folder=folder,
            host_profile=host_profile,
            nvtx=nvtx,
        )
    if bench.out:
        bench.closing.append(f"the trace: {traced['shown']}")
    if host_profile:
        bench.closing.append(f"the host's part: `snakeviz {host_profile}` shows it (snakeviz installed)")
    bench.rows += traced["rows"]
    title = f"Where a step's time goes: {recipe.model.name}, {size_of(recipe)}, batch {train.batch}, {train.precision}"
    figure = bars(bench.rows, "name", "ms_per_step", "ms a step")
    bench.sheet(title, COLUMNS, figure, *traced["notes"], **traced["extras"])


def trace_steps(
    recipe: Recipe, images: int, seconds: float, repeats: int, folder: Path, host_profile: Path | None, nvtx: bool
) -> dict[str, Any]:
    """Train for `seconds`, or an epoch of so many made-up `images`: `repeats` times as ever, then under a trace, then as often
    as ever again, all the same `steps`; with a `host_profile`, once more under cProfile, which is written there; `nvtx`: with
    ranges that NVIDIA's tools see.

    Returns the `rows`, `notes` and `extras` of the sheet, and how to look at the trace below `folder` (`shown`).
    """
    import cProfile

    import tensorflow as tf

    from lottery.bench import loops, traces
    from lottery.engine import devices, profiling

    names = devices.set_up_tensorflow(recipe.train)
    trainer = loops.on_noise(recipe, names, images)(masked=True)
    if nvtx:
        annotate = importlib.import_module("nvtx").annotate
        trainer.marking = lambda name: annotate(name, domain="imp")
    take_steps = loops.stepping(trainer)
    steps = timing.lasting(take_steps, seconds, trainer.steps_per_epoch)
    take = partial(take_steps, steps)
    walls = [timing.seconds_of(take) for _ in range(repeats)]
    with tf.profiler.experimental.Profile(str(folder)), tf.profiler.experimental.Trace(traces.MARK):
        take()
    walls += [timing.seconds_of(take) for _ in range(repeats)]
    if host_profile:
        with cProfile.Profile() as profile:
            take()
        profile.dump_stats(host_profile)
    if nvtx:
        trainer.evaluate("validation")
    source, shown = profiling.convert_newest(folder)
    lanes, first, last, seen_on_gpu = traces.read(source)
    spent, operations = traces.divide(lanes, first, last)
    traced_ms, step_ms = (last - first) / 1e9 / steps, statistics.median(1000 * wall / steps for wall in walls)
    shares = {part: time / (last - first) for part, time in spent.items()}
    rows = [
        {"name": part, "ms_per_step": share * traced_ms, "share": share, "operations": operations[part] / steps}
        for part, share in shares.items()
    ]
    whole = (
        f"{count_of(steps, 'step')} traced: {traced_ms:,.2f} ms each, {step_ms:,.2f} without the trace (median of "
        f"{count_of(len(walls), 'run')}), which costs {traced_ms / step_ms - 1:+.1%}"
    )
    notes = [whole, *NOTES, *([UNSEEN] if not seen_on_gpu and not devices.on_cpu(names) else [])]
    return {"rows": rows, "notes": notes, "extras": {"step_ms": step_ms, "traced_step_ms": traced_ms}, "shown": shown}
