"""Stage 4: train the missing networks under masks, here or on MPI ranks, each as soon as what it needs is trained."""

import dataclasses
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from data_prep.errors import InputError
from lottery import __version__
from lottery.engine.start import start_tensorflow
from lottery.experiment.graph import TICKET, Ticket, masks_of, side_by_side
from lottery.experiment.plan import Plan, Selection
from lottery.fanout import executors
from lottery.fanout.allocation import Allocation
from lottery.fanout.executors import InProcess
from lottery.fanout.tasks import WHOLE, Part, Worker, Workload
from lottery.progress import Reporter, duration
from lottery.results import following
from lottery.rundir import locks
from lottery.rundir.lineage import WAY_OUT, Lineage
from lottery.rundir.run import Run
from lottery.stages import patterns
from lottery.stages.cut import cut

NO_LEARNING = 1e-3  # the share of the peak below which a schedule's last learning rate teaches nothing
NO_HEADLINE = (
    "no controls of headlines yet: they need three replicates with all tickets trained, and a ticket that matches; the same "
    "command trains them then"
)
Outcome = dict[str, Any]


@dataclasses.dataclass
class Summary:
    """How the networks ended: `finished` before or now, and those that did not, with the reason."""

    finished: int = 0
    unfinished: list[tuple[Ticket, Outcome]] = dataclasses.field(default_factory=list)

    @property
    def only_busy(self) -> bool:
        """Whether all that is missing is being trained by other processes."""
        return all(outcome["status"] == "busy" for _, outcome in self.unfinished)

    def lines(self) -> list[str]:
        """One line for each network that was not finished."""
        return [f"{ticket} {told(outcome)}" for ticket, outcome in self.unfinished]


@dataclasses.dataclass(frozen=True)
class Execution:
    """Where networks under masks are trained: on `ranks` MPI ranks of this host (1: in this process, which may itself be a
    rank; None: as many as the host has room for), of which `per_gpu` share a GPU (None: none do). A rank without progress
    for `stall` seconds is named. `part` is the part of the networks that this command trains, if a job array shares them."""

    ranks: int | None = 1
    per_gpu: int | None = None
    stall: float = 600.0
    part: Part = WHOLE

    def typed(self) -> list[str]:
        """The options that tell each rank the same."""
        per_gpu = [] if self.per_gpu is None else ["--per-gpu", str(self.per_gpu)]
        return ["--part", str(self.part), "--stall", str(self.stall), *per_gpu]


IN_PROCESS = Execution()


def retrain(run: Run, reporter: Reporter, selection: Selection, execution: Execution = IN_PROCESS) -> Summary | None:
    """Train every network of the selected families that has no result yet, and try again those that failed; then the controls
    of headlines, if the recipe does not say which masks have controls. Returns None if other processes report the outcome.

    Raises InputError as `checked_tickets` does, and RanksFailed if ranks that were started did not finish.
    """
    planned = run.plan()
    hand_out = _HandOut(run, planned, reporter, selection, execution.part)

    def make_worker(allocation: Allocation, heartbeat: Callable[[], None]) -> Worker:
        start_tensorflow()  # here, because a rank that coordinates or idles does not need it
        from lottery.stages import tickets

        return tickets.TicketWorker(run, planned, reporter.beating(heartbeat), allocation)

    workload = Workload(
        list_tasks=hand_out.begin,
        make_worker=make_worker,
        on_done=hand_out.done,
        say=reporter.say,
        threads=run.recipe.train.threads,
        common={"versions of imp": __version__, "recipes": repr(run.recipe), "images": run.manifest().digest},
    )
    with locks.staying(run.folder):
        executor = _ranks(run, planned, selection, execution) or InProcess(execution.per_gpu, execution.stall)
        return hand_out.end() if executor.map(workload) else None


def _ranks(run: Run, planned: Plan, selection: Selection, execution: Execution) -> executors.Ranks | None:
    """The ranks to start, each with this same command; None if this process does the work."""

    def list_missing() -> list[Ticket]:
        tickets = [*checked_tickets(run, selection), *_following(run, planned, selection)]
        return [one for one in execution.part.of(tickets, _chain) if not run.network(one).is_finished]

    chosen = [part for number in run.chosen for part in ("--replicate", str(number))]
    named = dataclasses.replace(selection, families=tuple(run.families(selection)))
    arguments = ["retrain", "--run", str(run.folder), *chosen, *named.typed(), *execution.typed()]
    started = executors.on_ranks(execution.ranks, arguments, list_missing, side_by_side, run.recipe.train.threads)
    if started:
        run.adopt()
    return started


