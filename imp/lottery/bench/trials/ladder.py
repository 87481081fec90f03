"""One rung of `imp bench ladder`, in the process that is its own."""

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from data_prep import records
from lottery.bench.ladder import Rung
from lottery.bench.parts import pipelines, trainers
from lottery.bench.parts.noise import make_noise
from lottery.bench.parts.plain import PlainStep
from lottery.engine import devices
from lottery.engine.loop import Trainer
from lottery.engine.memory import MemoryFeed
from lottery.recipe import Recipe, resolve

CLASSES = 10
WARM_UP = 3  # steps or calls: the first compiles

Steps = Callable[[int], None]


def measure_rung(recipe: dict[str, Any], rung: dict[str, Any], images: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Milliseconds a step of each run of so many `seconds` (`ms`), and what memory it took at most (`peak_bytes`)."""
    wanted = Rung(**rung)
    train = {"batch": wanted.batch, "precision": wanted.precision, "xla": "on" if wanted.xla else "off", "devices": 1}
    settled = resolve(recipe | {"train": {**recipe["train"], **train, "learning_rate": 1e-3, "warmup": "0"}})
    names = devices.set_up_tensorflow(settled.train)
    with tempfile.TemporaryDirectory() as place:
        manifest = make_noise(Path(place), images, settled.data.size, CLASSES)
        make = _resident if wanted.feed == "resident" else _hosted
        with trainers.peak_memory(names[0]) as peak:
            take = make(settled, wanted, Path(place), manifest, names)
            take(WARM_UP)
            count = _lasting(take, seconds)
            return {"ms": [1000 * _timed(take, count) / count for _ in range(repeats)], "peak_bytes": peak()}


def _hosted(recipe: Recipe, rung: Rung, folder: Path, manifest: records.Manifest, names: list[str]) -> Steps:
    """Steps of a loop in Python, to which the host brings each batch."""
    path = folder / "examples.tfrecord"
    pipelines.write_examples(path, folder, manifest)
    if rung.feed == "together":
        batches = pipelines.together(path, recipe.data, rung.batch)
    else:
        batches = pipelines.one_by_one(path, recipe.data, rung.batch, scaled=rung.feed == "scaled")
    step = PlainStep(recipe, CLASSES)
    ready: Iterator[Any] = iter(batches.repeat())

    def take(count: int) -> None:
        for images, labels in itertools.islice(ready, count):
            loss = step(images, labels)
        loss.numpy()

    return take


def _resident(recipe: Recipe, rung: Rung, folder: Path, manifest: records.Manifest, names: list[str]) -> Steps:
    """Steps of our loop."""
    feed = MemoryFeed(folder, manifest, recipe.data, tf.distribute.get_strategy(), on_host=devices.on_cpu(names))
    trainer = Trainer(recipe, names, lambda strategy: feed)
    if not rung.many:
        trainer._adapt = lambda count, seconds: None  # type: ignore[method-assign]
    position = 0

    def take(count: int) -> None:
        nonlocal position
        while count:
            taken = min(count, trainer.steps_per_epoch - position % trainer.steps_per_epoch)
            trainer.advance(position, position + taken, order_seed=0)
            position, count = position + taken, count - taken

    return take


def _lasting(take: Steps, seconds: float) -> int:
    """How many steps take so long."""
    count, took = 1, _timed(take, 1)
    while took < seconds / 4:
        count *= 2
        took = _timed(take, count)
    return math.ceil(count * seconds / took)


def _timed(take: Steps, count: int) -> float:
    began = time.perf_counter()
    take(count)
    return time.perf_counter() - began
