"""What is pruned, how much, and when: a plan, which is saved with the model. Pure NumPy."""

import dataclasses
from bisect import bisect_right
from fractions import Fraction
from typing import Any, get_args

from lottery.base.errors import InputError
from lottery.pruning.allocation import Allocation
from lottery.pruning.criteria import CRITERIA, ITERATIONS, Criterion, Probe, checked
from lottery.pruning.cut import Method
from lottery.pruning.masks import Bits
from lottery.pruning.ranking import pruned_count
from lottery.pruning.state import Arrays, State
from lottery.pruning.units import WEIGHT, Score, Spec, Units, parse
from lottery.pruning.updates import Schedule


def _check_steps(least: dict[str, int], schedule: Any) -> None:
    for name, lowest in least.items():
        value = getattr(schedule, name)
        if not isinstance(value, int) or value < lowest:
            raise InputError(f"{schedule}: {name} is a whole number of steps, here {lowest} or more")


def fraction(share: Any, name: str) -> Fraction:
    """The exact value of a share as it is written: 0.9 is 9/10. Raises InputError unless it is from 0 to 1."""
    try:
        value = Fraction(str(share))
    except ValueError as error:
        raise InputError(f"{name}: {share!r} is not a number") from error
    if not 0 <= value <= 1:
        hint = f": write {float(value / 100)} for {share} per cent" if 1 < value <= 100 else ""
        raise InputError(f"{name}: {share} is not a share from 0 to 1{hint}")
    return value


@dataclasses.dataclass(frozen=True)
class Constant:
    """All weights that go are pruned at once, before the step number `begin` after `prune`; the mask then stays."""

    begin: int = 0

    def __post_init__(self) -> None:
        _check_steps({"begin": 0}, self)

    @property
    def dates(self) -> range:
        """The steps before which the mask changes."""
        return range(self.begin, self.begin + 1)

    def pruned(self, step: int, first: int, last: int) -> int:
        """How many weights are pruned after the change at `step`, of `first` before all changes and `last` in the end."""
        return last


@dataclasses.dataclass(frozen=True)
class Cubic:
    """Gradual pruning (Zhu & Gupta 2017, arXiv 1710.01878, equation 1): every `every` steps, from the step `begin` up to `end`,
    the mask is made anew. The sparsity is `start` at first, and rises along the cubic to its end at the last change."""

    end: int
    begin: int = 0
    every: int = 100
    start: float = 0.0

    def __post_init__(self) -> None:
        _check_steps({"begin": 0, "every": 1}, self)
        _check_steps({"end": self.begin + self.every}, self)
        fraction(self.start, "start")

    @property
    def dates(self) -> range:
        return range(self.begin, self.end + 1, self.every)

    def pruned(self, step: int, first: int, last: int) -> int:
        return first + Schedule("gmp", self.every, self.begin, self.end, 0.0).pruned(step, last - first)


@dataclasses.dataclass(frozen=True)
class Replacing:
    """The mask is made at once, then changes every `every` steps, before the step `end`: of each layer the smallest kept units
    are dropped and as many grown. Their share is `drop_fraction` at first, and falls along half a cosine (Evci et al. 2020,
    arXiv 1911.11134, section 3)."""

    end: int
    every: int = 100
    drop_fraction: float = 0.3

    def __post_init__(self) -> None:
        _check_steps({"every": 1}, self)
        _check_steps({"end": self.every + 1}, self)
        object.__setattr__(self, "drop_fraction", float(fraction(self.drop_fraction, "drop_fraction")))

    @property
    def dates(self) -> range:
        return range(0, self.end, self.every)

    def pruned(self, step: int, first: int, last: int) -> int:
        return last

    def is_before_change(self, steps: Any, changed: Any) -> Any:
        """Whether the mask changes after the step that follows so many `steps`, after its last change at `changed` - 1; of
        tensors too."""
        coming = (changed + self.every - 1) // self.every * self.every
        return (steps + 1 >= coming) & (coming < self.end)

    def replaced(self, step: int, kept: int) -> int:
        """How many of a layer's `kept` units are replaced at `step`."""
        return Schedule("rigl", self.every, 0, self.end, self.drop_fraction).replaced(step, kept)


@dataclasses.dataclass(frozen=True)
class RigL(Replacing):
    """Grown is what has the largest gradient in the step before (Evci et al. 2020, "Rigging the Lottery", algorithm 1, where
    that step does not train; here it does)."""


@dataclasses.dataclass(frozen=True)
class SET(Replacing):
    """Grown is what chance says (Mocanu et al. 2018, "Scalable training of artificial neural networks with adaptive sparse
    connectivity", arXiv 1707.04780)."""