def _chain(ticket: Ticket) -> Hashable:
    return ticket.chain


def _following(run: Run, planned: Plan, selection: Selection) -> list[Ticket]:
    """The controls of headlines, in the replicates that the command works on."""
    controls = following.controls(run, planned, run.families(selection))
    return [one for one in controls if one.replicate in run.numbers()]


def checked_tickets(run: Run, selection: Selection) -> list[Ticket]:
    """The networks of a retraining, in order. Raises InputError if a dense network is not trained, a mask or a snapshot is
    missing, or the recipe asks for something impossible."""
    run.check_trained()
    planned, families = run.plan(), run.families(selection)
    for name, family in families.items():
        if family.method == "finetune" and planned.finetune_rate(family) < NO_LEARNING * run.recipe.train.learning_rate:
            raise InputError(
                f"finetune trains at the schedule's last learning rate, and that of train.schedule = "
                f"{run.recipe.train.schedule!r} is almost 0: set families.{name}.finetune_rate"
            )
    _check_masks(run, selection)
    tickets = run.tickets(planned, selection)
    steps = {(one.replicate, step) for one in tickets for step in (one.rewind, planned.total_steps) if one.start}
    for number, step in sorted(steps):
        if not run.replicate(number).snapshot(step).exists():
            raise InputError(f"{run.replicate(number).snapshot(step)} is missing: run {run.typed('train')}, which adds it")
    patterns.check_trained(run)
    return tickets


def _check_masks(run: Run, selection: Selection) -> None:
    """Raise InputError when a replicate has no masks of one shot, or lacks one that is asked for (by default: that another one
    has)."""
    families = run.families(selection)
    for name in (name for name, family in families.items() if family.quantiles):
        cut_in = {
            replicate.folder: {mask.name for mask in replicate.masks(name) if mask.is_cut} for replicate in run.replicates()
        }
        for folder, labels in cut_in.items():
            if not labels:
                raise InputError(f"{folder} has no masks: run {run.typed('thresholds')} first")
            missing = ",".join(label.removeprefix("q") for label in families[name].labels if label not in labels)
            if missing:
                thresholds = run.typed(f"thresholds --quantiles {missing}")
                raise InputError(f"{folder} has no mask of {missing}: run {thresholds} first")


