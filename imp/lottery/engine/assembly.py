"""The engine of a run: TensorFlow set up, its images at hand, its network compiled."""

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from data_prep import records
from lottery.engine import capacity
from lottery.engine.devices import on_cpu, set_up_tensorflow
from lottery.engine.feed import Feed
from lottery.engine.loop import Maskable, Trainer
from lottery.engine.memory import MemoryFeed
from lottery.engine.stream import StreamFeed
from lottery.progress import Reporter
from lottery.recipe import Data
from lottery.run import Run


def make_feed(
    folder: Path, manifest: records.Manifest, data: Data, strategy: tf.distribute.Strategy, devices: Sequence[str]
) -> Feed:
    """The feed that `data.feed` names; `auto` is in memory where the images fit the budget: on the devices, or else on the
    host. Raises InputError when a record is damaged, and when even streaming needs more than there is."""
    records.check_lengths(folder, manifest)
    on_device = manifest.bytes <= capacity.device_budget(data.budget, devices)
    fits = on_device or manifest.bytes <= capacity.host_budget(data.budget)
    if data.feed == "memory" or (data.feed == "auto" and fits):
        return MemoryFeed(folder, manifest, data, strategy, on_host=on_cpu(devices) or not on_device)
    return StreamFeed(folder, manifest, data, devices)


def make_trainer(
    run: Run,
    reporter: Reporter,
    maskable: Maskable = lambda path, shape: False,
    cores: int | None = None,
    devices: Sequence[str] | None = None,
) -> Trainer:
    """The compiled network of `run`, with its data set at hand; `maskable` as for `Trainer`, `cores` as for
    `set_up_tensorflow`, which is left out where `devices` names what that returned before."""
    names = devices or set_up_tensorflow(run.recipe.train, cores)
    folder, manifest = run.records(), run.manifest()
    trainer = Trainer(
        run.recipe, names, lambda strategy: make_feed(folder, manifest, run.recipe.data, strategy, names), maskable
    )
    kept = "in memory" if isinstance(trainer.feed, MemoryFeed) else "streamed"
    reporter.say(
        f"{run.recipe.model.name} on {', '.join(names)}: {run.recipe.train.precision}, XLA {'on' if trainer.xla else 'off'}, "
        f"images {kept}"
    )
    return trainer
