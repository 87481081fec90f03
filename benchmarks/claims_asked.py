"""The claims of `claims.toml` as questions to runs: which networks they compare, and what the differences answer."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
from claims_known import LINE, Known

from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.experiment.graph import DENSE, TICKET
from lottery.experiment.plan import Plan, estimated
from lottery.experiment.rule import LEAST_REPLICATES, MOST_REPLICATES, Rule, deviation
from lottery.pruning.interpolation import instability
from lottery.results import barriers, frame
from lottery.rundir.run import Run, open_run

FIRST = "main"  # the run of a question that names none
BARRIER = "barrier"
RULE = Rule(delta=0.002)  # of verdicts
CONFIRMED, CONTRADICTED, NOT_CONFIRMED = "confirmed", "contradicted", "not confirmed"
NOT_RUN, NOT_ASKED = "not run", "premise not met"
# The mean difference of its two sides confirms a question on this side of the limit, and contradicts it on the other. Where the
# second side is a number, the limit is that much higher.
ABOVE, BELOW = 1, -1
ANSWERS = {
    "beats": (ABOVE, 0.0),
    "keeps up with": (ABOVE, -RULE.delta),
    "does not beat": (BELOW, RULE.delta),
    "is above": (ABOVE, 0.0),
    "is below": (BELOW, 0.0),
}


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a question: `number`, or else the networks of this `variant` under this mask in a run."""

    run: str = FIRST
    family: str = ""
    mask: str = ""
    variant: str = DENSE
    number: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Side":
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return cls(number=float(text))
        words = re.fullmatch(r"(?:(?P<run>\w+):)?(?:dense|(?P<family>[\w-]+)/(?P<mask>\S+) (?P<variant>\w+))", text)
        if not words:
            raise InputError(f"{text!r} is no network: FAMILY/MASK VARIANT, dense, or RUN: and one of these")
        return cls(**{name: value for name, value in words.groupdict().items() if value})

    @property
    def last_round(self) -> int:
        """That of its mask; 0 where that is cut at once."""
        found = re.fullmatch(r"round-(\d+)", self.mask)
        return int(found[1]) if found else 0

    def check(self, study: "Study") -> None:
        """Raises InputError where its run trains no such network."""
        if self.run not in study.runs:
            raise InputError(f"{study.name} has no run {self.run}; it has {', '.join(study.runs)}")
        if self.variant == BARRIER and not self.last_round:
            raise InputError(f"{self.family}/{self.mask} has no barrier: no round comes before it")
        variant = TICKET if self.variant == BARRIER else self.variant
        if variant != DENSE and (self.family, self.mask, variant) not in study.trained(self.run):
            raise InputError(f"{study.recipe(self.run)} trains no {self.family}/{self.mask} {variant}")

    def values(self, study: "Study") -> pandas.Series:
        """By replicate, what its networks reach, 0 .. 1; NaN of those that failed."""
        if self.variant == BARRIER:
            return self.lines(study).groupby("replicate").error.agg(lambda errors: instability(list(errors)))
        rows = self.of(study.frames[self.run])
        rows = rows[~rows.status.isin(["missing", "stale"])]
        return rows.set_index("replicate").validation.astype(float).where(list(rows.status == "done"))

    def lines(self, study: "Study") -> pandas.DataFrame:
        """Of a barrier, the test errors of the networks on the line from the round before: a row for each replicate and each
        share of this round's network."""
        pairs = [one for one in barriers.pairs(study.runs[self.run]) if (one.family, one.mask) == (self.family, self.mask)]
        rows = [
            (one.replicate, share, error)
            for one in pairs
            for share, error in zip(one.shares, (one.recomputed or one.errors)["test"], strict=True)
        ]
        here = pandas.DataFrame(rows, columns=LINE).astype(LINE)
        if not study.known:
            return here
        known = study.known.lines_of(study.name, self.run, self.family, self.mask)
        return pandas.concat([here, known[~known.replicate.isin(here.replicate)]])

    def lacks(self, study: "Study") -> bool:
        """Whether it has not all replicates."""
        return len(self.values(study)) < study.runs[self.run].recipe.replicates

    def of(self, rows: pandas.DataFrame) -> pandas.DataFrame:
        """Those of its own networks."""
        own = rows[rows.variant == self.variant]
        return own if self.variant == DENSE else own[(own.family == self.family) & (own["mask"] == self.mask)]


