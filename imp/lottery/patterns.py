"""The shell patterns of a recipe beside the variables of its network: one that matches none of them is a slip of the pen."""

import fnmatch
from collections.abc import Callable, Collection

from data_prep.errors import InputError
from lottery.grids import parse_rates
from lottery.recipe import Thresholds
from lottery.run import Run


def check(run: Run, variables: Callable[[], Collection[str]]) -> None:
    """Raise InputError for a pattern of `thresholds.exclude` or `rounds.rates` that matches no path of `variables`, which are
    asked for only where there is one. The default `thresholds.exclude` names layers that only some networks have.

    A run that has masks keeps the patterns they were made with, whatever these match.
    """
    recipe, made = run.recipe, [run.replicate(number) for number in run.known_numbers()]
    given = []
    if not any(replicate.levels() for replicate in made):
        given += [("rounds.rates", pattern) for pattern, _ in parse_rates(recipe.rounds.rates)]
        if not any(replicate.quantiles() for replicate in made):
            usual = Thresholds().exclude
            given += [("thresholds.exclude", pattern) for pattern in recipe.thresholds.exclude if pattern not in usual]
    paths = sorted(variables()) if given else []
    for key, pattern in given:
        if not any(fnmatch.fnmatchcase(path, pattern) for path in paths):
            raise InputError(
                f"{key}: {pattern!r} matches no variable of {recipe.model.name}, which has {paths[0]} ... {paths[-1]}: correct "
                "it or leave it out"
            )
