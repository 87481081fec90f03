"""The instability of tickets, from pairs of trainings that differ in the order of examples."""

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
from lottery.experiment.graph import TICKET, Ticket
from lottery.experiment.plan import Selection
from lottery.pruning import interpolation, masks
from lottery.pruning.state import State
from lottery.rundir import records, store, wording
from lottery.rundir.lineage import Lineage, seals
from lottery.rundir.records import PairRecord
from lottery.rundir.run import EVERYTHING, Run

SPLITS = ("train", "test")


class Pair(NamedTuple):
    """Two trainings of a ticket, and their numbers among its copies."""

    one: Ticket
    other: Ticket
    copies: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.one}, copies {self.copies[0]} and {self.copies[1]}"


def stability(run: Run, reporter: Reporter, selection: Selection = EVERYTHING, execution: Execution = IN_PROCESS) -> bool:
    """Find the errors between all pairs of copies of the selected tickets, where that is not done. Returns whether this
    process knows the outcome: of MPI's ranks, one does. Raises InputError where no family has copies, or one of them is not
    trained, and Failed where a pair was not done; a pair with one that diverged is left out."""
    wanted = pairs(run, selection)

    def missing() -> list[Pair]:
        lineages = {number: Lineage(run.replicate(number)) for number in run.numbers()}
        return [pair for pair in wanted if not _is_done(run, pair, lineages[pair.one.replicate])]

    unfinished: list[str] = []

    def done(pair: Pair, outcome: Mapping[str, Any]) -> Sequence[Pair]:
        if outcome["status"] == "done":
            reporter.say(f"{pair}: instability {outcome['instability']:.2%} on test {wording.example(run.metric)}s")
        else:
            unfinished.append(f"{pair}: {outcome['reason']}")
        return ()

    workload = Workload(missing, partial(pair_worker, run), done, reporter, run.recipe.train.threads, run.common())
    with locks.staying(run.folder):
        reporter.say(f"{count_of(len(wanted), 'pair')} of trainings, {len(missing())} to interpolate")
        is_told_here = executor(execution).run(workload)
    if unfinished:
        raise Failed(unfinished[0])
    return is_told_here


@contextlib.contextmanager
def pair_worker(run: Run, allocation: Allocation, reporter: Reporter) -> Iterator[Worker]:
    with locks.staying(run.folder):
        start_tensorflow()
        yield PairWorker(run, reporter, allocation)


def pairs(run: Run, selection: Selection = EVERYTHING) -> list[Pair]:
    """All pairs of copies of the selected tickets that are trained, in order. Raises InputError as `stability` does."""
    families = {name: family for name, family in run.families(selection).items() if family.copies > 1}
    if not families:
        name = next(iter(run.families(selection)), "oneshot")
        raise InputError(f"no ticket is trained more than once: add copies with `imp retrain --set families.{name}.copies=3`")
    found, untrained = [], []
    for ticket in run.plan().tickets(run.numbers(), families):
        if ticket.variant == TICKET:
            copies = [ticket, *graph.copies_of(ticket, families[ticket.family].copies)]
            results = [run.network(one).read_result() for one in copies]
            untrained += [one for one, result in zip(copies, results, strict=True) if not (result and result.is_ended)]
            numbered = [(n, one) for n, one, result in zip(itertools.count(1), copies, results) if result and result.final]
            found += [Pair(one, other, (n, m)) for (n, one), (m, other) in itertools.combinations(numbered, 2)]
    if untrained:
        raise InputError(f"{count_of(len(untrained), 'network')} not trained, such as {untrained[0]}: run `imp retrain` first")
    return found


def _is_done(run: Run, pair: Pair, lineage: Lineage) -> bool:
    """Raises InputError where it is damaged, or of other networks than those that are there."""
    path = run.replicate(pair.one.replicate).pair(pair.one, pair.copies)
    if not path.exists():
        return False
    if problem := lineage.problem(path):
        raise InputError(f"{path} {problem}: remove it and run `imp stability` again")
    return True


class PairWorker:
    """Finds the errors between pairs of networks, all in the same compiled evaluation."""

    def __init__(self, run: Run, reporter: Reporter, allocation: Allocation):
        from lottery.engine import assembly
        from lottery.engine.step import moving_statistics

        self.run, self.reporter = run, reporter
        self.trainer = assembly.make_trainer(run, reporter, allocation=allocation)
        run.check_origins(self.trainer.origins)
        self.has_statistics = bool(moving_statistics(self.trainer.model))

    def __call__(self, pair: Pair) -> dict[str, Any]:
        replicate = self.run.replicate(pair.one.replicate)
        assert pair.one.start, "a ticket, which starts somewhere"
        finals = [replicate.network(one).final for one in (pair.one, pair.other)]
        sources = [self.run.mask(pair.one.mask).mask, replicate.state_of(pair.one.start), *finals]
        lineage = Lineage(replicate)
        for path in sources:
            lineage.check(path)
        mask, (start, one, other) = store.load_mask(sources[0]), map(store.load_state, sources[1:])
        start = dataclasses.replace(start, weights=masks.apply(mask, start.weights))
        order = seeds.derive(self.run.recipe.seed, pair.one.replicate, "order")
        with self.reporter.counting(str(pair), interpolation.POINTS, "points") as progress:
            found = interpolation.along(one, other, partial(self._errors, order, progress))
        errors, recomputed = ({split: [one[kind][split] for one in found] for split in found[0][kind]} for kind in (0, 1))
        record = PairRecord(
            made_from=self.trainer.origins | seals(replicate.folder, sources),
            replicate=pair.one.replicate,
            family=pair.one.family,
            mask=pair.one.mask.label,
            round=pair.one.mask.round,
            rewind_step=pair.one.rewind,
            copies=pair.copies,
            shares=interpolation.shares(),
            errors=errors,
            recomputed=recomputed,
            distances=interpolation.distances(start, one, other),
        )
        records.write(replicate.pair(pair.one, pair.copies), record)
        return {"status": "done", "instability": interpolation.instability(errors["test"])}

    def _errors(self, order: int, progress: Callable[[int], None], state: State) -> tuple[dict[str, float], dict[str, float]]:
        """The errors of `state` by split; and those with BatchNorm's statistics found anew, where there is BatchNorm."""
        preemption.check()
        self.trainer.load(state)
        errors = self._evaluated()
        recomputed = {}
        if self.has_statistics:
            for _ in self.trainer.settle(order):
                pass
            recomputed = self._evaluated()
        progress(1)
        return errors, recomputed

    def _evaluated(self) -> dict[str, float]:
        return {split: 1 - self.trainer.evaluate(split).deciding for split in SPLITS}
