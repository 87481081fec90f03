"""The engine of a run: TensorFlow set up, its examples at hand, its network compiled."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from data_prep import records
from lottery.base import capacity, plugins
from lottery.base.capacity import Allocation
from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.engine import models
from lottery.engine.activations import Activations
from lottery.engine.derivatives import Derivatives
from lottery.engine.devices import memory_of, on_cpu, set_up_tensorflow
from lottery.engine.examples import Examples
from lottery.engine.feed import Feed, MemoryFeed
from lottery.engine.loop import Maskable, Trainer
from lottery.engine.stream import StreamFeed
from lottery.experiment import controls
from lottery.experiment.recipe import Data
from lottery.rundir.run import Run

ALIGNED_ON = 2048  # training examples


def make_feed(
    folder: Path,
    manifest: records.Manifest,
    data: Data,
    strategy: tf.distribute.Strategy,
    devices: Sequence[str],
    allocation: Allocation | None = None,
) -> Feed:
    """The feed that `data.feed` names; `auto` is in memory where the examples fit the budget: on the devices, or else on the
    host, both shared with the ranks beside this `allocation`. Raises InputError for a damaged record, or too little memory."""
    records.check_lengths(folder, manifest)
    on_host, on_gpu = (allocation.on_host, allocation.on_gpu) if allocation else (1, 1)
    on_device = not on_cpu(devices) and manifest.bytes <= capacity.device_budget(data.budget, memory_of(devices), on_gpu)
    fits = on_device or manifest.bytes <= capacity.host_budget(data.budget, on_host)
    if data.feed == "memory" or (data.feed == "auto" and fits):
        return MemoryFeed(folder, manifest, data, strategy, on_host=not on_device)
    return StreamFeed(folder, manifest, data, devices, on_host)


def make_trainer(
    run: Run, reporter: Reporter, maskable: Maskable = lambda path, shape: False, allocation: Allocation | None = None
) -> Trainer:
    """The compiled network of `run`, with its data set at hand; `maskable` as for `Trainer`. It has the cores of `allocation`,
    or all that the process may use."""
    recipe = run.recipe
    names = set_up_tensorflow(recipe.train, allocation.cores if allocation else None)
    feed = partial(make_feed, run.records(), run.manifest(), recipe.data, devices=names, allocation=allocation)
    trainer = Trainer(recipe, names, feed, maskable)
    xla, kept = "on" if trainer.xla else "off", "in memory" if isinstance(trainer.feed, MemoryFeed) else "streamed"
    reporter.once(f"{recipe.model.name} on {', '.join(names)}: {recipe.train.precision}, XLA {xla}, examples {kept}")
    return trainer


def check_draws(run: Run, trainer: Trainer) -> None:
    """Raise InputError where a network of the user's own is drawn alike whatever the seed, and controls or replicates are to
    differ in that. Variables of one number (zeros, ones) are alike in any network."""
    recipe, name = run.recipe, run.recipe.model.name
    begun_anew = [
        (family, control)
        for family, settings in recipe.families.items()
        for control in settings.controls
        if controls.of(control).start == "fresh"
    ]
    has_several = len({*run.known_numbers(), *run.numbers()}) > 1 and not recipe.model.weights
    if not plugins.is_own(name) or not (begun_anew or has_several):
        return
    one, other = (trainer.drawn(seed).weights for seed in (0, 1))
    alike = {path: array for path, array in one.items() if np.array_equal(array, other[path])}
    way_out = "draw {} without a seed (a file of weights goes into model.weights), or {}"
    if has_several and alike.keys() == one.keys():
        told = f"{name} draws all weights alike whatever the seed"
        raise InputError(f"replicates: {told}: {way_out.format('them', 'train one replicate')}")
    for path, array in alike.items():
        if begun_anew and np.ptp(array) and recipe.pruning.covers(path, array.shape):
            (family, control), *_ = begun_anew
            told = f"{control} needs fresh weights, but {name} draws {path} alike whatever the seed"
            raise InputError(f"families.{family}.controls: {told}: {way_out.format('it', 'leave the control out')}")


def make_derivatives(run: Run, cores: int | None = None) -> Derivatives:
    """What differentiates the network of `run`. A process that trains too has given TensorFlow so many `cores` before."""
    manifest = run.manifest()
    run.check_origins({"records": manifest.digest})
    return Derivatives(run.recipe, manifest, set_up_tensorflow(run.recipe.train, cores))


def make_activations(run: Run, cores: int | None = None) -> Activations:
    """What tells the activations of the network of `run`, in float32, on some training examples; `cores` as above."""
    set_up_tensorflow(run.recipe.train, cores)
    examples = Examples(run)
    with models.policy("float32"):
        network = models.build(run.recipe.model, examples.task.signature)
    return Activations(network, examples.drawn("train", ALIGNED_ON)[0])
