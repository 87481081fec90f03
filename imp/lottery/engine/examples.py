"""The examples of a run as its network is evaluated on them, and how a file of that network does on them."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from data_prep import records
from data_prep.records import BLOCK
from lottery.base.progress import Reporter
from lottery.engine import models
from lottery.engine.decoding import Decoder
from lottery.engine.litert_session import Session
from lottery.engine.tasks import Batch, choice
from lottery.experiment.recipe import Recipe
from lottery.pruning.state import State
from lottery.rundir.run import Run


class Examples:
    """The records of `run`, and its `task`. Raises InputError where they are gone, or are not those that it was trained on."""

    def __init__(self, run: Run):
        self._folder, self._manifest = run.records(), run.manifest()
        run.check_origins({"records": self._manifest.digest})
        records.check_lengths(self._folder, self._manifest)
        self.task, self._decoder = choice.make(run.recipe, self._manifest), Decoder(self._manifest, run.recipe.data)

    def count(self, split: str) -> int:
        return self._manifest.count(split)

    def batch(self, split: str, indices: np.ndarray) -> Batch:
        """Those of `split` at `indices`, prepared as in evaluation."""
        blocks = records.blocks(self._folder, self._manifest, split)
        examples, labels = records.read_examples(blocks, self._manifest.shape, indices)
        return self._decoder.batch(tf.constant(examples), tf.constant(labels))

    def outputs(self, recipe: Recipe, state: State, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Block by block of `split`: what the network `state` of `recipe` returns in inference (float32, [n, outputs]), and the
        labels (int32, [n])."""
        with models.policy("float32"):
            network = models.build(recipe.model, self.task.signature)
        models.assign({variable.path: variable for variable in network.variables}, state.weights | state.statistics)
        for first in range(0, self.count(split), BLOCK):
            batch = self.batch(split, np.arange(first, min(first + BLOCK, self.count(split))))
            yield network(self.task.inputs(batch), training=False).numpy(), batch["label"].numpy()

    def drawn(self, split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        """What the network is given (float32, [n, ...]), and labels (int32, [n]), of `count` examples of `split` or all that
        there are: drawn without replacement, and always the same."""
        total = self.count(split)
        indices = np.random.default_rng(0).choice(total, min(count, total), replace=False)
        batch = self.batch(split, np.sort(indices))
        return self.task.inputs(batch).numpy(), batch["label"].numpy()


def evaluate(content: bytes, examples: Examples, reporter: Reporter) -> tuple[float, np.ndarray | None]:
    """What the .tflite file `content` reaches on the whole test split: the mean of the deciding metric, and its answers (int,
    [n]) where the task has answers."""
    task, total, measured = examples.task, examples.count("test"), list[dict[str, np.ndarray]]()
    sessions = [Session(content) for _ in range(len(os.sched_getaffinity(0)))]
    with reporter.counting("testing the file", total, "examples") as progress, ThreadPoolExecutor() as pool:
        for first in range(0, total, BLOCK):
            batch = examples.batch("test", np.arange(first, min(first + BLOCK, total)))
            inputs = task.inputs(batch).numpy()
            parts = np.array_split(inputs, min(len(sessions), len(inputs)))
            outputs = np.concatenate([*pool.map(Session.answers, sessions, parts)])
            measured.append({name: values.numpy() for name, values in task.measures(batch, tf.constant(outputs)).items()})
            progress(len(outputs))
    columns = {name: np.concatenate([one[name] for one in measured]) for name in measured[0]}
    return float(columns[task.metrics[0]].mean(dtype=np.float64)), columns[task.answers[0]] if task.answers else None
