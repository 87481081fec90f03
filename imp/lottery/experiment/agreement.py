"""What the sections of a recipe must agree on: images or texts."""

from data_prep import sources
from lottery.base import plugins
from lottery.base.errors import InputError
from lottery.experiment import networks
from lottery.experiment.recipe import Recipe
from lottery.pruning import criteria

_OF_TEXTS = {"classification": False, "ranking": True}


def check(recipe: Recipe) -> None:
    """Raise InputError where the task, the source, the network or a criterion is of texts and another is of images; a user's
    own may be of either."""
    has_texts = sources.is_of_texts(recipe.data.source)
    given = f"data.source = {recipe.data.source} is of {_kind(has_texts)}"
    if (needs := _OF_TEXTS.get(recipe.task, has_texts)) != has_texts:
        raise InputError(f"task = {recipe.task} is of {_kind(needs)}, but {given}: change one of the two")
    name = recipe.model.name
    if not plugins.is_own(name) and (reads := name in networks.TRANSFORMERS) != has_texts:
        raise InputError(f"model.name = {name} reads {_kind(reads)}, but {given}: change one of the two")
    if recipe.train.label_smoothing and recipe.task == "ranking":
        raise InputError("train.label_smoothing is of classes, and task = ranking has none: leave it out")
    for family in recipe.families.values() if has_texts else ():
        if family.criterion == criteria.synflow.__name__:
            raise InputError(f"criterion = synflow sends an image of ones through the network, but {given}: take another")
        if family.criterion in criteria.WITH_IMAGES and family.scored_on.of_each_class:
            raise InputError(f"scored_on = {family.scored_on} is of classes, but {given}: write a number, such as 100")


def _kind(is_of_texts: bool) -> str:
    return "texts" if is_of_texts else "images"
