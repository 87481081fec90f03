"""Replicates added one by one to the pairs that are undecided, until they are decided or there are enough."""

import dataclasses
from collections.abc import Callable, Sequence
from fractions import Fraction

from lottery import grids, verdicts
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
    """Train every pair that is undecided in a replicate more, dense network and masks included, until none is or each has
    `most` replicates. A replicate that was begun is gone on with before another is added. Only pairs at `quantiles` and
    `rewind` points, where these are given; never one of which a network failed or diverged, and never in a replicate of which
    the dense network did. `retrain` trains the pairs of a run at quantiles and rewind points; where it leaves one without a
    result, this ends.

    This looks at the data after each replicate, so that it errs more often than the 5 % of one look: how often is said first.
    """
    if most > verdicts.LEAST_REPLICATES:
        error, worse = verdicts.error_until_decided(most), run.recipe.delta * 100
        reporter.say(
            f"looking after each replicate, up to {most}, calls a ticket that is {worse:g} points worse matching in "
            f"{error:.0%} of cases; looking once does so in 5%"
        )
    while True:
        found = _asked(run, quantiles, rewind)
        undecided = grouping.undecided(found)
        number, pairs = _next(run, [pair for pair in undecided if pair.count < most])
        if not pairs:
            break
        does = "going on with" if number in run.known_numbers() else "adding"
        reporter.say(f"undecided: {count_of(len(undecided), 'pair')}; {does} replicate {number}")
        _train(dataclasses.replace(run, chosen=(number,)), pairs, reporter, retrain)
        if left := [pair for pair in pairs if _lacks(run, number, pair)]:
            reporter.say(
                f"replicate {number} has no result of {count_of(len(left), 'pair')} yet: the same command goes on there"
            )
            return
    _conclude(run, found, undecided, reporter)


def _next(run: Run, pairs: Sequence[Group]) -> tuple[int, list[Group]]:
    """The first replicate that lacks some of `pairs`, and which: one that was not completed, or else a new one."""
    numbers = [number for number in range(1, max(run.known_numbers()) + 2) if not _diverged(run, number)]
    for number in numbers:
        if lacking := [pair for pair in pairs if _lacks(run, number, pair)]:
            return number, lacking
    return numbers[-1], []


def _diverged(run: Run, number: int) -> bool:
    return (run.replicate(number).dense.read_result() or {}).get("status") == "diverged"


def _lacks(run: Run, number: int, pair: Group) -> bool:
    """Whether a network of `pair`, its ticket or a control, has no result in replicate `number`."""
    planned = run.trained_plan()
    assert planned is not None, "a pair has results, so there is a dense network"
    jobs = planned.jobs([number], [_quantile(pair)], pair.rewind)
    return any(not run.network(job).result.exists() for job in jobs)


def _train(added: Run, pairs: Sequence[Group], reporter: Reporter, retrain: Retrain) -> None:
    train(added, reporter)
    thresholds(added, reporter, _grid(pairs))
    for point in dict.fromkeys(pair.rewind for pair in pairs):
        retrain(added, _grid([pair for pair in pairs if pair.rewind == point]), point)


def _conclude(run: Run, found: Sequence[Group], undecided: Sequence[Group], reporter: Reporter) -> None:
    if undecided:
        after = max(pair.count for pair in undecided)
        reporter.say(f"after {count_of(after, 'replicate')} still undecided: {count_of(len(undecided), 'pair')}")
    if unfinished := [pair for pair in found if pair.count < pair.planned]:
        rows = [row for row in listing.rows(run) if row["method"] == "oneshot"]  # what `retrain` trains
        failed = {row["replicate"] for row in rows if row["status"] == "failed"}
        again = f"; {dataclasses.replace(run, chosen=tuple(sorted(failed))).typed('retrain')} tries those that failed again"
        reporter.say(
            f"undecided, because a network is missing, failed or diverged: {count_of(len(unfinished), 'pair')}"
            f"{again if failed else ''}"
        )
    elif not undecided:
        after = max((pair.count for pair in found), default=0)
        reporter.say(f"every pair is decided after {count_of(after, 'replicate')}")


def _asked(run: Run, quantiles: str | None, rewind: str | None) -> list[Group]:
    """The one-shot tickets at these quantiles and rewind points."""
    groups = grouping.groups(listing.rows(run), run.recipe.delta)
    found = [group for group in groups if group.variant == "ticket" and group.method == "oneshot"]
    if quantiles is not None:
        wanted = set(grids.parse_quantiles(quantiles))
        found = [group for group in found if _quantile(group) in wanted]
    if rewind is not None:
        steps = run.plan().rewind_steps(rewind)
        found = [group for group in found if group.rewind_step in steps]
    return found


def _quantile(pair: Group) -> Fraction:
    assert pair.quantile is not None, "a one-shot ticket"
    return Fraction(str(pair.quantile))


def _grid(pairs: Sequence[Group]) -> str:
    """Their quantiles as a grid."""
    return ",".join(map(grids.quantile_name, sorted(set(map(_quantile, pairs)))))
