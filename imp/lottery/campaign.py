"""A campaign: one function from images to a report, for commands, scripts and notebooks.

    from lottery.campaign import campaign, open_run

    outcome = campaign(open_run("pipelines/digits.toml"))

Every step writes to the run directory and skips what is already there, so a campaign that is called again continues.
"""

import dataclasses

from data_prep import files
from lottery.experiment.plan import Selection
from lottery.fanout.executors import RanksFailed
from lottery.preemption import EXIT_CODE, Preempted
from lottery.progress import Reporter
from lottery.results.report import Report, report
from lottery.rundir import locks
from lottery.rundir.run import EVERYTHING, Run, open_run
from lottery.stages.decide import until_decided
from lottery.stages.prepare import prepare
from lottery.stages.retrain import IN_PROCESS, Execution, Summary, retrain
from lottery.stages.thresholds import thresholds
from lottery.stages.train import train
from lottery.tracking import publish

__all__ = ["Campaign", "Execution", "Selection", "campaign", "open_run", "train_tickets", "train_until_decided"]


@dataclasses.dataclass
class Campaign:
    """The outcome of a campaign: the `report`, a line for each network that was not finished (`unfinished`), and the exit
    `code` of a command."""

    report: Report | None = None
    unfinished: list[str] = dataclasses.field(default_factory=list)
    code: int = 0

    def add(self, summary: Summary | None) -> None:
        if summary and summary.unfinished:
            self.unfinished += summary.lines()
            self.code = 2 if summary.only_busy and self.code in (0, 2) else 1


def campaign(run: Run, execution: Execution = IN_PROCESS, reporter: Reporter | None = None) -> Campaign:
    """Prepare the images, train the dense network of every replicate, prune, train every ticket and its controls, report.

    A network that fails or diverges is recorded, and the others go on. Raises InputError if the recipe and the run do not fit
    together, and Failed if a dense network diverged, because nothing can be built on it.
    """
    reporter = reporter or Reporter()
    prepare(run, reporter)
    with locks.staying(run.folder):
        train(run, reporter)
        if any(family.quantiles for family in run.recipe.families.values()):
            thresholds(run, reporter, EVERYTHING)
        made = train_tickets(run, EVERYTHING, execution, reporter)
        made.report = report(run)
        publish(run.recipe, run.folder, run.report)
    return made


def train_tickets(run: Run, selection: Selection, execution: Execution, reporter: Reporter) -> Campaign:
    """Train the networks of `selection`. Those that were not finished are returned, not raised. Raises Preempted on a
    request to stop."""
    made = Campaign()
    try:
        made.add(retrain(run, reporter, selection, execution))
    except RanksFailed as failed:
        files.check_held()
        if failed.code == EXIT_CODE:
            raise Preempted("the ranks were told to stop") from None
        made.code = failed.code
    return made


def train_until_decided(run: Run, most: int, selection: Selection, execution: Execution, reporter: Reporter) -> Campaign:
    """Train the tickets of `selection` in as many replicates as their verdicts need, `most` at most."""
    made = Campaign()

    def tickets(target: Run, chosen: Selection) -> None:
        more = train_tickets(target, chosen, execution, reporter)
        made.unfinished += more.unfinished
        made.code = max(made.code, 1 if more.code else 0)

    def replicate(target: Run, chosen: Selection) -> None:
        train(target, reporter)
        thresholds(target, reporter, dataclasses.replace(chosen, rewind=None))
        tickets(target, chosen)

    with locks.staying(run.folder):
        tickets(run, selection)
        until_decided(run, most, reporter, replicate, selection)
    return made