@dataclasses.dataclass(frozen=True)
class Question:
    """What must come out: `left` and `right` are compared as `how` says."""

    text: str
    left: Side
    right: Side
    how: str

    @classmethod
    def parse(cls, text: str) -> "Question":
        words = re.split(f" ({'|'.join(ANSWERS)}) ", text)
        if len(words) != 3:
            raise InputError(f"{text!r} is no question: NETWORK, one of {', '.join(ANSWERS)}, and NETWORK")
        left, how, right = words
        if Side.parse(left).number is not None:
            raise InputError(f"{text!r} begins with a number: name a network, and then the number")
        return cls(text, Side.parse(left), Side.parse(right), how)

    @property
    def networks(self) -> list[Side]:
        return [side for side in (self.left, self.right) if side.number is None]

    def differences(self, study: "Study") -> pandas.Series:
        """Left minus right by replicate, of those that have both, or left alone where right is a number; NaN where one has
        failed."""
        (values, *others) = (side.values(study) for side in self.networks)
        for other in others:
            shared = values.index.intersection(other.index)
            values = values[shared] - other[shared]
        return study.known.differences_of(study.name, self.text) if study.known and values.empty else values

    @property
    def limit(self) -> float:
        return ANSWERS[self.how][1] + (self.right.number or 0.0)

    def answer(self, differences: Sequence[float], replicates: int) -> str:
        """That of the differences of so many replicates, if they are all there."""
        side, _ = ANSWERS[self.how]
        if len(differences) < replicates:
            return NOT_RUN
        return {side: CONFIRMED, -side: CONTRADICTED}.get(int(RULE.side(differences, self.limit)), NOT_CONFIRMED)

    def decided_by(self, differences: Sequence[float]) -> str:
        """What would decide it, if mean and spread stay as they are."""
        mean, spread = sum(differences) / len(differences), float(deviation(differences))
        if len(differences) < LEAST_REPLICATES:
            return f"{LEAST_REPLICATES} replicates at least"
        low, high = RULE.bounds(differences)
        if self.limit == 0 and -RULE.delta < low and high < RULE.delta:
            return f"not worth deciding: any difference is below {100 * RULE.delta:g} points"
        gap = abs(mean - self.limit)
        if not spread > 0 or not gap > 0:
            return "other networks: these have failed, or do not differ"
        count = _enough(spread / gap, len(differences) + 1)
        return f"about {count:,} replicates" if count else "more than a million replicates"


def _enough(ratio: float, fewest: int) -> int | None:
    """With how many replicates a one-sided t bound of a mean is nearer to it than its spread divided by `ratio`; None where
    that takes more than a million."""
    from scipy.special import stdtrit

    counts = range(fewest, MOST_REPLICATES)
    return next((count for count in counts if stdtrit(count - 1, RULE.confidence) * ratio < math.sqrt(count)), None)


