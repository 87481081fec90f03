"""What a network answers to each example of a split."""

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from lottery.base.errors import InputError
from lottery.engine.tasks import Batch, Task
from lottery.rundir import predictions
from lottery.rundir.predictions import Predictions


class Evaluation(NamedTuple):
    """Mean loss and metrics over every example of a split."""

    loss: float
    metrics: dict[str, float]

    @property
    def deciding(self) -> float:
        """The metric by which networks are compared."""
        return next(iter(self.metrics.values()))


@dataclasses.dataclass(frozen=True)
class Answers:
    """Of each example of a split ([n], in its order): loss (float32), label (int32), and what `task` measures (float32)."""

    task: Task
    loss: np.ndarray
    label: np.ndarray
    measures: dict[str, np.ndarray]

    def predictions(self) -> Predictions | None:
        """What `predictions.h5` holds; None where the task gives no answers."""
        if not self.task.answers:
            return None
        answer, confidence = (self.measures[name] for name in self.task.answers)
        return predictions.of(self.label, answer.astype(np.int32), confidence, self.task.outputs)

    def evaluation(self) -> Evaluation:
        """Raises InputError where a metric is not a share."""
        metrics = {name: float(self.measures[name].mean(dtype=np.float64)) for name in self.task.metrics}
        for name, value in metrics.items():
            if not 0 <= value <= 1 and np.isfinite(self.loss).all():
                raise InputError(f"task: the metric {name} is {value:g} on average: let it be a share, 0 .. 1, of each example")
        return Evaluation(float(self.loss.mean(dtype=np.float64)), metrics)


def width(task: Task) -> int:
    """How many numbers `figures` gives for an example."""
    return 2 + len(task.metrics) + len(task.answers)


def figures(task: Task, batch: Batch, outputs: tf.Tensor, losses: tf.Tensor) -> tf.Tensor:
    """What is found of a batch (float32, [n, width]): losses, labels, and what the task measures, in columns."""
    measured = task.measures(batch, outputs)
    columns = (losses, batch["label"], *(measured[name] for name in (*task.metrics, *task.answers)))
    return tf.stack([tf.cast(column, tf.float32) for column in columns], axis=1)


def of_figures(task: Task, found: np.ndarray) -> Answers:
    """Those of a whole split, from `figures` of all its examples (float32, [n, width])."""
    loss, label, *measures = found.T
    return Answers(task, loss, label.astype(np.int32), dict(zip((*task.metrics, *task.answers), measures, strict=True)))
