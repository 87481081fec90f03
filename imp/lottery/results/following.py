"""What follows on a headline in rounds: the controls of the ticket that it names, where the recipe names no rounds for them."""

import dataclasses
from collections.abc import Sequence

from lottery.jobs import Chain, Round
from lottery.plan import Plan
from lottery.results import grouping, listing
from lottery.results.listing import Row
from lottery.run import Run


def rows(run: Run) -> list[Row]:
    """The rows of a run, among them those of controls that follow on its headlines."""
    planned = run.trained_plan()
    if planned is None or "rounds" not in run.recipe.pruning:
        return listing.rows(run)
    return listing.rows(run, controls(run, planned, run.recipe.rounds.levels))


def controls(run: Run, planned: Plan, levels: int) -> list[Round]:
    """The controls of the headline of each series of rounds, in every replicate that counts in it; none of a series of which a
    ticket up to round `levels` is still to be trained."""
    if not run.recipe.rounds.controls_follow:
        return []
    tickets = _tickets(run, levels)
    found: list[Round] = []
    for series in grouping.series(grouping.groups(tickets, run.recipe.delta)).values():
        best = grouping.sparsest_matching(series)
        chains = [row for row in tickets if (row["method"], row["rewind_step"]) == (series[0].method, series[0].rewind_step)]
        if best and best.level and not _is_pending(chains):
            for row in (row for row in chains if row["level"] == best.level):
                chain = Chain(row["replicate"], row["method"], row["rewind_step"])
                found += [Round(chain, best.level, control) for control in run.recipe.rounds.controls]
    return found


def _tickets(run: Run, levels: int) -> list[Row]:
    """The rows of the tickets of all rounds and replicates, missing ones up to round `levels`, even where the recipe does not
    prune so."""
    rounds = run.recipe.rounds.model_copy(update={"levels": levels})
    recipe = run.recipe.model_copy(update={"pruning": ["rounds"], "rounds": rounds})
    found = listing.rows(dataclasses.replace(run, recipe=recipe, chosen=()))
    return [row for row in found if row["variant"] == "ticket" and row["level"]]


def _is_pending(chains: Sequence[Row]) -> bool:
    """Whether one of these tickets, ascending by replicate and round, is still to be trained: after one that failed or diverged
    none follows."""
    stopped: dict[int, str] = {}
    for row in chains:
        if row["status"] != "done":
            stopped.setdefault(row["replicate"], row["status"])
    return "missing" in stopped.values()
