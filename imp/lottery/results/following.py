"""The controls of a headline: those of the ticket that it names, if the recipe does not say which masks have controls."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pandas

from lottery.experiment.graph import TICKET, Ticket
from lottery.experiment.plan import Plan
from lottery.experiment.recipe import Family
from lottery.results import frame, grouping
from lottery.rundir.run import Run


def rows(run: Run) -> pandas.DataFrame:
    """The rows of a run, including the controls of its headlines."""
    planned = run.trained_plan()
    if planned is None or not any(family.controls_follow for family in run.recipe.families.values()):
        return frame.rows(run)
    return frame.rows(run, [*run.tickets(planned), *controls(run, planned, run.families())])


def controls(run: Run, planned: Plan, families: Mapping[str, Family]) -> list[Ticket]:
    """The controls of the headline of each series of `families`, in every replicate that counts in it; none for a series
    with a ticket still to be trained."""
    following = {name: family for name, family in families.items() if family.controls_follow}
    if not following:
        return []
    everywhere = dataclasses.replace(run, chosen=())
    asked = planned.tickets(everywhere.numbers(), following)
    networks = frame.rows(everywhere, [ticket for ticket in asked if ticket.variant == TICKET])
    networks = networks[(networks["variant"] == TICKET) & networks["family"].isin(list(following))]
    tickets = planned.tickets(run.known_numbers(), following)
    found: list[Ticket] = []
    for (name, _), series in grouping.tickets(grouping.groups(run, networks)).items():
        best = grouping.sparsest_matching(series)
        rows = [row for row in frame.each(networks) if (row.family, row.rewind_step) == (name, series[0].rewind_step)]
        if best and not _is_pending(following[name], rows):
            counted = {row.replicate for row in rows if row.mask == best.mask}
            place = (TICKET, name, best.mask, best.rewind_step)
            named = [one for one in tickets if (one.variant, one.family, one.mask.label, one.rewind) == place]
            found += [two for one in named if one.replicate in counted for two in planned.controls_of(one, following[name])]
    return list(dict.fromkeys(found))


def _is_pending(family: Family, series: Sequence[Any]) -> bool:
    """Whether one of these tickets, ascending by replicate and round, is still to be trained. In rounds, none follows one that
    failed or diverged."""
    if not family.rounds:
        return any(row.status == "missing" for row in series)
    stopped: dict[int, str] = {}
    for row in series:
        if row.status != "done":
            stopped.setdefault(row.replicate, row.status)
    return "missing" in stopped.values()
