"""The search for the sparsest ticket that matches, or for the earliest rewind point at which one does: by bisection, with as
many replicates for each candidate as its verdict needs. What is trained next follows from the results that are there, and from
nothing else: a search that was stopped goes on as if it had not been."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import pandas

from lottery.base.errors import InputError
from lottery.base.progress import Reporter, count_of
from lottery.experiment import bisection
from lottery.experiment.graph import DENSE, TICKET
from lottery.experiment.grids import Grid, Point, Quantile, Round
from lottery.experiment.plan import Plan, Selection
from lottery.experiment.rule import LEAST_REPLICATES, Rule, Verdict
from lottery.results import frame
from lottery.rundir.run import Run

Over = Literal["density", "rewind"]
BUDGET = re.compile(r"(\d+(?:\.\d+)?)(ep|h)")


class Candidate(NamedTuple):
    """The quantile or round of a mask and a rewind point; `selection` trains its ticket, `rewind_step` is the point's."""

    at: Quantile | Round
    rewind: Point
    rewind_step: int
    selection: Selection

    def __str__(self) -> str:
        return f"{self.at.label} rewound to {self.rewind}"


class Tested(NamedTuple):
    """The verdict on a candidate, and after how many `replicates` it fell, or how many there are so far. `needs` is the
    replicate that it lacks (None: it has its verdict); `lost` the one that diverged or failed."""

    verdict: Verdict
    replicates: int
    needs: int | None = None
    lost: int | None = None


class Standing(NamedTuple):
    """How far a search has come: its candidates by place that were `tested`, the `next` one to test, with the replicates that
    it `needs`, and what was `spent`, in the unit of the budget."""

    tested: dict[int, Tested]
    spent: float
    next: int | None = None
    needs: Sequence[int] = ()


