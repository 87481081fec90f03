"""Stage 4: train the missing networks under masks, by an executor, each as soon as what it needs is trained."""

import contextlib
import dataclasses
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from lottery.base import locks
from lottery.base.capacity import Allocation
from lottery.base.errors import InputError
from lottery.base.progress import Reporter, duration
from lottery.engine.start import start_tensorflow
from lottery.executors.choice import executor
from lottery.executors.workload import IN_PROCESS, Execution, Headlines, Part, Worker, Workload
from lottery.experiment.graph import TICKET, Bundle, Snapshot, Ticket, bundled, is_beside, masks_of, side_by_side
from lottery.experiment.grids import Grid
from lottery.experiment.plan import Plan, Selection
from lottery.results import grouping
from lottery.rundir import wording
from lottery.rundir.lineage import WAY_OUT, Lineage
from lottery.rundir.run import Run
from lottery.stages import bundles
from lottery.stages.cut import check_families, cut

NO_LEARNING = 1e-3  # the share of the peak below which a schedule's last learning rate teaches nothing
NO_HEADLINE = (
    "no controls of headlines yet: they need three replicates with all tickets trained, and a ticket that matches; the same "
    "command trains them then"
)
CHAIN = operator.attrgetter("chain")
Outcome = dict[str, Any]
Unfinished = dict[Ticket, Outcome]  # networks, and why they are not finished


