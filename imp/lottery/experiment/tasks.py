"""The names of tasks, and the metric of each that decides. Needs no TensorFlow; the engine has the tasks themselves."""

import re
from typing import Any

from lottery.base import plugins
from lottery.base.errors import InputError

DECIDING = {"classification": "accuracy", "ranking": "rouge1"}


def deciding(task: str) -> str:
    """The metric by which networks are compared. A user's own task is loaded to ask it; raises InputError as `own` does."""
    return DECIDING.get(task) or str(own(task).metrics[0])


def own(name: str) -> Any:
    """A user's own task, with the names of its metrics. Raises InputError where there is none, or they cannot be names."""
    task = plugins.function(name, "task")
    metrics = getattr(task, "metrics", ())
    if not isinstance(metrics, tuple) or not metrics or not all(isinstance(one, str) for one in metrics):
        raise InputError(f'task: {name} needs the names of its metrics, such as metrics = ("accuracy",)')
    for metric in metrics:
        if metric == "loss" or not re.fullmatch(r"[a-z][A-Za-z0-9_]*", metric):
            raise InputError(f"task: {name} cannot call a metric {metric!r}: write letters, digits and '_' (and not `loss`)")
    return task
