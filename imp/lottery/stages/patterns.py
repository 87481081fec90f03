"""Checking the shell patterns of a recipe: one that matches no variable of the network is a typo."""

import fnmatch
from collections.abc import Callable, Collection

from data_prep.errors import InputError
from lottery.experiment.grids import parse_rates
from lottery.experiment.recipe import Pruning
from lottery.rundir import store
from lottery.rundir.run import Run


def check(run: Run, variables: Callable[[], Collection[str]]) -> None:
    """Raise InputError for a pattern of `pruning.exclude`, or of a family's `rates`, that matches no path of `variables`.
    `variables` is called only if there is a pattern to check. The default of `pruning.exclude` is not checked: it names layers
    that only some networks have.

    A family that has masks keeps the patterns that they were made with, whatever these match.
    """
    recipe, usual = run.recipe, Pruning().exclude
    begun = {name for name in recipe.families for number in run.known_numbers() if run.replicate(number).masks(name)}
    given = [] if begun else [("pruning.exclude", pattern) for pattern in recipe.pruning.exclude if pattern not in usual]
    given += [
        (f"families.{name}.rates", pattern)
        for name, family in recipe.families.items()
        if name not in begun
        for pattern, _ in parse_rates(family.rates)
    ]
    paths = sorted(variables()) if given else []
    for key, pattern in given:
        if not any(fnmatch.fnmatchcase(path, pattern) for path in paths):
            raise InputError(
                f"{key}: {pattern!r} matches no variable of {recipe.model.name}, which has {paths[0]} ... {paths[-1]}: correct "
                "it or leave it out"
            )


def check_trained(run: Run) -> None:
    """The same with the variables of the dense network that is trained."""

    def variables() -> list[str]:
        state = store.load_state(run.replicates()[0].snapshot(run.plan().total_steps), optimizer=False)
        return [*state.weights, *state.statistics]

    check(run, variables)
