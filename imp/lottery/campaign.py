"""A campaign: one function from data to a report, for commands, scripts and notebooks.

    from lottery.campaign import campaign, open_run

    outcome = campaign(open_run("pipelines/digits.toml"))

Every step writes to the run directory and skips what is already there, so a campaign that is called again continues.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from lottery.base import files, locks
from lottery.base.preemption import EXIT_CODE, Preempted
from lottery.base.progress import Reporter
from lottery.experiment.plan import Selection
from lottery.fanout.executors import IN_PROCESS, Execution, RanksFailed
from lottery.results.report import Report, report
from lottery.rundir.run import EVERYTHING, Run, open_run
from lottery.stages.decide import until_decided
from lottery.stages.prepare import prepare
from lottery.stages.retrain import retrain, told
from lottery.stages.search import Search
from lottery.stages.stability import stability
from lottery.stages.thresholds import thresholds
from lottery.stages.train import train
from lottery.tracking import publish

__all__ = [
    "Campaign",
    "Execution",
    "Selection",
    "campaign",
    "find_stability",
    "open_run",
    "search_for_ticket",
    "train_dense",
    "train_tickets",
    "train_until_decided",
]


@dataclasses.dataclass
class Campaign:
    """The outcome of a campaign: the `report`, a line for each network that was not finished (`unfinished`), and the exit
    `code` of a command: 0, 1 or 2 (docs/run-directory.md)."""

    report: Report | None = None
    unfinished: list[str] = dataclasses.field(default_factory=list)
    code: int = 0


def campaign(run: Run, execution: Execution = IN_PROCESS, reporter: Reporter | None = None) -> Campaign:
    """Prepare the records, train the dense network of every replicate, cut the masks of one shot, train every ticket and its
    controls (rounds cut their masks as they go), report.

    A network that fails or diverges is recorded, and the others go on. Raises InputError if the recipe and the run do not fit
    together, and Failed if a dense network diverged, because nothing can be built on it.
    """
    reporter = reporter or Reporter()
    try:
        with run.adopting():
            return _campaign(run, execution, reporter)
    except RanksFailed as failed:
        return _ended(failed)


def _campaign(run: Run, execution: Execution, reporter: Reporter) -> Campaign:
    prepare(run, reporter)
    with locks.staying(run.folder):
        train(run, reporter, None, execution)
        if any(family.is_cut_at_once for family in run.recipe.families.values()):
            thresholds(run, reporter, EVERYTHING)
        made = train_tickets(run, EVERYTHING, execution, reporter)
        if not made.code and any(family.copies > 1 for family in run.recipe.families.values()):
            made = find_stability(run, EVERYTHING, execution, reporter)
        made.report = report(run)
        publish(run.recipe, run.folder, run.report)
    return made


def train_dense(run: Run, execution: Execution, reporter: Reporter, profile: Path | None = None) -> Campaign:
    """Train the dense network of every replicate. Raises Failed where one diverged, and Preempted on a request to stop."""
    try:
        with run.adopting():
            train(run, reporter, profile, execution)
    except RanksFailed as failed:
        return _ended(failed)
    return Campaign()


def _ended(failed: RanksFailed) -> Campaign:
    """What is left of a campaign whose ranks failed, and have said why. Raises Preempted where they were told to stop."""
    files.check_held()
    if failed.code == EXIT_CODE:
        raise Preempted("the ranks were told to stop") from None
    return Campaign(code=2 if failed.code == 2 else 1)


def train_tickets(run: Run, selection: Selection, execution: Execution, reporter: Reporter) -> Campaign:
    """Train the networks of `selection`. Those that were not finished are returned, not raised; the code is 2 where all of them
    are being trained by other processes. Raises Preempted on a request to stop."""
    try:
        with run.adopting():
            unfinished = retrain(run, reporter, selection, execution) or {}
    except RanksFailed as failed:
        return _ended(failed)
    lines = [f"{ticket} {told(outcome)}" for ticket, outcome in unfinished.items()]
    statuses = {outcome["status"] for outcome in unfinished.values()}
    return Campaign(None, lines, 2 if statuses == {"busy"} else int(bool(lines)))


def find_stability(run: Run, selection: Selection, execution: Execution, reporter: Reporter) -> Campaign:
    """Find the instability of the tickets of `selection` that have copies. Raises Preempted on a request to stop."""
    try:
        stability(run, reporter, selection, execution)
    except RanksFailed as failed:
        return _ended(failed)
    return Campaign()


def train_until_decided(run: Run, most: int, selection: Selection, execution: Execution, reporter: Reporter) -> Campaign:
    """Train the tickets of `selection` in as many replicates as their verdicts need, `most` at most."""
    with locks.staying(run.folder):
        first = train_tickets(run, selection, execution, reporter)
        made = _train_each(until_decided(run, most, reporter, selection), execution, reporter)
    return _joined([first, made])


def search_for_ticket(search: Search, execution: Execution, reporter: Reporter) -> Campaign:
    """Prepare the records, and train what `search` needs until it has its answer. Raises what `Search.steps` does."""
    prepare(search.run, reporter)
    with locks.staying(search.run.folder):
        return _train_each(search.steps(reporter), execution, reporter)


def _train_each(steps: Iterable[tuple[Run, Selection]], execution: Execution, reporter: Reporter) -> Campaign:
    """Train the selected tickets of runs that are restricted to a replicate, one after the other, and all that they need."""
    made: list[Campaign] = []
    for added, selected in steps:
        made.append(train_dense(added, execution, reporter))
        if made[-1].code:
            break
        if any(family.is_cut_at_once for family in selected.of(added.recipe).values()):
            thresholds(added, reporter, dataclasses.replace(selected, rewind=None))
        made.append(train_tickets(added, selected, execution, reporter))
    return _joined(made)


def _joined(made: Sequence[Campaign]) -> Campaign:
    """Several outcomes as one: a failure counts more than a refusal."""
    lines = [line for one in made for line in one.unfinished]
    codes = {one.code for one in made}
    return Campaign(None, lines, 1 if 1 in codes else max(codes, default=0))
