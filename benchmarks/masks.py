"""What a mask costs, inside the compiled step and as a Python callback after each batch: `python benchmarks/masks.py`."""

from functools import partial
from typing import Any

import turns
from harness import MOBILENET, STILL, Bench, Recipe, duration, measurement, size_of, with_training

from lottery import cli
from lottery.base.progress import Reporter
from lottery.bench import timing
from lottery.bench.sheet import Column, bars

COLUMNS = (Column("name", ""), *duration("ms_per_step", "ms/step", ",.2f"), Column("mask_share", "mask's share", ".1%"))


@measurement(repeats=7, network=MOBILENET)
def masks(bench: Bench) -> None:
    """What a mask costs: inside the compiled step, and as a Python callback after each batch."""
    recipe = with_training(bench.image_recipe(), **STILL)
    train = recipe.train
    images = max(bench.pick(None, 6_400, 640), 2 * train.batch)
    walls = bench.call(time_masks, recipe=recipe, images=images, seconds=bench.seconds, repeats=bench.repeats)
    for index, (name, seconds) in enumerate(walls.items()):
        row = {"name": name, **timing.spread("ms_per_step", [1000 * wall for wall in seconds])}
        share = 1 - bench.rows[-1]["ms_per_step"] / row["ms_per_step"] if index % 2 else None
        bench.rows.append({**row, "mask_share": share})
    bench.sheet(
        f"A mask of half of each kernel: {recipe.model.name}, {size_of(recipe)}, batch {train.batch}, {train.precision}",
        COLUMNS,
        bars(bench.rows, "name", "ms_per_step", "ms a step", spread=True),
        "mask's share: of the step's time, against the row above it",
        bench.medians,
    )


def time_masks(recipe: Recipe, images: int, seconds: float, repeats: int) -> turns.Walls:
    """Seconds of a step of each contender, every second one with a mask."""
    import keras
    import loops

    from lottery.engine import devices

    names = devices.set_up_tensorflow(recipe.train)
    keras.utils.set_random_seed(0)
    make = loops.on_noise(recipe, names, images)
    masked = make(masked=True)
    take = loops.stepping(masked)
    steps = turns.lasting(take, seconds, masked.steps_per_epoch)
    fit = partial(loops.stock_fit, recipe, steps * recipe.train.batch, masked.xla)
    contenders: dict[str, turns.Work] = {
        "our loop, no mask": partial(loops.stepping(make()), steps),
        "our loop, mask in the compiled step": partial(take, steps),
        "Keras fit, no mask": fit(),
        "Keras fit, mask by a callback after the batch": fit(callbacks=[mask_after_batch()]),
    }
    walls = turns.in_turn(contenders, repeats, Reporter())
    return {name: [wall / steps for wall in run_walls] for name, run_walls in walls.items()}


def mask_after_batch() -> Any:
    """A callback of Keras that multiplies every kernel by a random mask of its half after each batch, by way of NumPy."""
    import keras
    import numpy as np

    class MaskAfterBatch(keras.callbacks.Callback):
        def on_train_begin(self, logs: object = None) -> None:
            rng = np.random.default_rng(0)
            kernels = [weight for weight in self.model.trainable_weights if weight.path.endswith("kernel")]
            self.kept = {weight.path: rng.random(weight.shape) < 0.5 for weight in kernels}

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            for layer in self.model.layers:
                if any(weight.path in self.kept for weight in layer.weights):
                    values = zip(layer.weights, layer.get_weights(), strict=True)
                    layer.set_weights([value * self.kept.get(weight.path, True) for weight, value in values])

    return MaskAfterBatch()


if __name__ == "__main__":
    cli.main(masks)
