"""`imp bench ladder`, `precision` and `remat`: what a training step takes of time and memory, in one way and another."""

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.base.errors import InputError
from lottery.bench import timing
from lottery.bench.harness import MOBILENET, STILL, Bench, Recipe, TooLarge, machine, measurement, size_of, with_training
from lottery.bench.sheet import Column, bars, duration, rate

if TYPE_CHECKING:
    from lottery.engine.loop import Trainer

BASE = "baseline: float32, small batch, a call a step"
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
EPOCH_IMAGES = 50_000
UPDATES = 20  # in a call, so that its start is little beside them
LADDER_COLUMNS = (
    Column("name", ""),
    Column("batch", "batch"),
    Column("memory_gb", "memory, GB", ".2f"),
    Column("ms_per_step", "ms/step", ",.2f"),
    *rate("images_per_s", "images/s"),
    Column("share", "of the baseline", ".0%"),
    Column("kept", "kept"),
)
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
def ladder(
    bench: Bench,
    batch: Annotated[int, typer.Option(min=1, help="The batch before it is made larger.")] = 32,
) -> None:
    """A plain training, made faster by one thing after another, in the order that pays."""
    recipe = bench.image_recipe()
    larger = recipe.train.batch
    if batch > larger:
        raise InputError(f"--batch {batch} is to be the smaller one, but the recipe has train.batch {larger}")
    plain = recipe.model_copy(update={"data": recipe.data.model_copy(update={"crop": 0, "flip": False})})
    images = max(bench.pick(None, 12_800, 1_280), 2 * larger)
    # What each rung changes of the one that it stands on: the `feed` of `time_steps`, or values of the recipe's `train` table.
    rungs: dict[str, dict[str, Any]] = {
        BASE: {"precision": "float32", "batch": batch, "feed": "scaled", "xla": "off"},
        "+ mixed precision": {"precision": "mixed_float16" if machine()["gpus"] else "mixed_bfloat16"},
        "+ larger batch": {"batch": larger},
        "+ uint8 to the device, scaled there": {"feed": "bytes"},
        "+ parsed by batches, in parallel, ahead": {"feed": "together"},
        "+ images resident, our loop": {"feed": "single"},
        "+ many steps a call": {"feed": "many"},
        "+ XLA": {"feed": "many", "xla": "on"},
    }
    below = rungs[BASE]
    for name, change in rungs.items():
        rung = below | change
        with bench.row(name):
            train = {key: value for key, value in rung.items() if key != "feed"}
            walls, _, memory = _measured(bench, with_training(plain, **STILL, **train), images, feed=rung["feed"])
            rates = timing.spread("images_per_s", [rung["batch"] / wall for wall in walls])
            kept = all(rates["images_per_s"] > row["images_per_s"] for row in bench.rows if row["kept"])
            step = {"memory_gb": memory, "ms_per_step": 1000 * statistics.median(walls)}
            bench.rows.append({"name": name, **rung, **step, **rates, "kept": kept})
            below = rung if kept else below
    baseline = next((row["images_per_s"] for row in bench.rows if row["name"] == BASE), None)
    for row in bench.rows:
        row["share"] = baseline and row["images_per_s"] / baseline
    bench.sheet(
        f"From a plain training to ours: {recipe.model.name}, {recipe.data.size}x{recipe.data.size}",
        LADDER_COLUMNS,
        bars(bench.rows, "name", "images_per_s", "images a second", spread=True),
        "each row has all that the rows above it have that were kept, which are those that made it faster; no augmentation; "
        + MEMORY,
        f"{bench.apart}; {recipe.train.threads} intra-op threads",
    )


@measurement(repeats=7, network=MOBILENET)
def precision(bench: Bench) -> None:
    """A step in float32, mixed bfloat16 and mixed float16: time, the optimizer's part, memory."""
    recipe = bench.recipe()
    for name in PRECISIONS:
        with bench.row(name):
            bench.rows.append(_row(bench, name, with_training(recipe, precision=name)))
    _sheet(bench, "Precision", recipe)


