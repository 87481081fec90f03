"""Drawn values put into a recipe."""

from collections.abc import Mapping
from typing import Any

from data_prep.errors import InputError
from lottery import spaces
from lottery.recipe import Recipe, flat, resolve
from lottery.spaces import Dimension

# Keys that are no hyperparameters: where and how a training is done, and how long it is.
FIXED = ("data.source", "data.path", "data.feed", "data.budget", "train.devices", "train.threads", "train.steps")


def searched(recipe: Recipe) -> list[Dimension]:
    """What the sweep of `recipe` searches. Raises InputError where that is nothing, and unless every value that could be drawn
    is one that the recipe can have, and needs no other images."""
    dimensions = spaces.parse(recipe.sweep.space)
    if not dimensions:
        raise InputError("sweep.space is empty: name what to search, such as train.learning_rate=0.01..1:log")
    for dimension in dimensions:
        _check(recipe, dimension)
    return dimensions


def _check(recipe: Recipe, dimension: Dimension) -> None:
    known = flat(recipe.model_dump())
    if dimension.key in FIXED or not dimension.key.startswith(("data.", "model.", "train.")):
        raise InputError(f"sweep.space: {dimension.key} is no hyperparameter: search keys of [data], [model] and [train]")
    if isinstance(known.get(dimension.key), int) and isinstance(dimension.ends[0], float):
        raise InputError(f"sweep.space: {dimension.key} is a whole number: write its ends without a point")
    for end in dimension.ends:
        if applied(recipe, {dimension.key: end}).records() != recipe.records():
            raise InputError(f"sweep.space: {dimension.key} changes the prepared images: keep it out of a sweep")


def applied(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """`recipe` with the drawn `values`. Raises InputError where it cannot have them."""
    return resolve(recipe.model_dump(), [f"{key}={value}" for key, value in values.items()], setter="sweep.space")