@dataclasses.dataclass(frozen=True)
class Search:
    """A search in `run` among the tickets of `selection`, from dense to sparse or from late to early rewind points. Each
    candidate is judged after every replicate from the third on, up to `most`, by a rule so strict that a search errs no more
    often than one verdict. Once the networks of the run have cost the `budget` (`300ep`, `5h`) it ends. So many replicates
    `at_once` are trained, of which some may turn out not to be needed."""

    run: Run
    selection: Selection
    over: Over = "density"
    most: int = 10
    budget: str | None = None
    at_once: int = 1

    def __post_init__(self) -> None:
        if self.budget is not None and not BUDGET.fullmatch(self.budget):
            raise InputError(f"--budget {self.budget!r} is neither epochs nor hours: write 300ep or 5h")

    @cached_property
    def candidates(self) -> list[Candidate]:
        """In the order in which they stop to match. Raises InputError unless the selection is one family and, of density and
        rewind point, one of what is not searched."""
        families = self.selection.of(self.run.recipe)
        if len(families) != 1:
            raise InputError(f"a search is in one family: choose with --family from {', '.join(families)}")
        [(name, family)] = families.items()
        planned = self.run.plan()
        points = sorted(family.rewind, key=lambda point: (point.step(planned.steps_per_epoch), str(point)))
        planned.rewind_steps(family.rewind)
        if self.over == "density" and len(points) > 1:
            raise InputError(f"families.{name} has the rewind points {family.rewind}: choose one with --rewind")
        if self.over == "rewind" and len(family.quantiles) > 1:
            raise InputError(f"families.{name} has {count_of(len(family.quantiles), 'quantile')}: choose one with --quantiles")
        if self.over == "rewind":
            return [_candidate(name, family.grid[-1], point, planned) for point in reversed(points)]
        return [_candidate(name, value, points[0], planned) for value in family.grid]

    @cached_property
    def rule(self) -> Rule:
        """That of each look."""
        return self.run.rule.after_looks(self.most, bisection.most_tests(len(self.candidates)))

    def standing(self) -> Standing:
        rows = frame.rows(self.run)
        tested: dict[int, Tested] = {}
        count = len(self.candidates)
        while (place := bisection.next_place({at: one.verdict for at, one in tested.items()}, count)) is not None:
            found = self._tested(self.candidates[place], rows)
            if found.needs:
                last = max(found.needs + self.at_once - 1, LEAST_REPLICATES)
                return Standing(tested, self._spent(rows), place, range(found.needs, min(last, self.most) + 1))
            tested[place] = found
        return Standing(tested, self._spent(rows))

    def steps(self, reporter: Reporter) -> Iterator[tuple[Run, Selection]]:
        """What to train next, a replicate of the run and a candidate's ticket there, until the answer is known or the budget is
        spent. Ends where a training left no result."""
        at_most = f"{count_of(len(self.candidates), 'candidate')}, {count_of(self.most, 'replicate')} at most"
        reporter.say(f"{at_most}, {self.rule.words['bounds']}")
        before: tuple[int, Sequence[int]] | None = None
        while (standing := self.standing()).next is not None and not self._is_spent(standing):
            step = standing.next, standing.needs
            if step == before:
                return
            before = step
            candidate = self.candidates[standing.next]
            reporter.say(f"{candidate}: replicate {', '.join(map(str, standing.needs))}")
            yield dataclasses.replace(self.run, chosen=tuple(standing.needs)), candidate.selection

    def _tested(self, candidate: Candidate, rows: pandas.DataFrame) -> Tested:
        family = candidate.selection.families[0]
        is_own = (rows["variant"] == TICKET) & (rows["family"] == family) & (rows["mask"] == candidate.at.label)
        own = rows[is_own & (rows["rewind_step"] == candidate.rewind_step)].set_index("replicate")
        dense = rows[rows["variant"] == DENSE].set_index("replicate")
        known = own["difference"].dropna()
        differences = [known[number] for number in itertools.takewhile(known.index.__contains__, range(1, self.most + 1))]
        side, count = self.rule.first(differences)
        verdict = self.rule.verdict(side)
        if not verdict.is_open or len(differences) == self.most:
            return Tested(verdict, int(count))
        number = len(differences) + 1
        statuses = {of["status"].get(number) for of in (dense, own)}
        is_lost = bool(statuses & {"diverged", "failed"})
        return Tested(verdict, len(differences), *((None, number) if is_lost else (number, None)))

    def _spent(self, rows: pandas.DataFrame) -> float:
        """What all finished networks of the run have cost."""
        unit = "h" if self.budget and self.budget.endswith("h") else "ep"
        done = rows[rows["status"] == "done"]
        return float(done["seconds"].sum()) / 3600 if unit == "h" else float(done["epochs"].sum())

    def _is_spent(self, standing: Standing) -> bool:
        return self.budget is not None and standing.spent >= float(self.budget.rstrip("eph"))

    def answer(self) -> list[str]:
        """Sentences: what matches, what does not, and what is not known between them."""
        standing, candidates = self.standing(), self.candidates
        low, high = bisection.answer({place: one.verdict for place, one in standing.tested.items()}, len(candidates))
        best = "sparsest" if self.over == "density" else "earliest"
        sentences = [f"The {best} ticket known to match: {candidates[low]}." if low >= 0 else "No ticket is known to match."]
        if high < len(candidates):
            sentences.append(f"Known not to match: {candidates[high]}.")
        if standing.next is not None:
            why = f"the budget of {self.budget} is spent" if self._is_spent(standing) else "trainings are missing"
            sentences.append(f"Undecided between them, because {why}: {_names(candidates[low + 1 : high])}.")
        elif between := candidates[low + 1 : high]:
            sentences.append(f"Undecided after {count_of(self.most, 'replicate')}: {_names(between)}.")
        lost = [f"{candidates[place]} in replicate {one.lost}" for place, one in standing.tested.items() if one.lost]
        if lost:
            sentences.append(f"Undecided because a network failed or diverged: {', '.join(lost)}.")
        return sentences

    def table(self) -> list[tuple[str, ...]]:
        """A line for each candidate that was tested: its name, its verdict, its replicates."""
        tested = self.standing().tested
        return [(str(self.candidates[place]), one.verdict, str(one.replicates)) for place, one in sorted(tested.items())]


def _candidate(family: str, at: Quantile | Round, point: Point, planned: Plan) -> Candidate:
    quantiles, rounds = (None, int(at)) if isinstance(at, Round) else (Grid.of([at]), None)
    return Candidate(at, point, point.step(planned.steps_per_epoch), Selection((family,), quantiles, Grid.of([point]), rounds))


def _names(candidates: Sequence[Candidate]) -> str:
    """A few names, from the first to the last."""
    if len(candidates) < 3:
        return ", ".join(map(str, candidates))
    return f"{candidates[0]} .. {candidates[-1]} ({len(candidates)} candidates)"
