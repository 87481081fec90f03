"""One row of `imp bench step`, in the process that is its own."""

import statistics
from functools import partial
from typing import Any

import keras

from lottery import masks
from lottery.bench import measure
from lottery.bench.parts import trainers
from lottery.bench.parts.arithmetic import matmul, training_flops
from lottery.bench.parts.stock import stock_fit, stock_network
from lottery.bench.step import Case, Row
from lottery.engine import devices
from lottery.engine.loop import Trainer
from lottery.progress import Reporter

GO_SECONDS = 1.0  # what it takes `fit` to start, some 50 ms, is to be little beside it


def measure_case(case: dict[str, Any]) -> dict[str, Any]:
    """A `Row` of a `Case`, both as JSON has them."""
    return vars(_measure(Case(**case), Reporter()))


def _measure(case: Case, reporter: Reporter) -> Row:
    """Train the network of `case` under a mask, without one, without one again, and by Keras's `fit`, each in its turn, and
    multiply large matrices in another."""
    recipe = case.recipe()
    names = devices.set_up_tensorflow(recipe.train)
    keras.utils.set_random_seed(0)
    feed = trainers.noise_feed(case.images, case.classes, recipe.data, devices.on_cpu(names))
    trainer = partial(Trainer, recipe, names, lambda strategy: feed)
    with trainers.peak_memory(names[0]) as peak:
        masked = trainer(lambda path, shape: masks.in_scope(path, shape, "kernels"))
        trainers.prune_half(masked)
        steps = trainers.steps(masked, GO_SECONDS)
        peak_memory_bytes = peak()
    network = stock_network(recipe.model, case.size, case.classes, case.precision)
    images = steps * case.batch
    product, product_flops = matmul(names[0])
    runs = measure.in_turn(
        {
            "masked": trainers.goes(masked, steps),
            "unmasked": trainers.goes(trainer(), steps),
            "control": trainers.goes(trainer(), steps),
            "matmul": product,
            "fit": stock_fit(network, recipe.train, images, case.size, case.classes, masked.xla),
        },
        case.repeats,
        reporter,
        there_and_back=True,
    )
    walls = {name: [wall for wall, _ in timings] for name, timings in runs.items()}
    seconds, fit_seconds, matmul_seconds = (statistics.median(walls[name]) for name in ("masked", "fit", "matmul"))
    return Row(
        **vars(case),
        images_per_s=images / seconds,
        low=images / max(walls["masked"]),
        high=images / min(walls["masked"]),
        ms_per_step=1000 * seconds / steps,
        peak_memory_bytes=peak_memory_bytes,
        keras_fit_images_per_s=images / fit_seconds,
        keras_ratio=fit_seconds / seconds,
        mask_overhead=_overhead(walls["masked"], walls["unmasked"]),
        control_overhead=_overhead(walls["control"], walls["unmasked"]),
        peak_share=training_flops(network, images) / seconds / (product_flops / matmul_seconds),
    )


def _overhead(walls: list[float], without: list[float]) -> float:
    """The median over the pairs, of which each was run one straight after the other."""
    return statistics.median(wall / plain for wall, plain in zip(walls, without, strict=True)) - 1