@measurement(repeats=7, network=MOBILENET)
def remat(
    bench: Bench,
    largest: Annotated[
        int | None, typer.Option(min=1, help="The batch to begin with in search of the largest.", show_default="4096")
    ] = None,
    memory: Annotated[float, typer.Option(min=0, help="GB that a training may take on CPUs; 0: half of what is free.")] = 0,
) -> None:
    """A step with activations held and with them computed twice, in the same batch and each in its own largest."""
    from lottery.base import capacity

    recipe = bench.recipe()
    limit = int(memory * 1e9) or capacity.host_budget(0)
    for twice, name in ((False, "activations held"), (True, "computed twice")):
        own = with_training(recipe, remat=twice)
        with bench.row(name):
            bench.rows.append(_row(bench, name, own, limit_bytes=limit))
        name = f"{name}, largest batch"
        batch = bench.pick(largest, 4096, 2 * recipe.train.batch)
        with bench.row(name):
            while batch > recipe.train.batch:
                try:  # in a process of its own, because one that takes too much is ended
                    bench.rows.append(_row(bench, name, with_training(own, batch=batch), limit_bytes=limit, alone=True))
                    break
                except TooLarge as error:
                    bench.reporter.say(f"{name}: batch {batch} does not fit ({error}), trying half of it")
                    batch //= 2
    _sheet(bench, "Rematerialisation", recipe)


def _row(bench: Bench, name: str, recipe: Recipe, **how: Any) -> dict[str, Any]:
    batch = recipe.train.batch
    walls, updates, memory = _measured(bench, with_training(recipe, **STILL), 2 * batch, **how)
    row: dict[str, Any] = {"name": name, "batch": batch, **timing.spread("step_ms", [1000 * wall for wall in walls])}
    row |= {"update_ms": 1000 * statistics.median(updates), "images_per_s": 1000 * batch / row["step_ms"]}
    return row | {"epoch_s": EPOCH_IMAGES / row["images_per_s"], "memory_gb": memory}


def _sheet(bench: Bench, what: str, recipe: Recipe) -> None:
    bench.sheet(
        f"{what}: {recipe.model.name}, {size_of(recipe)}",
        COLUMNS,
        bars(bench.rows, "name", "images_per_s", f"{bench.noun} a second"),
        f"epoch: {EPOCH_IMAGES:,} images; optimizer: its update alone, which is part of the step; {MEMORY}",
        f"{bench.apart}; {recipe.train.threads} intra-op threads",
    )


def _measured(bench: Bench, recipe: Recipe, images: int, **how: Any) -> tuple[list[float], list[float], float]:
    return bench.call(time_steps, recipe=recipe, images=images, seconds=bench.seconds, repeats=bench.repeats, **how)


def time_steps(
    recipe: Recipe, images: int, seconds: float, repeats: int, feed: str = "many", limit_bytes: int | None = None
) -> tuple[list[float], list[float], float]:
    """Train the recipe's network on so many examples of noise. Returns seconds of a step, in each run of so many `seconds`;
    seconds of the optimizer's part of it, of ours; and the most GB of memory that it took.

    `feed` is what the host does for each batch. `scaled`: parse image by image, to float32; `bytes`: the same, to uint8;
    `together`: parse a batch at a time, in parallel, ahead; `single`: nothing, the images are resident, but a step is a call;
    `many`: nothing, as we train. On CPUs the process may grow by `limit_bytes`; what needs more fails.
    """
    import resource

    from lottery.bench import loops
    from lottery.engine import devices

    names = devices.set_up_tensorflow(recipe.train)
    if limit_bytes is not None and devices.on_cpu(names):
        resource.setrlimit(resource.RLIMIT_DATA, (timing.memory("VmData") + limit_bytes, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory() as place, timing.peak_memory(names[0]) as peak:
        if feed in ("single", "many"):
            trainer = loops.on_noise(recipe, names, images)()
            if feed == "single":
                trainer._adapt = lambda count, seconds: None  # type: ignore[method-assign]
            take = loops.stepping(trainer)
        else:
            take = loops.plain_stepping(recipe, feed, images, Path(place, "examples.tfrecord"))
        steps = timing.lasting(take, seconds)
        walls = [timing.seconds_of(lambda: take(steps)) / steps for _ in range(repeats)]
        peak_gb = peak() / 1e9
    updates = timing.runs(_updates(trainer), repeats) if feed == "many" else []
    return walls, [wall / UPDATES for wall in updates], peak_gb


def _updates(trainer: "Trainer") -> timing.Work:
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