def retrain(run: Run, reporter: Reporter, selection: Selection, execution: Execution = IN_PROCESS) -> Unfinished | None:
    """Train every network of the selected families that has no result yet, and try again those that failed; then the controls
    of headlines, if the recipe does not say which masks have controls. Returns the networks that are not finished; None if
    other processes report them. Raises InputError as `checked_tickets` does."""
    planned = run.plan()
    hand_out = HandOut(run, planned, reporter, selection, execution.part, execution.headlines)

    @cache
    def size() -> int:
        elsewhere = execution.executor is not None  # on machines that this one knows nothing of
        return execution.bundle or (1 if elsewhere else bundles.fastest(run, execution.per_gpu, reporter))

    bundling = _Bundling(hand_out, size)

    def list_missing() -> list[Ticket]:
        tickets = checked_tickets(run, selection) if execution.headlines != "only" else []
        controls = _following(run, planned, selection) if execution.headlines != "leave" else []
        return [one for one in execution.part.of([*tickets, *controls], CHAIN) if not run.network(one).is_finished]

    workload = Workload(
        list_tasks=bundling.begin,
        make_worker=partial(ticket_worker, run),
        on_done=bundling.done,
        reporter=reporter,
        threads=run.recipe.train.threads,
        common=run.common(),
        width=lambda: -(-side_by_side(list_missing()) // size()),
    )
    with locks.staying(run.folder):
        return hand_out.end() if executor(execution).run(workload) else None


@contextlib.contextmanager
def ticket_worker(run: Run, allocation: Allocation, reporter: Reporter) -> Iterator[Worker]:
    with locks.staying(run.folder):
        start_tensorflow()  # here, because a process that coordinates or idles does not need it
        from lottery.stages import tickets

        yield tickets.TicketWorker(run, run.plan(), reporter, allocation)


def _following(run: Run, planned: Plan, selection: Selection) -> list[Ticket]:
    """The controls of headlines, in the replicates that the command works on."""
    controls, diverged = grouping.controls(run, planned, run.families(selection)), run.diverged()
    return [one for one in controls if one.replicate in run.numbers() and one.replicates.isdisjoint(diverged)]


def checked_tickets(run: Run, selection: Selection) -> list[Ticket]:
    """The networks of a retraining, in order, but for controls with the mask of a replicate that diverged. Raises InputError if
    a dense network is not trained, a mask or a snapshot is missing, or the recipe asks for something impossible."""
    run.check_trained()
    planned, families = run.plan(), run.families(selection)
    for name, family in families.items():
        if family.method == "finetune" and planned.finetune_rate(family) < NO_LEARNING * run.recipe.train.learning_rate:
            raise InputError(
                f"finetune trains at the schedule's last learning rate, and that of train.schedule = "
                f"{run.recipe.train.schedule!r} is almost 0: set families.{name}.finetune_rate"
            )
    _check_masks(run, selection)
    diverged = run.diverged()
    tickets = [one for one in run.tickets(planned, selection) if one.replicates.isdisjoint(diverged)]
    if lenders := {number for one in tickets for number in one.replicates} - {*run.numbers()}:
        run = dataclasses.replace(run, chosen=(*run.numbers(), *sorted(lenders)))
        run.check_trained()
    sources = [source for one in tickets for source in (one.start, one.given.scored_on) if isinstance(source, Snapshot)]
    for source in sorted(set(sources), key=lambda source: (source.replicate, source.step)):
        if not (path := run.replicate(source.replicate).snapshot(source.step)).exists():
            raise InputError(f"{path} is missing: run {run.typed('train')}, which adds it")
    check_families(run)
    return tickets


def _check_masks(run: Run, selection: Selection) -> None:
    for name, family in run.families(selection).items():
        for replicate in run.replicates() if family.is_cut_at_once else ():
            cut_there = {mask.name for mask in replicate.masks(name) if mask.is_cut}
            if not cut_there:
                raise InputError(f"{replicate.folder} has no masks: run {run.typed('thresholds')} first")
            if missing := Grid.of(quantile for quantile in family.quantiles if quantile.label not in cut_there):
                thresholds = run.typed(f"thresholds --quantiles {missing}")
                raise InputError(f"{replicate.folder} has no mask of {missing}: run {thresholds} first")


class HandOut:
    """The networks of one command: which are ready, which wait for another, and how the trained ones ended."""

    def __init__(
        self, run: Run, planned: Plan, reporter: Reporter, selection: Selection, part: Part, headlines: Headlines = "follow"
    ):
        self.run, self.planned, self.reporter, self.selection, self.part = run, planned, reporter, selection, part
        self.headlines = headlines
        self.batches: list[list[Ticket]] = []  # of its part, finished or not
        self.waiting: list[Ticket] = []
        self.under_way: set[Ticket] = set()  # handed out and not ended
        self.trained: set[Ticket] = set()  # by this command; on a shared file system their results may show up here later
        self.unfinished: Unfinished = {}
        self.is_last = headlines == "leave"

    def begin(self) -> list[Ticket]:
        """The networks that can be trained at once."""
        tickets, self.families = checked_tickets(self.run, self.selection), self.run.families(self.selection)
        self.run.adopt()
        controlled = {one.family for one in tickets if one.variant != TICKET}
        asked = [(name, one) for name, one in self.families.items() if one.controls and one.controls_at]
        if without := [f"families.{name}.controls_at = {one.controls_at}" for name, one in asked if name not in controlled]:
            self.reporter.say(f"no controls: {'; '.join(without)} names none of these masks")
        if self.headlines != "only":
            self._add(tickets)
        return self._released()

    def _add(self, tickets: Sequence[Ticket]) -> None:
        """Take the networks of this command's part in. Raises InputError for one of another dense network."""
        results = {ticket: self.run.network(ticket).read_result() for ticket in self.part.of(tickets, CHAIN)}
        self.batches.append(list(results))
        done = [ticket for ticket, result in results.items() if result and result.status == "done"]
        self._check(done)
        diverged = {ticket: result for ticket, result in results.items() if result and result.status == "diverged"}
        missing = [ticket for ticket, result in results.items() if not (result and result.is_ended)]
        self.reporter.say(
            f"{len(results)} networks under masks: {len(done)} finished, "
            f"{f'{len(diverged)} diverged, ' if diverged else ''}{len(missing)} to train"
        )
        self.unfinished |= {one: {"status": result.status, "reason": result.last_reason} for one, result in diverged.items()}
        self.waiting += missing
        self.began, self.ended, self.count = time.monotonic(), 0, len(missing)
        self.spent, self.epochs = 0.0, sum(map(self.planned.epochs, missing))

    def _check(self, done: Sequence[Ticket]) -> None:
        lost = [
            mask
            for mask in masks_of(done)
            if mask.rewind is not None and self.run.mask(mask).mask.exists() and not self.run.mask(mask).table.exists()
        ]
        cut(self.run, lost)  # that is, write the tables again: users are told to remove damaged ones
        lineages = {number: Lineage(self.run.replicate(number)) for number in {ticket.replicate for ticket in done}}
        for ticket in done:
            network = self.run.network(ticket)
            if problem := lineages[ticket.replicate].problem(network.result):
                raise InputError(f"{network.result} {problem}: {WAY_OUT}")
            network.clear()

    def done(self, ticket: Ticket, outcome: Outcome) -> list[Ticket]:
        """Note how `ticket` ended; return the networks that can be trained now."""
        self.under_way.discard(ticket)
        if outcome["status"] == "done":
            self.trained.add(ticket)
        else:
            self.unfinished[ticket] = outcome
        self.ended, self.spent = self.ended + 1, self.spent + self.planned.epochs(ticket)
        left = (time.monotonic() - self.began) / self.spent * (self.epochs - self.spent)
        self.reporter.say(f"[{self.ended}/{self.count}, {duration(left)} left] {ticket}: {told(outcome)}")
        return self._released()

    def end(self) -> Unfinished:
        """The networks that are not finished, with those whose needs were never met. Others may have finished some."""
        busy = {ticket for ticket, outcome in self.unfinished.items() if outcome["status"] == "busy"}
        elsewhere = [ticket for ticket in busy if self.run.network(ticket).is_finished]
        unfinished = {ticket: outcome for ticket, outcome in self.unfinished.items() if ticket not in elsewhere}
        for ticket in self.waiting:  # each after what it needs
            needed = next((one for one in ticket.needs if one in busy or not self._is_done(one)), ticket.needs[0])
            if needed in busy:
                busy.add(ticket)
            unfinished[ticket] = {"status": "busy" if needed in busy else "waiting", "reason": f"needs {needed}"}
        return unfinished

    def _released(self) -> list[Ticket]:
        ours = {*self.waiting, *self.under_way}  # so nobody has to look for their results, which on a cluster is slow
        ready = [one for one in self.waiting if ours.isdisjoint(one.needs) and all(map(self._is_done, one.needs))]
        self.under_way.update(ready)
        self.waiting = [one for one in self.waiting if one not in self.under_way]
        if not self.under_way and not self.is_last:
            self.is_last = True
            if any(family.controls_follow for family in self.families.values()):
                controls = _following(self.run, self.planned, self.selection)
                headlines = ", ".join(dict.fromkeys(f"{one.family} {one.name}" for one in controls))
                self.reporter.say(f"controls of the headline: {headlines}" if controls else NO_HEADLINE)
                if self.part.of(controls, CHAIN):
                    self._add(controls)
                    return self._released()
        return sorted(ready, key=is_beside)

    def _is_done(self, ticket: Ticket) -> bool:
        if ticket in self.trained:
            return True
        result = self.run.network(ticket).read_result()
        return result is not None and result.status == "done"


class _Bundling:
    """What `hand_out` hands out, in bundles of `size()`, which only the process that hands out asks for."""

    def __init__(self, hand_out: HandOut, size: Callable[[], int]):
        self.hand_out, self.size = hand_out, size
        self.bundle_of: dict[Ticket, Bundle] = {}
        self.seated = 0  # batches of `hand_out`

    def begin(self) -> list[Bundle]:
        return self._bundles(self.hand_out.begin())

    def done(self, bundle: Bundle, outcome: Outcome) -> list[Bundle]:
        each = outcome.get("each", [outcome] * len(bundle.tickets))
        released = [self.hand_out.done(ticket, own) for ticket, own in zip(bundle.tickets, each, strict=True)]
        return self._bundles([one for ready in released for one in ready])

    def _bundles(self, ready: Sequence[Ticket]) -> list[Bundle]:
        """`ready` networks in their bundles, in their order."""
        for batch in self.hand_out.batches[self.seated :]:
            apart = [Bundle((one,)) for one in batch if self._is_alone(one)]
            together = bundled([one for one in batch if not self._is_alone(one)], self.size())
            self.bundle_of |= {one: bundle for bundle in (*apart, *together) for one in bundle.tickets}
        self.seated = len(self.hand_out.batches)
        return [bundle.of(ready) for bundle in dict.fromkeys(self.bundle_of[one] for one in ready)]

    def _is_alone(self, ticket: Ticket) -> bool:
        """Whether `ticket` may be trained as a smaller network, its mask changes in training, or it is not trained."""
        recipe = self.hand_out.run.recipe
        changes = recipe.families[ticket.family].changes_masks and ticket.variant == TICKET
        return not ticket.is_trained or changes or recipe.is_compact(ticket.family)


def told(outcome: Outcome) -> str:
    """How a training ended, in one line."""
    if outcome["status"] == "done":
        return f"validation {wording.value(outcome['metric'], outcome['validation'])}, {duration(outcome['seconds'])}"
    return f"{outcome['status']}: {outcome['reason']}"
