"""The task that a recipe names, and a trial of a user's own on a few examples, before hours are lost to a mistake in it."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from data_prep.records import Manifest
from lottery.base import plugins
from lottery.base.errors import InputError
from lottery.engine.tasks import Batch, Task, users_own
from lottery.engine.tasks.classification import Classification
from lottery.engine.tasks.ranking import Ranking
from lottery.experiment import tasks
from lottery.experiment.recipe import Recipe


def make(recipe: Recipe, manifest: Manifest) -> Task:
    """The task that `recipe` names, on the set of `manifest`. Raises InputError where there is none for such a set."""
    if plugins.is_own(recipe.task):
        kind = tasks.own(recipe.task)
        if not (isinstance(kind, type) and issubclass(kind, Task)):
            raise InputError(f"task: {recipe.task} is not a class made from lottery.engine.tasks.Task")
        with users_own(recipe.task):
            task = kind(recipe, manifest)
            if task.signature.outputs < 1:
                raise InputError(f"task: {recipe.task} has {task.signature.outputs} outputs: let it have 1 or more")
            return task
    ours: dict[str, Callable[[Recipe, Manifest], Task]] = {"classification": Classification, "ranking": Ranking}
    return ours[recipe.task](recipe, manifest)


def check(task: Task, batch: Batch, network: Callable[[tf.Tensor], tf.Tensor], dtype: str) -> None:
    """Raise InputError where `task` fails, compiled, on a `batch` of its set and what a fresh `network` returns of it, or does
    not give what a task is to give. Losses are computed in `dtype`."""
    name, count = task.recipe.task, len(batch["label"])
    with users_own(name):
        outputs = tf.cast(network(task.inputs(batch)), tf.float32)
        for method in (task.loss, task.training_loss):
            losses = _compiled(method, batch, tf.cast(outputs, dtype))
            _check_shape(f"{name}.{method.__name__}", losses, count)
            if losses.dtype != dtype:
                raise InputError(f"task: {name}.{method.__name__} returns {losses.dtype.name}, not {dtype}, as outputs are")
        measured = _compiled(task.measures, batch, outputs)
    for metric in task.metrics:
        if not isinstance(measured, dict) or metric not in measured:
            raise InputError(f"task: {name}.measures does not return {{{metric!r}: ...}}, which is one of its metrics")
        _check_shape(f"{name}.measures[{metric!r}]", measured[metric], count)
        values = tf.cast(measured[metric], tf.float32).numpy()
        if not (values.min() >= 0 and values.max() <= 1):
            raise InputError(f"task: {name}.measures[{metric!r}] is {values.min():g} .. {values.max():g}: let it be 0 .. 1")


def _compiled(method: Callable[[Batch, tf.Tensor], Any], *given: Any) -> Any:
    return tf.function(method, autograph=False).get_concrete_function(*given)(*given)


def _check_shape(what: str, values: Any, count: int) -> None:
    shape = getattr(values, "shape", None)
    if shape != (count,):
        raise InputError(f"task: {what} has the shape {shape} for {count} examples: let it be one number for each, [{count}]")
