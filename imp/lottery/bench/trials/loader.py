"""One row of `imp bench loader`, in the process that is its own."""

import tempfile
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from data_prep import records
from lottery.bench.parts import pipelines
from lottery.bench.parts.noise import make_noise
from lottery.bench.parts.plain import PlainStep
from lottery.engine import devices
from lottery.engine.loop import Trainer
from lottery.engine.memory import MemoryFeed
from lottery.engine.stream import StreamFeed
from lottery.recipe import Recipe, resolve

CLASSES = 10


def measure_loading(recipe: dict[str, Any], how: int | str, images: int, repeats: int) -> list[tuple[float, float]]:
    """Seconds that the steps of an epoch waited for images, and seconds of the epoch, for each of `repeats` epochs; `how` is a
    number of workers, `stream` or `memory`."""
    train = {"devices": 1, "learning_rate": 1e-3, "warmup": "0"}
    settled = resolve(recipe | {"train": {**recipe["train"], **train}})
    names = devices.set_up_tensorflow(settled.train)
    with tempfile.TemporaryDirectory() as place:
        manifest = make_noise(Path(place), images, settled.data.size, CLASSES)
        if isinstance(how, str):
            return _ours(settled, how, Path(place), manifest, names, repeats)
        return _hosted(settled, how, Path(place), manifest, repeats)


def _hosted(recipe: Recipe, workers: int, folder: Path, manifest: records.Manifest, repeats: int) -> list[tuple[float, float]]:
    path = folder / "examples.tfrecord"
    pipelines.write_examples(path, folder, manifest)
    batches = pipelines.one_by_one(path, recipe.data, recipe.train.batch, workers)
    step = PlainStep(recipe, CLASSES)
    found = []
    for _ in range(1 + repeats):
        began, waited = time.perf_counter(), 0.0
        ready = iter(batches)
        while True:
            asked = time.perf_counter()
            batch = next(ready, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            step(*batch).numpy()
        found.append((waited, time.perf_counter() - began))
    return found[1:]


def _ours(
    recipe: Recipe, how: str, folder: Path, manifest: records.Manifest, names: list[str], repeats: int
) -> list[tuple[float, float]]:
    on_cpu = devices.on_cpu(names)
    feed: MemoryFeed | StreamFeed
    if how == "memory":
        feed = MemoryFeed(folder, manifest, recipe.data, tf.distribute.get_strategy(), on_host=on_cpu)
    else:
        feed = StreamFeed(folder, manifest, recipe.data, names)
    trainer = Trainer(recipe, names, lambda strategy: feed)
    found = []
    for epoch in range(1 + repeats):
        began, waited = time.perf_counter(), trainer.waited
        first = epoch * trainer.steps_per_epoch
        trainer.advance(first, first + trainer.steps_per_epoch, order_seed=0)
        found.append((trainer.waited - waited, time.perf_counter() - began))
    return found[1:]
