"""The task that a recipe names."""

from collections.abc import Callable

from data_prep.records import Manifest
from lottery.base import plugins
from lottery.base.errors import InputError
from lottery.engine.tasks import Task, users_own
from lottery.engine.tasks.classification import Classification
from lottery.engine.tasks.ranking import Ranking
from lottery.experiment import tasks
from lottery.experiment.recipe import Recipe


def make(recipe: Recipe, manifest: Manifest) -> Task:
    """The task that `recipe` names, on the set of `manifest`. Raises InputError where there is no such task, or not for such
    a set."""
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
