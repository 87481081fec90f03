"""A campaign: one function from data to a report, for commands, scripts and notebooks.

    from lottery.campaign import campaign, open_run

    outcome = campaign(open_run(recipe_file="digits"))

Every step writes to the run directory and skips what is already there, so a campaign that is called again continues.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from lottery.base import locks
from lottery.base.progress import Reporter
from lottery.executors.workload import IN_PROCESS, Execution
from lottery.experiment.plan import Selection
from lottery.results.report import Report, report
from lottery.rundir.run import EVERYTHING, Run, open_run
from lottery.stages.decide import until_decided
from lottery.stages.prepare import prepare
from lottery.stages.retrain import retrain, told
from lottery.stages.search import Search
from lottery.stages.stability import stability
from lottery.stages.thresholds import thresholds
from lottery.stages.train import train
from lottery.trackers.mirror import publish

__all__ = [
    "Campaign",
    "Execution",
    "Selection",
    "campaign",
    "open_run",
    "search_for_ticket",
    "train_dense",
    "train_tickets",
    "train_until_decided",
]


@dataclasses.dataclass
class Campaign:
    """The outcome of a campaign: the `report`, a line for each network that was not finished (`unfinished`), and whether all
    that is not finished is being trained by other processes (`elsewhere`)."""

    report: Report | None = None
    unfinished: list[str] = dataclasses.field(default_factory=list)
    elsewhere: bool = False


def campaign(run: Run, execution: Execution = IN_PROCESS, reporter: Reporter | None = None) -> Campaign:
    """Prepare the records, train the dense network of every replicate, cut the masks of one shot, train every ticket and its
    controls (rounds cut their masks as they go), report.

    A ticket that fails or diverges is recorded, and the others go on; the same command tries a failed one again. Raises
    InputError if the recipe and the run do not fit together, Failed if a dense network diverged or failed, because nothing can
    be built on it, and Preempted on a request to stop.
    """
    reporter, families = reporter or Reporter(), run.recipe.families.values()
    with run.adopting():
        prepare(run, reporter)
        with locks.staying(run.folder):
            train(run, reporter, None, execution)
            if any(family.is_cut_at_once for family in families):
                thresholds(run, reporter, EVERYTHING)
            made = train_tickets(run, EVERYTHING, execution, reporter)
            if not made.unfinished and any(family.copies > 1 for family in families):
                stability(run, reporter, EVERYTHING, execution)
            made.report = report(run)
            publish(run.recipe, run.folder, run.report)
    return made


def train_dense(run: Run, execution: Execution, reporter: Reporter, profile: Path | None = None) -> None:
    """Train the dense network of every replicate. Raises Failed where one diverged, and Preempted on a request to stop."""
    with run.adopting():
        train(run, reporter, profile, execution)


def train_tickets(run: Run, selection: Selection, execution: Execution, reporter: Reporter) -> Campaign:
    """Train the networks of `selection`. What was not finished is returned, not raised. Raises Preempted."""
    with run.adopting():
        unfinished = retrain(run, reporter, selection, execution) or {}
    lines = [f"{ticket} {told(outcome)}" for ticket, outcome in unfinished.items()]
    return Campaign(None, lines, {outcome["status"] for outcome in unfinished.values()} == {"busy"})


def train_until_decided(run: Run, most: int, selection: Selection, execution: Execution, reporter: Reporter) -> Campaign:
    """Train the tickets of `selection` in as many replicates as their verdicts need, `most` at most. The dense networks and the
    masks of the recipe's own replicates must be there; those of added ones are made."""
    with locks.staying(run.folder):
        first = train_tickets(run, selection, execution, reporter)
        return _train_each(until_decided(run, most, reporter, selection), execution, reporter, [first])


def search_for_ticket(search: Search, execution: Execution, reporter: Reporter) -> Campaign:
    """Prepare the records, and train what `search` needs until it has its answer."""
    prepare(search.run, reporter)
    with locks.staying(search.run.folder):
        return _train_each(search.steps(reporter), execution, reporter)


def _train_each(
    steps: Iterable[tuple[Run, Selection]], execution: Execution, reporter: Reporter, before: Sequence[Campaign] = ()
) -> Campaign:
    """For each step, train the selected tickets of its run, which is one of few replicates, after their dense networks and
    masks. Returns the outcome of all, and of those `before`."""
    made = list(before)
    for added, selected in steps:
        train_dense(added, execution, reporter)
        if any(family.is_cut_at_once for family in selected.of(added.recipe).values()):
            thresholds(added, reporter, dataclasses.replace(selected, rewind=None))
        made.append(train_tickets(added, selected, execution, reporter))
    unfinished = [one for one in made if one.unfinished]
    lines = [line for one in unfinished for line in one.unfinished]
    return Campaign(None, lines, bool(lines) and all(one.elsewhere for one in unfinished))
