"""Drawn values put into a recipe, and what they are judged by."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lottery.base.errors import InputError
from lottery.experiment import agreement
from lottery.experiment.objectives import Objective
from lottery.experiment.reading import flat, resolve
from lottery.experiment.recipe import Recipe
from lottery.experiment.spaces import Dimension

# Keys that are no hyperparameters: where and how a training is done, and how long it is.
FIXED = ("data.source", "data.path", "data.feed", "data.budget", "train.devices", "train.threads", "train.steps")


def searched(recipe: Recipe) -> list[Dimension]:
    """What the sweep of `recipe` searches. Raises InputError where that is nothing, and unless every value that could be drawn
    is one that the recipe and its task can have, and needs no other examples."""
    known, dimensions = flat(recipe.model_dump()), []
    for dimension in recipe.sweep.space:
        key, value, ends = dimension.key, known.get(dimension.key), dimension.values
        if dimension.kind != "choice" and isinstance(value, float):  # written as whole numbers, they hold all between them
            ends = tuple(map(float, ends))
        if key in FIXED or not key.startswith(("data.", "model.", "train.")):
            raise InputError(f"sweep.space: {key} is no hyperparameter: search keys of [data], [model] and [train]")
        if isinstance(value, int) and isinstance(ends[0], float):
            raise InputError(f"sweep.space: {key} is a whole number: write its ends without a point")
        for end in ends:
            agreement.check(drawn := applied(recipe, {key: end}))
            if drawn.records() != recipe.records():
                raise InputError(f"sweep.space: {key} changes the prepared records: keep it out of a sweep")
        dimensions.append(dataclasses.replace(dimension, values=ends))
    if not dimensions:
        raise InputError("sweep.space is empty: name what to search, such as train.learning_rate=0.01..1:log")
    return dimensions


def objective(recipe: Recipe) -> Objective:
    """What judges the trials of `recipe`, with the name of its family. Raises InputError unless just one has that ticket."""
    wanted, families = recipe.sweep.objective, recipe.families
    if not wanted.label:
        return wanted
    having = [
        name
        for name, family in families.items()
        if wanted.family in ("", name) and wanted.label in {value.label for value in family.grid}
    ]
    if len(having) == 1:
        return dataclasses.replace(wanted, family=having[0])
    if having:
        either = " or ".join(f"ticket:{name}/{wanted.label}" for name in having)
        raise InputError(f"sweep.objective: several families have a {wanted.label}: write {either}")
    grids = (f"{name} has {f'{one.rounds} rounds' if one.rounds else one.quantiles}" for name, one in families.items())
    raise InputError(f"sweep.objective: no family has {wanted}: {', '.join(grids)}")


def applied(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """`recipe` with the drawn `values`. Raises InputError where it cannot have them."""
    return resolve(recipe.model_dump(), [f"{key}={value}" for key, value in values.items()], setter="sweep.space")


def text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
