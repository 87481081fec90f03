"""What a training costs in time and memory, in the process that is its own: one row of `imp bench precision` and `remat`."""

import math
import resource
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from lottery.bench import measure
from lottery.bench.parts import trainers
from lottery.engine import devices
from lottery.engine.loop import Trainer
from lottery.engine.optimizers import Optimizer
from lottery.engine.step import moving_statistics
from lottery.recipe import resolve

CLASSES = 10
BATCHES = 2  # in an epoch of made-up images
UPDATES = 20  # in a call, so that its start is little beside them


def measure_cost(recipe: dict[str, Any], seconds: float, repeats: int, limit_bytes: int) -> dict[str, Any]:
    """Milliseconds of a step (`step_ms`) and of the optimizer's part of it (`update_ms`), of each run of so many `seconds`, and
    what memory it took at most (`peak_bytes`). On CPUs the process may grow by `limit_bytes`; what needs more fails."""
    settled = resolve(recipe)
    names = devices.set_up_tensorflow(settled.train)
    if devices.on_cpu(names):
        _limit(limit_bytes)
    feed = trainers.noise_feed(BATCHES * settled.train.batch, CLASSES, settled.data, devices.on_cpu(names))
    with trainers.peak_memory(names[0]) as peak:
        trainer = Trainer(settled, names, lambda strategy: feed)
        trainers.steps(trainer, seconds)
        step_ms = _runs(trainers.goes(trainer, BATCHES), BATCHES, seconds, repeats)
        peak_bytes = peak()
    return {"step_ms": step_ms, "update_ms": _runs(_updates(trainer), UPDATES, seconds / 4, repeats), "peak_bytes": peak_bytes}


def _updates(trainer: Trainer) -> measure.Work:
    """A function in which an optimizer like the trainer's takes `UPDATES` steps."""
    variables = trainer.model.trainable_variables
    optimizer = Optimizer(trainer.train, variables, moving_statistics(trainer.model))
    gradients = [tf.zeros(variable.shape, variable.dtype) for variable in variables]

    @tf.function
    def updates() -> tf.Tensor:
        for _ in tf.range(UPDATES):
            optimizer.apply(gradients, tf.constant(1e-3), {})
        return variables[0].value[..., 0]

    return lambda: updates().numpy()


def _runs(work: measure.Work, parts: int, seconds: float, repeats: int) -> list[float]:
    """Milliseconds of each of the `parts` of `work`, in each run of so many seconds."""
    work()
    goes = max(1, math.ceil(seconds / _timed(work, 1)))
    return [1000 * _timed(work, goes) / goes / parts for _ in range(repeats)]


def _timed(work: measure.Work, goes: int) -> float:
    began = time.perf_counter()
    for _ in range(goes):
        work()
    return time.perf_counter() - began


def _limit(growth: int) -> None:
    """Let this process's memory grow by so many bytes and no more."""
    lines = Path("/proc/self/status").read_text().splitlines()
    now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + growth, resource.RLIM_INFINITY))
