"""Adding replicates one by one, until no ticket is undecided or there are enough of them."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from lottery.base.progress import Reporter, count_of
from lottery.experiment import grids
from lottery.experiment.graph import TICKET
from lottery.experiment.grids import Grid, Quantile
from lottery.experiment.plan import Plan, Selection
from lottery.experiment.rule import LEAST_REPLICATES, Rule
from lottery.results import frame, grouping
from lottery.rundir.run import Run


def until_decided(run: Run, most: int, reporter: Reporter, selection: Selection) -> Iterator[tuple[Run, Selection]]:
    """Yield a run of one more replicate and the selected one-shot tickets to train there, those that are undecided, until none
    is or each has `most` replicates. A replicate that was begun is completed before another is added. A ticket with a failed or
    diverged network gets no more replicates, and a replicate whose dense network diverged gets no tickets. Where a ticket is
    left without a result, this ends.

    This looks at the data after each replicate, by a rule so strict that all looks together err no more often than one."""
    rule = run.rule.after_looks(most)
    if most > LEAST_REPLICATES:
        reporter.say(run.rule.looking(most))
    while True:
        tickets = _selected(run, selection, rule)
        undecided = [one for one in tickets if one.verdict.is_open and one.count == one.planned]
        number, missing = _next(run, [one for one in undecided if one.count < most])
        if not missing:
            break
        does = "continuing" if number in run.known_numbers() else "adding"
        reporter.say(f"{rule.undecided}: {count_of(len(undecided), 'ticket')}; {does} replicate {number}")
        for series in dict.fromkeys((one.family, one.rewind) for one in missing):
            grid = _grid(run.plan(), [one for one in missing if (one.family, one.rewind) == series])
            yield dataclasses.replace(run, chosen=(number,)), grid
        if left := [one for one in missing if _lacks(run, number, one)]:
            reporter.say(f"replicate {number} has no result for {count_of(len(left), 'ticket')} yet: the same command goes on")
            return
    if undecided:
        after = max(one.count for one in undecided)
        reporter.say(f"after {count_of(after, 'replicate')} still {rule.undecided}: {count_of(len(undecided), 'ticket')}")
    if unfinished := [one for one in tickets if one.count < one.planned]:
        rows = frame.rows(run)
        failed = {int(number) for number in rows.loc[rows["status"] == "failed", "replicate"]}
        again = f"; {dataclasses.replace(run, chosen=tuple(sorted(failed))).typed('retrain')} tries those that failed again"
        reporter.say(
            f"{rule.undecided}, because a network is missing, failed or diverged: {count_of(len(unfinished), 'ticket')}"
            f"{again if failed else ''}"
        )
    elif not undecided:
        after = max((one.count for one in tickets), default=0)
        reporter.say(f"every ticket is decided after {count_of(after, 'replicate')}")


def _selected(run: Run, selection: Selection, rule: Rule) -> list[Any]:
    """The groups of tickets at the selected quantiles and rewind points, judged by `rule`."""
    families = {name: one for name, one in run.families(selection).items() if one.quantiles}
    planned = run.plan()
    groups = grouping.groups(run, frame.rows(run), rule)
    return [
        ticket
        for ticket in frame.each(groups[groups["variant"] == TICKET])
        if ticket.family in families
        and grids.of_label(ticket.mask) in families[ticket.family].grid
        and ticket.rewind_step in planned.rewind_steps(families[ticket.family].rewind)
    ]


def _next(run: Run, tickets: Sequence[Any]) -> tuple[int, list[Any]]:
    """The first replicate that lacks some of `tickets`, and which it lacks: a replicate that was not completed (but for those
    whose dense network diverged), or else a new one."""
    last, diverged = max(run.known_numbers()), run.diverged()
    for number in range(1, last + 1):
        if number not in diverged and (lacking := [one for one in tickets if _lacks(run, number, one)]):
            return number, lacking
    return last + 1, list(tickets)


def _lacks(run: Run, number: int, group: Any) -> bool:
    """Whether a network of the group, a ticket or one of its controls, has no result in replicate `number`."""
    planned = run.plan()
    asked = planned.tickets([number], _grid(planned, [group]).of(run.recipe))
    missing = [ticket for ticket in asked if not run.network(ticket).result.exists()]
    ended = {need: run.network(need).read_result() for ticket in missing for need in ticket.needs}
    lost = {need for need, result in ended.items() if result and result.status == "diverged"}
    diverged = run.diverged()
    able = [ticket for ticket in missing if ticket.replicates.isdisjoint(diverged)]
    return any(lost.isdisjoint(ticket.needs) for ticket in able)  # others can never be trained


def _grid(planned: Plan, tickets: Sequence[Any]) -> Selection:
    """What selects groups of one family and one rewind point."""
    quantiles = {mask for one in tickets if isinstance(mask := grids.of_label(one.mask), Quantile)}
    return Selection((tickets[0].family,), Grid.of(sorted(quantiles)), Grid.of([planned.point_at(tickets[0].rewind_step)]))
