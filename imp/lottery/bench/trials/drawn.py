"""A run whose dense network is drawn and not trained, for measurements of what reads one. It is made in a process of its own:
the one that measures has no TensorFlow, as the stages that it measures have none."""

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np

from data_prep import files
from lottery import identity, store
from lottery.bench.parts.noise import make_noise
from lottery.engine import models
from lottery.engine.models.topology import topology
from lottery.lineage import seals
from lottery.recipe import resolve
from lottery.run import Run


def draw(recipe: dict[str, Any], folder: str, classes: int) -> None:
    """Leave in the run directory `folder` what `imp train` leaves: the last snapshot, with momentum as its slots, the
    network's topology and a result; and a batch of noise as the recipe's records."""
    run = Run(Path(folder), resolve(recipe))
    data, replicate = run.recipe.data, run.replicate(1)
    run.records().mkdir()
    make_noise(run.records(), run.recipe.train.batch, data.size, classes, made_with=dataclasses.asdict(run.recipe.records()))
    keras.utils.set_random_seed(run.recipe.seed)
    network = models.build(run.recipe.model, data.size, classes, data.channels)
    weights, statistics = models.arrays(network.trainable_variables), models.arrays(network.non_trainable_variables)
    slots = {f"momentum/{path}": np.zeros_like(array) for path, array in weights.items()}
    last = run.plan().total_steps
    store.save_state(replicate.snapshot(last), store.State(last, weights, statistics, slots))
    if found := topology(network):
        files.write_json(replicate.topology, found.to_json())
    result = {"folder": identity.place(replicate.dense.folder), "status": "done", "step": last}
    result |= {"steps_per_epoch": run.plan().steps_per_epoch, "made_from": {}}
    files.write_json(replicate.dense.result, {**result, "outputs": seals(replicate.folder, [replicate.snapshot(last)])})
