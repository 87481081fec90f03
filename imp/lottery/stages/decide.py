"""Replicates added one by one to the pairs that are undecided, until they are decided or there are enough."""

import dataclasses
from collections.abc import Callable, Sequence
from fractions import Fraction

from lottery import grids
from lottery.progress import Reporter
from lottery.results import grouping, listing
from lottery.results.grouping import Group
from lottery.run import Run
from lottery.stages.thresholds import thresholds
from lottery.stages.train import train
from lottery.tables import count_of

Retrain = Callable[[Run, str | None, str | None], None]


def until_decided(
    run: Run, most: int, reporter: Reporter, retrain: Retrain, quantiles: str | None = None, rewind: str | None = None
) -> None:
    """Train a replicate more for every pair that is undecided, dense network and masks included, until none is or there are
    `most` replicates. Only pairs at `quantiles` and `rewind` points, where these are given; never one of which a network is
    missing, failed or diverged. `retrain` trains the pairs of a run at quantiles and rewind points.

    This looks at the data after each replicate, so that the bounds' 5 % is that of one look, not of all together.
    """
    while undecided := grouping.undecided(found := _asked(run, quantiles, rewind)):
        number = max(run.known_numbers()) + 1
        if number > most:
            reporter.say(f"after {number - 1} replicates still undecided: {count_of(len(undecided), 'pair')}")
            break
        reporter.say(f"undecided: {count_of(len(undecided), 'pair')}; adding replicate {number}")
        added = dataclasses.replace(run, chosen=(number,))
        train(added, reporter)
        thresholds(added, reporter, _quantiles(undecided))
        for point in dict.fromkeys(group.rewind for group in undecided):
            retrain(added, _quantiles([group for group in undecided if group.rewind == point]), point)
    if unfinished := [group for group in found if group.count < group.planned]:
        reporter.say(f"undecided, because a network is missing, failed or diverged: {count_of(len(unfinished), 'pair')}")
    elif not undecided:
        reporter.say(f"every pair is decided after {count_of(max(run.known_numbers()), 'replicate')}")


def _asked(run: Run, quantiles: str | None, rewind: str | None) -> list[Group]:
    """The one-shot tickets at these quantiles and rewind points."""
    found = [group for group in grouping.groups(listing.rows(run), run.recipe.delta) if group.variant == "ticket"]
    if quantiles is not None:
        wanted = set(grids.parse_quantiles(quantiles))
        found = [group for group in found if group.quantile is not None and Fraction(str(group.quantile)) in wanted]
    if rewind is not None:
        steps = run.plan().rewind_steps(rewind)
        found = [group for group in found if group.rewind_step in steps]
    return [group for group in found if group.method == "oneshot"]


def _quantiles(groups: Sequence[Group]) -> str:
    """Their quantiles as a grid."""
    chosen = {Fraction(str(group.quantile)) for group in groups if group.quantile is not None}
    return ",".join(map(grids.quantile_name, sorted(chosen)))
