"""Replicates added one by one to the pairs that are undecided, until they are decided or there are enough."""

import dataclasses
from collections.abc import Callable, Sequence
from fractions import Fraction

from lottery.grids import quantile_name
from lottery.progress import Reporter
from lottery.results import grouping, listing
from lottery.results.grouping import Group
from lottery.run import Run
from lottery.stages.thresholds import thresholds
from lottery.stages.train import train

Retrain = Callable[[Run, str | None, str | None], None]


def until_decided(run: Run, most: int, reporter: Reporter, retrain: Retrain) -> None:
    """Train a replicate more for every pair that is undecided, dense network and masks included, until none is or there are
    `most` replicates. `retrain` trains the pairs of a run at quantiles and rewind points.

    This looks at the data after each replicate, so that the bounds' 5 % is that of one look, not of all together.
    """
    while undecided := grouping.undecided(grouping.groups(listing.rows(run), run.recipe.delta)):
        number = max(run.known_numbers()) + 1
        if number > most:
            reporter.say(f"{len(undecided)} pairs are still undecided after {number - 1} replicates")
            return
        reporter.say(f"{len(undecided)} pairs are undecided: adding replicate {number}")
        added = dataclasses.replace(run, chosen=(number,))
        train(added, reporter)
        thresholds(added, reporter, _quantiles(undecided))
        for rewind in dict.fromkeys(group.rewind for group in undecided):
            retrain(added, _quantiles([group for group in undecided if group.rewind == rewind]), rewind)
    reporter.say(f"every pair is decided after {max(run.known_numbers())} replicates")


def _quantiles(groups: Sequence[Group]) -> str:
    """Their quantiles as a grid."""
    chosen = {Fraction(str(group.quantile)) for group in groups if group.quantile is not None}
    return ",".join(map(quantile_name, sorted(chosen)))
