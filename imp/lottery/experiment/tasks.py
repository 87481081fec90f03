"""The names of tasks, the metric of each that decides, and what each is of. Needs no TensorFlow; the engine has the tasks
themselves."""

import re
from typing import TYPE_CHECKING, Any

from data_prep import sources
from data_prep.errors import InputError
from lottery.experiment import grids, named, networks
from lottery.pruning import criteria

if TYPE_CHECKING:
    from lottery.experiment.recipe import Recipe

DECIDING = {"classification": "accuracy", "ranking": "rouge1"}
_OF_TEXTS = {"classification": False, "ranking": True}


def check(recipe: "Recipe") -> None:
    """Raise InputError where the task, the source, the network or a criterion is of texts and another is of images; a user's
    own may be of either."""
    has_texts = sources.is_of_texts(recipe.data.source)
    given = f"data.source = {recipe.data.source} is of {_kind(has_texts)}"
    if (needs := _OF_TEXTS.get(recipe.task, has_texts)) != has_texts:
        raise InputError(f"task = {recipe.task} is of {_kind(needs)}, but {given}: change one of the two")
    name = recipe.model.name
    if not named.is_own(name) and (reads := name in networks.TRANSFORMERS) != has_texts:
        raise InputError(f"model.name = {name} reads {_kind(reads)}, but {given}: change one of the two")
    if recipe.train.label_smoothing and recipe.task == "ranking":
        raise InputError("train.label_smoothing is of classes, and task = ranking has none: leave it out")
    for family in recipe.families.values() if has_texts else ():
        if family.criterion == criteria.synflow.__name__:
            raise InputError(f"criterion = synflow sends an image of ones through the network, but {given}: take another")
        if family.criterion in criteria.WITH_IMAGES and grids.parse_sample(family.scored_on)[1]:
            raise InputError(
                f"scored_on = {family.scored_on} is of examples with classes, but {given}: write a number, such as 100"
            )


def _kind(is_of_texts: bool) -> str:
    return "texts" if is_of_texts else "images"


def deciding(task: str) -> str:
    """The metric by which networks are compared. A user's own task is loaded to ask it; raises InputError as `own` does."""
    return DECIDING.get(task) or str(own(task).metrics[0])


def own(name: str) -> Any:
    """What a user's own task is called by, with the names of its metrics. Raises InputError where there is none, or they cannot
    be names."""
    task = named.function(name, "task")
    metrics = getattr(task, "metrics", ())
    if not isinstance(metrics, tuple) or not metrics or not all(isinstance(one, str) for one in metrics):
        raise InputError(f'task: {name} needs the names of its metrics, such as metrics = ("accuracy",)')
    for metric in metrics:
        if metric == "loss" or not re.fullmatch(r"[a-z][A-Za-z0-9_]*", metric):
            raise InputError(f"task: {name} cannot call a metric {metric!r}: write letters, digits and '_' (and not `loss`)")
    return task
