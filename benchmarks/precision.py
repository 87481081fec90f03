"""A step in each precision: its time, the optimizer's part, its memory: `python benchmarks/precision.py`."""

import statistics
from typing import TYPE_CHECKING, Any

import turns
from harness import MOBILENET, STILL, Bench, Recipe, duration, measurement, size_of, with_training

from lottery import cli
from lottery.bench import timing
from lottery.bench.sheet import Column, bars

if TYPE_CHECKING:
    from lottery.engine.loop import Trainer

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
EPOCH_IMAGES = 50_000
UPDATES = 20  # in a call, so that its start is little beside them
COLUMNS = (
    Column("name", ""),
    Column("batch", "batch"),
    *duration("step_ms", "ms/step", ",.1f"),
    Column("update_ms", "optimizer, ms", ",.2f"),
    Column("images_per_s", "images/s"),
    Column("epoch_s", "epoch, s", ",.1f"),
    Column("memory_gb", "memory, GB", ".2f"),
)
MEMORY = "memory: that of the process's growth on CPUs, of the device's allocator on GPUs"


@measurement(repeats=7, network=MOBILENET)
def precision(bench: Bench) -> None:
    """A step in float32, mixed bfloat16 and mixed float16: time, the optimizer's part, memory."""
    recipe = bench.recipe()
    for name in PRECISIONS:
        with bench.row(name):
            bench.rows.append(row(bench, name, with_training(recipe, precision=name)))
    bench.sheet(
        f"Precision: {recipe.model.name}, {size_of(recipe)}",
        COLUMNS,
        bars(bench.rows, "name", "images_per_s", f"{bench.noun} a second"),
        f"epoch: {EPOCH_IMAGES:,} images; optimizer: its update alone, which is part of the step; {MEMORY}",
        f"{bench.apart}; {recipe.train.threads} intra-op threads",
    )


def row(bench: Bench, name: str, recipe: Recipe) -> dict[str, Any]:
    """What a step of `recipe` takes, as a row."""
    batch, how = recipe.train.batch, {"seconds": bench.seconds, "repeats": bench.repeats}
    walls, updates, memory = bench.call(time_steps, recipe=with_training(recipe, **STILL), images=2 * batch, **how)
    cells: dict[str, Any] = {"name": name, "batch": batch, **timing.spread("step_ms", [1000 * wall for wall in walls])}
    cells |= {"update_ms": 1000 * statistics.median(updates), "images_per_s": 1000 * batch / cells["step_ms"]}
    return cells | {"epoch_s": EPOCH_IMAGES / cells["images_per_s"], "memory_gb": memory}


def time_steps(recipe: Recipe, images: int, seconds: float, repeats: int) -> tuple[list[float], list[float], float]:
    """Train the recipe's network on so many examples of noise. Returns seconds of a step, in each run of so many `seconds`;
    seconds of the optimizer's part of it; and the most GB of memory that it took."""
    import loops

    from lottery.engine import devices

    names = devices.set_up_tensorflow(recipe.train)
    with timing.peak_memory(names[0]) as peak:
        trainer = loops.on_noise(recipe, names, images)()
        walls = turns.step_walls(loops.stepping(trainer), seconds, repeats)
        peak_gb = peak() / 1e9
    return walls, [wall / UPDATES for wall in turns.runs(_updates(trainer), repeats)], peak_gb


def _updates(trainer: "Trainer") -> turns.Work:
    """A function in which an optimizer like the trainer's takes `UPDATES` steps."""
    import tensorflow as tf

    from lottery.engine.optimizers import Optimizer
    from lottery.engine.step import moving_statistics

    variables = trainer.model.trainable_variables
    optimizer = Optimizer(trainer.train, variables, moving_statistics(trainer.model))
    gradients = [tf.zeros(variable.shape, variable.dtype) for variable in variables]

    @tf.function
    def updates() -> tf.Tensor:
        for _ in tf.range(UPDATES):
            optimizer.apply(gradients, tf.constant(1e-3), {})
        return variables[0].value[..., 0]

    return lambda: updates().numpy()


if __name__ == "__main__":
    cli.main(precision)
