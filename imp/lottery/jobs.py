"""The networks to train under masks: one-shot tickets by quantile and rewind point, rounds of pruning, their controls."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, Literal, TypeVar

from data_prep.errors import InputError
from lottery.grids import quantile_name

Variant = Literal["ticket", "reinit", "shuffle", "random", "extended"]
Method = Literal["weights", "lr", "finetune", "init"]

FROM_SCRATCH: tuple[Variant, ...] = ("reinit", "random")
GOING_ON: tuple[Method, ...] = ("lr", "finetune")


@dataclasses.dataclass(frozen=True)
class Job:
    """One network to train under the mask of a quantile.

    `step` is the snapshot its weights come from; a control that starts from scratch (`reinit`, `random`) has step 0.
    """

    replicate: int
    quantile: Fraction
    step: int
    variant: Variant

    def __str__(self) -> str:
        return f"replicate-{self.replicate} q{quantile_name(self.quantile)}-step-{self.step:06d} {self.variant}"


@dataclasses.dataclass(frozen=True)
class Chain:
    """Rounds of pruning that follow on each other in one replicate, and what each does after pruning (rule 7 of a rewind):

    `weights`: weights and statistics of the snapshot at `step`, schedule from there (Frankle et al. 2019);
    `init`: the same with step 0 (Frankle & Carbin 2019);
    `lr`: weights and statistics as the round before left them, schedule from `step` (Renda et al. 2020);
    `finetune`: the same, at the schedule's last rate, for as many steps as from `step` to the end.
    """

    replicate: int
    method: Method
    step: int

    @property
    def name(self) -> str:
        return f"{self.method}-step-{self.step:06d}"


@dataclasses.dataclass(frozen=True)
class Round:
    """One network to train in a round (`level`, from 1) of a chain: its ticket, or a control beside it.

    `reinit`, `shuffle` and `random` are as in a one-shot job, and train once whatever the level: `shuffle` beside a ticket of
    `lr` or `finetune` from the dense network's end. `extended` is the dense network given the same extra training as a ticket
    of these that has come to this level.
    """

    chain: Chain
    level: int
    variant: Variant

    @property
    def replicate(self) -> int:
        return self.chain.replicate

    @property
    def step(self) -> int:
        """Where in the schedule its training begins."""
        return 0 if self.variant in FROM_SCRATCH else self.chain.step

    def __str__(self) -> str:
        return f"replicate-{self.replicate} {self.chain.name} round {self.level:02d} {self.variant}"


AnyJob = Job | Round
OneJob = TypeVar("OneJob", bound=Job | Round)


def one_shot(
    replicates: Iterable[int],
    quantiles: Iterable[Fraction],
    steps: Iterable[int],
    controls: Iterable[Variant] = (),
    control_quantiles: Iterable[Fraction] = (),
) -> list[Job]:
    """Every one-shot network, longest first: a ticket per (replicate, quantile, step), and the controls of some quantiles.

    `shuffle` accompanies each ticket; `reinit` and `random` start from fresh weights whatever the ticket was rewound to,
    so each quantile has one.
    """
    quantiles, steps, controls = list(quantiles), list(steps), list(controls)
    chosen = [quantile for quantile in control_quantiles if quantile in quantiles]
    found = []
    for replicate in replicates:
        found += [Job(replicate, quantile, step, "ticket") for quantile in quantiles for step in steps]
        for control in controls:
            starts = [0] if control in FROM_SCRATCH else steps
            found += [Job(replicate, quantile, step, control) for quantile in chosen for step in starts]
    return sorted(found, key=lambda job: job.step)


def chains(replicates: Iterable[int], methods: Iterable[Method], steps: Iterable[int]) -> list[Chain]:
    """A chain per replicate, method and rewind point; `init` knows only step 0."""
    methods, steps = list(methods), list(steps)
    found = [
        Chain(replicate, method, step)
        for replicate in replicates
        for method in methods
        for step in ([0] if method == "init" else steps)
    ]
    return list(dict.fromkeys(found))


def rounds(chain: Chain, levels: int, controls: Iterable[Variant] = (), control_levels: Iterable[int] = ()) -> list[Round]:
    """Every network of `chain` up to round `levels`: tickets and the controls of some rounds, in the order of rounds.

    `extended`, which tickets of `lr` and `finetune` are judged against, goes on from round to round like them and accompanies
    every one.
    """
    chosen = [level for level in control_levels if level <= levels]
    always: tuple[Variant, ...] = ("ticket", "extended") if chain.method in GOING_ON else ("ticket",)
    found = [Round(chain, level, variant) for level in range(1, levels + 1) for variant in always]
    found += [Round(chain, level, control) for control in controls for level in chosen]
    return sorted(found, key=lambda job: job.level)


@dataclasses.dataclass(frozen=True)
class Part:
    """The `index`-th of `count` parts of a grid, from 1: as many tasks of a job array do it without knowing of each other."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Part":
        """`3/20`. Raises InputError when it is not that."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"{text!r} is no part of a grid: write 3/20 for the third of twenty")
        return cls(int(match[1]), int(match[2]))

    def of(self, jobs: Sequence[OneJob]) -> list[OneJob]:
        """The jobs of this part, every `count`-th; a chain of rounds is not divided."""
        places: dict[AnyJob | Chain, int] = {}
        for job in jobs:
            places.setdefault(job.chain if isinstance(job, Round) else job, len(places))
        return [job for job in jobs if places[job.chain if isinstance(job, Round) else job] % self.count == self.index - 1]


WHOLE = Part(1, 1)


def side_by_side(jobs: Iterable[AnyJob]) -> int:
    """How many of `jobs` can be under way at a time: all one-shot ones, and of each chain of rounds a ticket and a control of
    each kind."""
    return len({(job.chain, job.variant) if isinstance(job, Round) else job for job in jobs})


def needed(job: AnyJob) -> Round | None:
    """The network that must be trained before `job` can be: of a ticket that of the round before, of a control the ticket."""
    if isinstance(job, Job):
        return None
    if job.variant not in ("ticket", "extended"):
        return dataclasses.replace(job, variant="ticket")
    return dataclasses.replace(job, level=job.level - 1) if job.level > 1 else None


def facts(job: AnyJob) -> dict[str, Any]:
    """What a result says of where its network stands in the grids."""
    where: dict[str, Any]
    if isinstance(job, Round):
        where = {"quantile": None, "method": job.chain.method, "level": job.level, "rewind_step": job.chain.step}
    else:
        where = {"quantile": float(job.quantile)}
    return {"replicate": job.replicate, "variant": job.variant, **where, "first_step": job.step}