@dataclasses.dataclass(frozen=True)
class Study:
    """A network on which claims are tested, and its runs, whose recipes are named from `place`. What `known` has of them need
    not be here."""

    name: str
    title: str
    table: Mapping[str, Mapping[str, Any]]
    place: Path
    known: Known | None = None

    @functools.cached_property
    def runs(self) -> dict[str, Run]:
        return {name: open_run(self.folder(name), self.recipe(name), self.changes(name)) for name in self.table}

    @functools.cached_property
    def frames(self) -> dict[str, pandas.DataFrame]:
        """The networks of each run, a row for each."""
        rows = {name: frame.rows(run, run.tickets(self.plan(name))) for name, run in self.runs.items()}
        return {name: self.known.joined(self.name, name, self.runs[name], rows[name]) for name in rows} if self.known else rows

    def folder(self, name: str) -> Path:
        return Path("runs", f"claims-{self.name}-{name}")

    def recipe(self, name: str) -> Path:
        return self.place / self.table[name]["recipe"]

    def changes(self, name: str) -> list[str]:
        return list(self.table[name].get("set", ()))

    def plan(self, name: str) -> Plan:
        run = self.runs[name]
        return run.trained_plan() or estimated(run.recipe, run.known_training_examples())

    def trained(self, name: str) -> set[tuple[str, str, str]]:
        """Family, mask and variant of the networks that a run trains."""
        return {(one.mask.family, one.mask.label, one.variant) for one in self.runs[name].tickets(self.plan(name))}

    def replicates(self, question: Question) -> int:
        return max(self.runs[side.run].recipe.replicates for side in question.networks)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A published claim, by the name of the study the questions that decide it, and the premises without which it says
    nothing."""

    name: str
    says: str
    source: str
    questions: Mapping[str, Sequence[Question]]
    premises: Mapping[str, Sequence[Question]]

    @classmethod
    def of(cls, table: Mapping[str, Any], studies: Sequence[str]) -> "Claim":
        given = table.get("given", {})
        if unknown := sorted((table.keys() - {"name", "says", "source", "given"} | given.keys()) - {*studies}):
            raise InputError(f"the claim {table.get('name')} is asked of {unknown[0]}, which is no study: {', '.join(studies)}")
        questions, premises = (
            {name: list(map(Question.parse, texts[name])) for name in studies if name in texts} for texts in (table, given)
        )
        return cls(table["name"], table["says"], table["source"], questions, premises)

    def asked(self, study: Study) -> Iterator[tuple[Question, bool]]:
        """Its questions on a network, premises first, and whether each is one."""
        for group, is_premise in ((self.premises, True), (self.questions, False)):
            for question in group.get(study.name, ()):
                yield question, is_premise

    def sides(self, study: Study) -> list[Side]:
        return [side for question, _ in self.asked(study) for side in question.networks]

    def lacking(self, study: Study) -> list[Side]:
        """The sides of questions whose differences are not all there; none once a premise has failed."""
        premises = [one.answer(one.differences(study), study.replicates(one)) for one in self.premises.get(study.name, ())]
        if verdict([NOT_RUN], premises) == NOT_ASKED:
            return []
        asked = (question for question, _ in self.asked(study) if len(question.differences(study)) < study.replicates(question))
        return [side for question in asked for side in question.networks if side.lacks(study)]

    @staticmethod
    def families(sides: Sequence[Side]) -> dict[str, dict[str, int]]:
        """Their families, by run, and the last round that is asked about."""
        found: dict[str, dict[str, int]] = {}
        for side in sides:
            known = found.setdefault(side.run, {})
            if side.family:
                known[side.family] = max(side.last_round, known.get(side.family, 0))
        return found


def verdict(answers: Sequence[str], premises: Sequence[str] = ()) -> str:
    """That of a claim whose questions and premises are answered so."""
    if set(premises) - {CONFIRMED, NOT_RUN}:
        return NOT_ASKED
    if NOT_RUN in (*answers, *premises) or not answers:
        return NOT_RUN
    if CONTRADICTED in answers:
        return CONTRADICTED
    return CONFIRMED if set(answers) == {CONFIRMED} else NOT_CONFIRMED


def read(path: Path, known: Known | None = None) -> tuple[list[Study], list[Claim]]:
    """The networks and claims of a file, with what is known of them. Raises InputError where one cannot be asked."""
    table = reading.load(path)
    for what, keys in (("studies", {"title", "runs"}), ("claims", {"name", "says", "source"})):
        found = table.get(what, {})
        for one in found.values() if isinstance(found, dict) else found:
            if missing := keys - one.keys():
                raise InputError(f"{path}: {what} need {', '.join(sorted(keys))}; one has no {min(missing)}")
    studies = [Study(name, one["title"], one["runs"], path.parent, known) for name, one in table.get("studies", {}).items()]
    for study in studies:
        for name, run in study.table.items():
            if missing := {"recipe", "epoch_seconds"} - run.keys():
                raise InputError(f"{path}: the run {name} of {study.name} has no {min(missing)}")
    claims = [Claim.of(one, [study.name for study in studies]) for one in table.get("claims", [])]
    for study in studies:
        for side in dict.fromkeys(side for claim in claims for side in claim.sides(study)):
            side.check(study)
    return studies, claims
