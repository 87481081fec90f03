"""Where a training step's time goes, from TensorFlow's own trace of it: `python benchmarks/profile_step.py`."""

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import traces
import turns
from harness import MOBILENET, STILL, Bench, Recipe, measurement, size_of, with_training

from lottery import cli
from lottery.base.progress import count_of
from lottery.bench.sheet import Column, Rows, bars

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
def profile(bench: Bench) -> None:
    """Where a step's time goes: input, forward, backward, update, mask, host; and with --out the trace that says so."""
    recipe = bench.recipe()
    train = recipe.train
    with tempfile.TemporaryDirectory() as place:
        folder = bench.out / "profile-trace" if bench.out else Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        bench.reporter.say(f"tracing {recipe.model.name}")
        images = max(bench.pick(None, 6_400, 640), 2 * train.batch)
        how: dict[str, Any] = {"seconds": bench.seconds, "repeats": bench.pick(None, 4, 1), "folder": folder}
        rows, whole, shown = bench.call(trace_steps, recipe=with_training(recipe, **STILL), images=images, **how)
    if bench.out:
        bench.closing.append(f"the trace: {shown}")
    bench.rows += rows
    title = f"Where a step's time goes: {recipe.model.name}, {size_of(recipe)}, batch {train.batch}, {train.precision}"
    bench.sheet(title, COLUMNS, bars(bench.rows, "name", "ms_per_step", "ms a step"), whole, *NOTES)


def trace_steps(recipe: Recipe, images: int, seconds: float, repeats: int, folder: Path) -> tuple[Rows, str, str]:
    """Train for `seconds`, or an epoch of so many made-up `images`: `repeats` times as ever, then under a trace, then as often
    as ever again, all the same steps. Returns the rows of the sheet, a line on what the trace costs, and how to look at the
    trace below `folder`."""
    import loops
    import tensorflow as tf

    from lottery.engine import devices, profiling

    names = devices.set_up_tensorflow(recipe.train)
    trainer = loops.on_noise(recipe, names, images)(masked=True)
    take_steps = loops.stepping(trainer)
    steps = turns.lasting(take_steps, seconds, trainer.steps_per_epoch)
    take = partial(take_steps, steps)
    walls = [turns.seconds_of(take) for _ in range(repeats)]
    with tf.profiler.experimental.Profile(str(folder)), tf.profiler.experimental.Trace(traces.MARK):
        take()
    walls += [turns.seconds_of(take) for _ in range(repeats)]
    source, shown = profiling.convert_newest(folder)
    lanes, first, last, seen_on_gpu = traces.read(source)
    spent, operations = traces.divide(lanes, first, last)
    traced_ms, step_ms = (last - first) / 1e9 / steps, statistics.median(1000 * wall / steps for wall in walls)
    shares = {part: time / (last - first) for part, time in spent.items()}
    rows: Rows = [
        {"name": part, "ms_per_step": share * traced_ms, "share": share, "operations": operations[part] / steps}
        for part, share in shares.items()
    ]
    whole = (
        f"{count_of(steps, 'step')} traced: {traced_ms:,.2f} ms each, {step_ms:,.2f} without the trace (median of "
        f"{count_of(len(walls), 'run')}), which costs {traced_ms / step_ms - 1:+.1%}"
    )
    return rows, whole if seen_on_gpu or devices.on_cpu(names) else f"{whole}; {UNSEEN}", shown


if __name__ == "__main__":
    cli.main(profile)
