"""The error between two networks, on the straight line: of trainings of a ticket that differ in the order of examples, and of
the tickets of one round and the next."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from lottery.base import locks, preemption
from lottery.base.capacity import Allocation
from lottery.base.errors import Failed, InputError
from lottery.base.progress import Reporter, count_of
from lottery.engine.start import start_tensorflow
from lottery.executors.choice import executor
from lottery.executors.workload import IN_PROCESS, Execution, Worker, Workload
from lottery.experiment import graph, seeds
from lottery.experiment.graph import TICKET, Snapshot, Ticket
from lottery.experiment.plan import Selection
from lottery.pruning import interpolation, masks
from lottery.pruning.state import State
from lottery.rundir import records, store, wording
from lottery.rundir.lineage import Lineage, seals
from lottery.rundir.records import PairRecord
from lottery.rundir.run import EVERYTHING, Run


class Pair(NamedTuple):
    """Two trainings of a ticket, and their numbers among its `copies`; or the network of the round before and a ticket."""

    one: Snapshot | Ticket
    other: Ticket
    copies: tuple[int, int] | None

    def __str__(self) -> str:
        ticket = dataclasses.replace(self.other, variant=TICKET)
        return f"{ticket}, {'copies {} and {}'.format(*self.copies) if self.copies else 'from the round before'}"


Pairs = Callable[[Run, Selection], list[Pair]]


@dataclasses.dataclass(frozen=True)
class Line:
    """At how many `points` of a line errors are found, ends included, and with how many training `examples` (None: all)."""

    points: int = interpolation.POINTS
    examples: int | None = None


USUAL = Line()


def stability(
    run: Run,
    reporter: Reporter,
    selection: Selection = EVERYTHING,
    execution: Execution = IN_PROCESS,
    between: Pairs | None = None,
    line: Line | None = None,
) -> bool:
    """Find the errors on the `line` (None: as those that are there) between all pairs of the selected tickets, where that is
    not done; `between` gives the pairs, by default those of `copies`. Returns whether this process knows the outcome: of MPI's
    ranks, one does. Raises InputError as `between` does, and for another line than of pairs that are there; Failed where a pair
    was not done; a pair with one that diverged is left out."""
    wanted, line = (between or copies)(run, selection), _line(run, line)

    def missing() -> list[Pair]:
        lineages = {number: Lineage(run.replicate(number)) for number in run.numbers()}
        return [pair for pair in wanted if not _is_done(run, pair, lineages[pair.other.replicate])]

    unfinished: list[str] = []

    def done(pair: Pair, outcome: Mapping[str, Any]) -> Sequence[Pair]:
        if outcome["status"] == "done":
            reporter.say(f"{pair}: instability {outcome['instability']:.2%} on test {wording.example(run.metric)}s")
        else:
            unfinished.append(f"{pair}: {outcome['reason']}")
        return ()

    workload = Workload(missing, partial(pair_worker, run, line), done, reporter, run.recipe.train.threads, run.common())
    with locks.staying(run.folder):
        reporter.say(f"{count_of(len(wanted), 'pair')} of trainings, {len(missing())} to interpolate")
        is_told_here = executor(execution).run(workload)
    if unfinished:
        raise Failed(unfinished[0])
    return is_told_here


@contextlib.contextmanager
def pair_worker(run: Run, line: Line, allocation: Allocation, reporter: Reporter) -> Iterator[Worker]:
    with locks.staying(run.folder):
        start_tensorflow()
        yield PairWorker(run, line, reporter, allocation)


def rounds(run: Run, selection: Selection = EVERYTHING) -> list[Pair]:
    """The selected tickets of rounds that are trained, each with the network that its mask was scored on: the dense one, or the
    ticket of the round before. Raises InputError where there are none."""
    families = {name: family for name, family in run.families(selection).items() if family.rounds}
    tickets = run.plan().tickets(run.numbers(), families) if families else []
    results = {ticket: run.network(ticket).read_result() for ticket in tickets if ticket.variant == TICKET}
    found = [
        Pair(one.mask.scored_on, one, None) for one, result in results.items() if one.mask.scored_on and result and result.final
    ]
    if not found:
        raise InputError("no ticket of rounds is trained: run `imp rounds` first")
    return found


def copies(run: Run, selection: Selection = EVERYTHING) -> list[Pair]:
    """All pairs of copies of the selected tickets that are trained, in order. Raises InputError where no family has copies, or
    one of them is not trained."""
    families = {name: family for name, family in run.families(selection).items() if family.copies > 1}
    if not families:
        name = next(iter(run.families(selection)), "oneshot")
        raise InputError(f"no ticket is trained more than once: add copies with `imp retrain --set families.{name}.copies=3`")
    found, untrained = [], []
    for ticket in run.plan().tickets(run.numbers(), families):
        if ticket.variant == TICKET:
            alike = [ticket, *graph.copies_of(ticket, families[ticket.family].copies)]
            results = [run.network(one).read_result() for one in alike]
            untrained += [one for one, result in zip(alike, results, strict=True) if not (result and result.is_ended)]
            numbered = [(n, one) for n, one, result in zip(itertools.count(1), alike, results) if result and result.final]
            found += [Pair(one, other, (n, m)) for (n, one), (m, other) in itertools.combinations(numbered, 2)]
    if untrained:
        raise InputError(f"{count_of(len(untrained), 'network')} not trained, such as {untrained[0]}: run `imp retrain` first")
    return found


def _line(run: Run, asked: Line | None) -> Line:
    """The line on which all pairs of `run` are found: that of those which are there, whose means a report shows; else what is
    `asked` for. Raises InputError where these differ."""
    paths = [path for number in run.known_numbers() for path in run.replicate(number).pairs()]
    if not paths:
        return asked or USUAL
    first = records.read(paths[0], PairRecord)
    known = Line(len(first.shares), first.examples)
    if asked not in (None, known):
        examples = f"--examples {known.examples}" if known.examples else "no --examples"
        raise InputError(
            f"{paths[0]} was found with --points {known.points} and {examples}: give the same, or remove such files"
        )
    return known


def _is_done(run: Run, pair: Pair, lineage: Lineage) -> bool:
    """Raises InputError where it is damaged, or of other networks than those that are there."""
    path = run.replicate(pair.other.replicate).pair(pair.other, pair.copies)
    if not path.exists():
        return False
    if problem := lineage.problem(path):
        raise InputError(f"{path} {problem}: remove it and run `imp stability` again")
    return True


class PairWorker:
    """Finds the errors between pairs of networks, all in the same compiled evaluation."""

    def __init__(self, run: Run, line: Line, reporter: Reporter, allocation: Allocation):
        from lottery.engine import assembly
        from lottery.engine.step import moving_statistics

        self.run, self.line, self.reporter = run, line, reporter
        self.trainer = assembly.make_trainer(run, reporter, allocation=allocation)
        run.check_origins(self.trainer.origins)
        self.has_statistics = bool(moving_statistics(self.trainer.model))

    def __call__(self, pair: Pair) -> dict[str, Any]:
        ticket, replicate = pair.other, self.run.replicate(pair.other.replicate)
        assert ticket.start, "a ticket, which starts somewhere"
        sources = [self.run.mask(ticket.mask).mask, *map(replicate.state_of, (ticket.start, pair.one, ticket))]
        lineage = Lineage(replicate)
        for path in sources:
            lineage.check(path)
        mask, (start, one, other) = store.load_mask(sources[0]), map(store.load_state, sources[1:])
        start = dataclasses.replace(start, weights=masks.apply(mask, start.weights))
        lines = 1 if pair.copies else 2
        with self.reporter.counting(str(pair), lines * self.line.points, "points") as progress:
            errors, recomputed = self._along(ticket, one, other, progress)
            projected = {}
            if not pair.copies:
                first = one.evaluated
                first = dataclasses.replace(first, weights=masks.apply(mask, first.weights), optimizer={})
                interpolated, anew = self._along(ticket, first, other, progress, is_only_anew=True)
                projected = anew or interpolated
        record = PairRecord(
            made_from=self.trainer.origins | seals(replicate.folder, sources),
            replicate=ticket.replicate,
            family=ticket.family,
            mask=ticket.mask.label,
            round=ticket.mask.round,
            rewind_step=ticket.rewind,
            copies=pair.copies,
            examples=self.line.examples,
            shares=interpolation.shares(self.line.points),
            errors=errors,
            recomputed=recomputed,
            projected=projected,
            distances=interpolation.distances(start, one, other),
        )
        records.write(replicate.pair(ticket, pair.copies), record)
        return {"status": "done", "instability": interpolation.instability(errors["test"])}

    def _along(
        self, ticket: Ticket, one: State, other: State, progress: Callable[[int], None], is_only_anew: bool = False
    ) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """The errors on the line by split, and those with BatchNorm's statistics found anew, where there is BatchNorm; then the
        former may be left out."""
        order = seeds.derive(self.run.recipe.seed, ticket.replicate, "order")
        errors = partial(self._errors, order, is_only_anew and self.has_statistics, progress)
        found = interpolation.along(one, other, errors, self.line.points)
        interpolated, anew = ({split: [at[kind][split] for at in found] for split in found[0][kind]} for kind in (0, 1))
        return interpolated, anew

    def _errors(
        self, order: int, is_only_anew: bool, progress: Callable[[int], None], state: State
    ) -> tuple[dict[str, float], dict[str, float]]:
        """The errors of `state` by split; and those with BatchNorm's statistics found anew, where there is BatchNorm."""
        preemption.check()
        self.trainer.load(state)
        errors = {} if is_only_anew else self._evaluated()
        recomputed = {}
        if self.has_statistics:
            for _ in self.trainer.settle(order, self.line.examples):
                pass
            recomputed = self._evaluated()
        progress(1)
        return errors, recomputed

    def _evaluated(self) -> dict[str, float]:
        limits = {"train": self.line.examples, "test": None}
        return {split: 1 - self.trainer.evaluate(split, most=most).deciding for split, most in limits.items()}
