"""A stretch of training under a trace, in the process that is its own: what `imp bench profile` tells of."""

import cProfile
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from lottery import masks
from lottery.bench import measure
from lottery.bench.parts import traces, trainers
from lottery.engine import devices, profiling
from lottery.engine.loop import Trainer
from lottery.recipe import Recipe, resolve

CLASSES = 10


def measure_parts(
    recipe: dict[str, Any], images: int, seconds: float, repeats: int, folder: str, host_profile: str | None, nvtx: bool
) -> dict[str, Any]:
    """Train for `seconds`, or an epoch of so many made-up `images`: `repeats` times as ever, then under a trace, then as often
    as ever again, all the same `steps`; with a `host_profile`, once more under cProfile, which is written there.

    Returns for each of `traces.ROWS` its share of the traced time and the operations in it (`shares`, `operations`);
    milliseconds a step with the trace (`traced_ms`) and of each run without (`step_ms`); whether the operations are those of
    GPUs, and whether they should be (`seen_on_gpu`, `on_gpu`); and how to look at the trace below `folder` (`shown`).
    """
    settled = resolve(recipe)
    names = devices.set_up_tensorflow(settled.train)
    trainer = _trainer(settled, names, images)
    if nvtx:
        _mark_ranges(trainer)
    count = trainers.steps(trainer, seconds)
    go = trainers.goes(trainer, count)
    walls = [_timed(go) for _ in range(repeats)]
    with tf.profiler.experimental.Profile(folder), tf.profiler.experimental.Trace(traces.MARK):
        go()
    walls += [_timed(go) for _ in range(repeats)]
    if host_profile:
        with cProfile.Profile() as profile:
            go()
        profile.dump_stats(host_profile)
    if nvtx:
        trainer.evaluate("validation")
    source, shown = profiling.convert_newest(Path(folder))
    trace = traces.read(source)
    whole, operations = trace.last - trace.first, trace.counts()
    return {
        "steps": count,
        "shares": {part: spent / whole for part, spent in trace.times().items()},
        "operations": {part: operations[part] for part in traces.ROWS},
        "traced_ms": whole / 1e9 / count,
        "step_ms": [1000 * wall / count for wall in walls],
        "on_gpu": not devices.on_cpu(names),
        "seen_on_gpu": trace.on_gpu,
        "shown": shown,
    }


def _trainer(recipe: Recipe, names: list[str], images: int) -> Trainer:
    """Under a mask of half of each kernel."""
    feed = trainers.noise_feed(max(images, 2 * recipe.train.batch), CLASSES, recipe.data, devices.on_cpu(names))
    trainer = Trainer(recipe, names, lambda strategy: feed, lambda path, shape: masks.in_scope(path, shape, "kernels"))
    trainers.prune_half(trainer)
    return trainer


def _mark_ranges(trainer: Trainer) -> None:
    """Let the host's ranges be seen in NVIDIA's tools."""
    import nvtx

    trainer.marking = lambda name: nvtx.annotate(name, domain="imp")


def _timed(go: measure.Work) -> float:
    began = time.perf_counter()
    go()
    return time.perf_counter() - began
