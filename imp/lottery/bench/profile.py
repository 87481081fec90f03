"""`imp bench profile`: where a training step's time goes, from TensorFlow's own trace of it."""

import contextlib
import importlib.util
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from data_prep.errors import InputError
from lottery.bench import timing
from lottery.bench.harness import MOBILENET, STILL, Bench, Recipe, measurement, with_training
from lottery.bench.sheet import Bars, Column, Sheet
from lottery.progress import count_of

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
) -> Sheet:
    """Where a step's time goes: input, forward, backward, update, mask, host; and with --out the trace that says so."""
    if cprofile and not bench.out:
        raise InputError("--cprofile writes a file: say where with --out DIR")
    if nvtx and not importlib.util.find_spec("nvtx"):
        raise InputError("--nvtx needs a package that is not installed: pip install nvtx")
    recipe = bench.recipe()
    with contextlib.ExitStack() as stack:
        folder = bench.out / "profile-trace" if bench.out else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        host_profile = bench.out / "profile.prof" if bench.out and cprofile else None
        bench.reporter.say(f"tracing {recipe.model.name}")
        traced = bench.call(
            trace_steps,
            recipe=with_training(recipe, **STILL),
            images=max(bench.pick(None, 6_400, 640), 2 * recipe.train.batch),
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
    return _sheet(bench, recipe, traced)


def _sheet(bench: Bench, recipe: Recipe, traced: dict[str, Any]) -> Sheet:
    size, train, steps, traced_ms = recipe.data.size, recipe.train, traced["steps"], traced["traced_ms"]
    rows = [
        {"name": part, "ms_per_step": share * traced_ms, "share": share, "operations": traced["operations"][part] / steps}
        for part, share in traced["shares"].items()
    ]
    step_ms = statistics.median(traced["step_ms"])
    whole = (
        f"{count_of(steps, 'step')} traced: {traced_ms:,.2f} ms each, {step_ms:,.2f} without the trace (median of "
        f"{count_of(len(traced['step_ms']), 'run')}), which costs {traced_ms / step_ms - 1:+.1%}"
    )
    notes = [whole, *NOTES, *([UNSEEN] if traced["on_gpu"] and not traced["seen_on_gpu"] else [])]
    title = f"Where a step's time goes: {recipe.model.name}, {size}x{size}, batch {train.batch}, {train.precision}"
    figure = Bars("name", "ms_per_step", "ms a step")
    return bench.sheet(title, COLUMNS, rows, figure, *notes, step_ms=step_ms, traced_step_ms=traced_ms)


def trace_steps(
    recipe: Recipe, images: int, seconds: float, repeats: int, folder: Path, host_profile: Path | None, nvtx: bool
) -> dict[str, Any]:
    """Train for `seconds`, or an epoch of so many made-up `images`: `repeats` times as ever, then under a trace, then as often
    as ever again, all the same `steps`; with a `host_profile`, once more under cProfile, which is written there; `nvtx`: with
    ranges that NVIDIA's tools see.

    Returns for each of `traces.ROWS` its share of the traced time and the operations in it (`shares`, `operations`);
    milliseconds a step with the trace (`traced_ms`) and of each run without (`step_ms`); whether the operations are those of
    GPUs, and whether they should be (`seen_on_gpu`, `on_gpu`); and how to look at the trace below `folder` (`shown`).
    """
    import cProfile

    import tensorflow as tf

    from lottery.bench import ours, traces
    from lottery.engine import devices, profiling

    names = devices.set_up_tensorflow(recipe.train)
    trainer = ours.OnNoise(recipe, names, images).masked()
    if nvtx:
        annotate = importlib.import_module("nvtx").annotate
        trainer.marking = lambda name: annotate(name, domain="imp")
    take_steps = ours.stepping(trainer)
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
    trace = traces.read(source)
    whole, operations = trace.last - trace.first, trace.counts()
    return {
        "steps": steps,
        "shares": {part: spent / whole for part, spent in traces.divide(*trace[:3]).items()},
        "operations": {part: operations[part] for part in traces.ROWS},
        "traced_ms": whole / 1e9 / steps,
        "step_ms": [1000 * wall / steps for wall in walls],
        "on_gpu": not devices.on_cpu(names),
        "seen_on_gpu": trace.on_gpu,
        "shown": shown,
    }
