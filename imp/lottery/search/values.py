"""Drawn values put into a recipe."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from data_prep.errors import InputError
from lottery.experiment import spaces
from lottery.experiment.reading import flat, resolve
from lottery.experiment.recipe import Recipe
from lottery.experiment.spaces import Dimension

# Keys that are no hyperparameters: where and how a training is done, and how long it is.
FIXED = ("data.source", "data.path", "data.feed", "data.budget", "train.devices", "train.threads", "train.steps")


def searched(recipe: Recipe) -> list[Dimension]:
    """What the sweep of `recipe` searches. Raises InputError where that is nothing, and unless every value that could be drawn
    is one that the recipe can have, and needs no other images."""
    known = flat(recipe.model_dump())
    dimensions = [_of_kind(dimension, known.get(dimension.key)) for dimension in spaces.parse(recipe.sweep.space)]
    if not dimensions:
        raise InputError("sweep.space is empty: name what to search, such as train.learning_rate=0.01..1:log")
    for dimension in dimensions:
        _check(recipe, known, dimension)
    return dimensions


def _of_kind(dimension: Dimension, value: Any) -> Dimension:
    """A range whose ends are written as whole numbers holds all between them where the key's own `value` is no whole number."""
    if dimension.kind != "choice" and isinstance(value, float):
        return dataclasses.replace(dimension, values=tuple(map(float, dimension.values)))
    return dimension


def _check(recipe: Recipe, known: Mapping[str, Any], dimension: Dimension) -> None:
    if dimension.key in FIXED or not dimension.key.startswith(("data.", "model.", "train.")):
        raise InputError(f"sweep.space: {dimension.key} is no hyperparameter: search keys of [data], [model] and [train]")
    if isinstance(known.get(dimension.key), int) and isinstance(dimension.values[0], float):
        raise InputError(f"sweep.space: {dimension.key} is a whole number: write its ends without a point")
    for end in dimension.values:
        if applied(recipe, {dimension.key: end}).records() != recipe.records():
            raise InputError(f"sweep.space: {dimension.key} changes the prepared images: keep it out of a sweep")


def applied(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """`recipe` with the drawn `values`. Raises InputError where it cannot have them."""
    return resolve(recipe.model_dump(), [f"{key}={value}" for key, value in values.items()], setter="sweep.space")


def told(drawn: Mapping[str, Any]) -> str:
    """Drawn values, for people: `learning_rate 0.03162, batch 64`."""
    return ", ".join(f"{key.rpartition('.')[2]} {text(value)}" for key, value in drawn.items())


def text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