MaskSchedule = Constant | Cubic | RigL | SET
SCHEDULES = {one.__name__: one for one in get_args(MaskSchedule)}
AT_ONCE = Constant()


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the masks of a network are made. `sparsity` is the share of all weights in scope that is pruned in the end;
    `densities` fix the share that layers keep, by shell pattern of paths; `images` are what criteria look at (x, y); `units`,
    `unit_score` and `streams` say what goes as a whole, as keys of a recipe do."""

    sparsity: Fraction
    criterion: str | Criterion = "magnitude"
    allocation: Allocation = "global"
    schedule: MaskSchedule = AT_ONCE
    densities: tuple[tuple[str, Fraction], ...] = ()
    iterations: int | None = None
    seed: int = 0
    images: Any = None
    units: str = WEIGHT
    unit_score: Score = "mean"
    streams: bool = True

    def __post_init__(self) -> None:
        if self.allocation not in get_args(Allocation):
            raise InputError(f"unknown allocation {self.allocation!r}; known are {', '.join(get_args(Allocation))}")
        if not callable(self.criterion) and self.criterion not in CRITERIA:
            raise InputError(f"unknown criterion {self.criterion!r}; known are {', '.join(CRITERIA)}, or give a function")
        if self.iterations is not None and self.iterations < 1:
            raise InputError(f"iterations: {self.iterations} is not 1 or more")
        if self.images is not None and not (isinstance(self.images, tuple | list) and len(self.images) == 2):
            raise InputError("images: give one batch as a pair (x, y)")
        if self.sparsity == 1:
            raise InputError("a sparsity of 1 leaves nothing: ask for less")
        if self.start > self.sparsity:
            raise InputError(f"a schedule that starts at {float(self.start)} cannot end at {float(self.sparsity)}: lower start")
        if self.unit_score not in get_args(Score):
            raise InputError(f"unknown unit_score {self.unit_score!r}; known are {', '.join(get_args(Score))}")
        if self.spec.is_n_of_m:
            if len(self.schedule.dates) > 1 or (self.allocation, self.densities) != ("global", ()):
                raise InputError(f"units = {self.spec} are pruned at once: give Constant, and neither allocation nor densities")
            if abs(self.sparsity - 1 + self.spec.share) > Fraction(1, 10_000):
                raise InputError(f"units = {self.spec} wants sparsity={float(1 - self.spec.share):.4g}, neither more nor less")
        if self.spec.is_channel and isinstance(self.schedule, Replacing):
            given = type(self.schedule).__name__
            raise InputError(f"units = channel: a channel that is gone has no gradient, and would stay zero: not {given}")

    @property
    def spec(self) -> Spec:
        return parse(str(self.units))

    @property
    def start(self) -> Fraction:
        return fraction(getattr(self.schedule, "start", 0), "start")

    def config(self) -> dict[str, Any]:
        """The plan in JSON; `resume` must add images and a criterion that is a function."""
        schedule = {"kind": type(self.schedule).__name__, **dataclasses.asdict(self.schedule)}
        criterion = self.criterion if isinstance(self.criterion, str) else None
        densities = [[pattern, str(share)] for pattern, share in self.densities]
        plain = {name: getattr(self, name) for name in ("allocation", "iterations", "seed", "units", "unit_score", "streams")}
        return plain | {"sparsity": str(self.sparsity), "criterion": criterion, "schedule": schedule, "densities": densities}

    @classmethod
    def of(cls, config: dict[str, Any]) -> "Plan":
        """The plan that `config` describes. Raises InputError."""
        schedule = dict(config["schedule"])
        if (kind := schedule.pop("kind")) not in SCHEDULES:
            raise InputError(f"the schedule of these masks is of an unknown kind, {kind!r}; known are {', '.join(SCHEDULES)}")
        return cls(
            **config
            | {
                "sparsity": Fraction(config["sparsity"]),
                "criterion": config["criterion"] or _missing,
                "schedule": SCHEDULES[kind](**schedule),
                "densities": tuple((pattern, Fraction(share)) for pattern, share in config["densities"]),
            }
        )

    def with_given(self, criterion: Criterion | None, images: Any) -> "Plan":
        """The plan with what is not saved."""
        given = {"criterion": criterion, "images": images}
        return dataclasses.replace(self, **{name: value for name, value in given.items() if value is not None})

    def last_date(self, step: int) -> int | None:
        """The last step up to `step` before which the mask changes."""
        passed = bisect_right(self.schedule.dates, step)
        return self.schedule.dates[passed - 1] if passed else None

    def next_date(self, step: int) -> int | None:
        """The first step after `step` before which the mask changes."""
        passed = bisect_right(self.schedule.dates, step)
        return self.schedule.dates[passed] if passed < len(self.schedule.dates) else None

    def count(self, size: int, date: int | None = None) -> int:
        """How many of `size` weights are pruned after the change at `date`, or in the end."""
        first, last = (pruned_count(100 * share, size) for share in (self.start, self.sparsity))
        return last if date is None else self.schedule.pruned(date, first, last)

    def method(self, units: Units) -> Method:
        """What it prunes `units` by."""
        criterion = self.criterion if callable(self.criterion) else CRITERIA[self.criterion]
        passes = self.iterations or ITERATIONS.get(getattr(criterion, "__name__", ""), 1)
        return Method(checked(criterion, "the criterion"), self.allocation, self.densities, passes, units)


def _missing(state: State, mask: Bits, probe: Probe) -> Arrays:
    raise InputError("the criterion of this model is a function, which is not saved: resume(model, criterion=...)")