class _HandOut:
    """The networks of one command: which are ready, which wait for another, and how the trained ones ended."""

    def __init__(self, run: Run, planned: Plan, reporter: Reporter, selection: Selection, part: Part):
        self.run, self.planned, self.reporter, self.selection = run, planned, reporter, selection
        self.part, self.summary = part, Summary()
        self.waiting: list[Ticket] = []
        self.under_way = 0  # networks that were handed out and have not ended
        self.trained: set[Ticket] = set()  # by this command; on a shared file system their results may show up here later
        self.is_last = False

    def begin(self) -> list[Ticket]:
        """The networks that can be trained at once."""
        tickets = checked_tickets(self.run, self.selection)
        self.run.adopt()
        if line := _no_controls(self.run, self.selection, tickets):
            self.reporter.say(line)
        self._add(self.part.of(tickets, _chain))
        return self._released()

    def _add(self, tickets: Sequence[Ticket]) -> None:
        results = {ticket: self.run.network(ticket).read_result() for ticket in tickets}
        done = [ticket for ticket, result in results.items() if result and result.status == "done"]
        self._cut_again(done)
        self._check_lineage(done)
        diverged = [(ticket, result) for ticket, result in results.items() if result and result.status == "diverged"]
        missing = [ticket for ticket, result in results.items() if not (result and result.is_ended)]
        for ticket in done:
            self.run.network(ticket).clear()
        self.reporter.say(
            f"{len(tickets)} networks under masks: {len(done)} finished, "
            f"{f'{len(diverged)} diverged, ' if diverged else ''}{len(missing)} to train"
        )
        self.summary.finished += len(done)
        self.summary.unfinished += [
            (ticket, {"status": result.status, "reason": result.last_reason}) for ticket, result in diverged
        ]
        self.clock = _Clock(len(missing), sum(self.planned.epochs(ticket) for ticket in missing))
        self.waiting += missing

    def _cut_again(self, done: Sequence[Ticket]) -> None:
        """Write the tables of finished rounds' masks that are missing: users are told to remove damaged ones."""
        masks = [mask for mask in masks_of(done) if mask.rewind is not None]
        lost = [mask for mask in masks if self.run.mask(mask).mask.exists() and not self.run.mask(mask).table.exists()]
        for mask in sorted(lost, key=lambda mask: mask.round):
            cut(self.run, [mask])

    def _check_lineage(self, done: Sequence[Ticket]) -> None:
        """Raise InputError if a finished network was not made from the current dense network."""
        lineages = {number: Lineage(self.run.replicate(number)) for number in {ticket.replicate for ticket in done}}
        for ticket in done:
            table = self.run.network(ticket).result
            if problem := lineages[ticket.replicate].problem(table):
                raise InputError(f"{table} {problem}: {WAY_OUT}")

    def done(self, ticket: Ticket, outcome: Outcome) -> list[Ticket]:
        """Note how `ticket` ended; return the networks that can be trained now."""
        self.under_way -= 1
        if outcome["status"] == "done":
            self.summary.finished += 1
            self.trained.add(ticket)
        else:
            self.summary.unfinished.append((ticket, outcome))
        self.reporter.say(f"{self.clock.tick(self.planned.epochs(ticket))} {ticket}: {told(outcome)}")
        return self._released()

    def end(self) -> Summary:
        """The summary, with the networks whose needs were never met. What another process trained may be finished by now."""
        unfinished = self.summary.unfinished
        busy = {ticket for ticket, outcome in unfinished if outcome["status"] == "busy"}
        elsewhere = [ticket for ticket in busy if self.run.network(ticket).is_finished]
        self.summary.finished += len(elsewhere)
        self.summary.unfinished = [(ticket, outcome) for ticket, outcome in unfinished if ticket not in elsewhere]
        for ticket in self.waiting:  # each after what it needs
            needed = next((one for one in ticket.needs if one in busy or not self._is_done(one)), ticket.needs[0])
            if needed in busy:
                busy.add(ticket)
            status = "busy" if needed in busy else "waiting"
            self.summary.unfinished.append((ticket, {"status": status, "reason": f"needs {needed}"}))
        return self.summary

    def _released(self) -> list[Ticket]:
        ready = [ticket for ticket in self.waiting if all(map(self._is_done, ticket.needs))]
        self.waiting = [ticket for ticket in self.waiting if ticket not in ready]
        self.under_way += len(ready)
        if not self.under_way and not self.is_last:
            self.is_last = True
            if later := self._following():
                self._add(later)
                return self._released()
        return sorted(ready, key=lambda ticket: ticket.mask.rewind is not None and ticket.variant != TICKET)

    def _following(self) -> list[Ticket]:
        """The controls of headlines, now that all else is trained."""
        if not any(family.controls_follow for family in self.run.families(self.selection).values()):
            return []
        controls = _following(self.run, self.planned, self.selection)
        headlines = dict.fromkeys(f"{one.family} {one.name}" for one in controls)
        self.reporter.say(f"controls of the headline: {', '.join(headlines)}" if controls else NO_HEADLINE)
        return self.part.of(controls, _chain)

    def _is_done(self, ticket: Ticket) -> bool:
        if ticket in self.trained:
            return True
        result = self.run.network(ticket).read_result()
        return result is not None and result.status == "done"


def _no_controls(run: Run, selection: Selection, tickets: Sequence[Ticket]) -> str:
    """A line if controls are asked for and none of these masks has them."""
    names = {name: family.controls_at for name, family in run.families(selection).items() if family.controls_at}
    without = [name for name in names if not any(one.family == name and one.variant != TICKET for one in tickets)]
    asked = [f"families.{name}.controls_at = {names[name]}" for name in without if run.recipe.families[name].controls]
    return f"no controls: {'; '.join(asked)} names none of these masks" if asked else ""


def told(outcome: Outcome) -> str:
    """How a training ended, in one line."""
    if outcome["status"] == "done":
        return f"validation {outcome['validation_accuracy']:.2%}, {duration(outcome['seconds'])}"
    return f"{outcome['status']}: {outcome['reason']}"


class _Clock:
    """Counts networks and estimates the time left from the epochs done so far."""

    def __init__(self, networks: int, epochs: float):
        self.began, self.networks, self.count, self.epochs, self.spent = time.monotonic(), networks, 0, epochs, 0.0

    def tick(self, epochs: float) -> str:
        self.count, self.spent = self.count + 1, self.spent + epochs
        left = (time.monotonic() - self.began) / self.spent * (self.epochs - self.spent)
        return f"[{self.count}/{self.networks}, {duration(left)} left]"
