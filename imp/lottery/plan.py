"""What a recipe comes to once the size of its data set is known: steps, snapshots, rewind points, jobs."""

import dataclasses
from collections.abc import Iterable, Sequence
from fractions import Fraction

from data_prep.errors import InputError
from lottery import grids, jobs, schedules
from lottery.jobs import Chain, Job, Round
from lottery.recipe import Recipe

_UNKNOWN_STEPS = 1_000_000  # an epoch so long that iterations do not count


@dataclasses.dataclass(frozen=True)
class Plan:
    """A recipe over a training split of `steps_per_epoch` batches; `total_steps` is the length of a dense training."""

    recipe: Recipe
    steps_per_epoch: int

    @property
    def total_steps(self) -> int:
        return self.recipe.train.steps or self.recipe.train.epochs * self.steps_per_epoch

    def snapshot_steps(self) -> list[int]:
        """Steps at which the dense training is saved: the grid of the recipe, and the end."""
        points = grids.parse_points(self.recipe.train.snapshots)
        return sorted({point.step(self.steps_per_epoch) for point in points} | {self.total_steps})

    def rewind_steps(self, rewind: str) -> list[int]:
        """Steps of the rewind points in `rewind`, ascending. Raises InputError for one that leaves nothing to train, or
        that is not among the snapshots."""
        _check("rewind point", rewind, self.recipe, self.steps_per_epoch, past_end=False)
        saved = self.snapshot_steps()
        for point in grids.parse_points(rewind):
            if point.step(self.steps_per_epoch) not in saved:
                raise InputError(
                    f"rewind point {point} is not among the snapshots ({self.recipe.train.snapshots}): "
                    f"add it with `imp train --set train.snapshots={self.recipe.train.snapshots},{point}`"
                )
        return sorted({point.step(self.steps_per_epoch) for point in grids.parse_points(rewind)})

    def jobs(self, replicates: Sequence[int], quantiles: Iterable[Fraction], rewind: str) -> list[Job]:
        """Every one-shot network under a mask, longest first."""
        retrain = self.recipe.retrain
        control_quantiles = grids.parse_quantiles(retrain.control_quantiles)
        return jobs.one_shot(replicates, quantiles, self.rewind_steps(rewind), retrain.controls, control_quantiles)

    def chains(self, replicates: Sequence[int]) -> list[Chain]:
        """The chains of pruning rounds. Raises InputError as `rewind_steps` does."""
        if "init" in self.recipe.rounds.methods:
            self.rewind_steps("0")
        return jobs.chains(replicates, self.recipe.rounds.methods, self.rewind_steps(self.recipe.rounds.rewind))

    def rounds(self, replicates: Sequence[int], levels: int) -> list[Round]:
        """Every network of every chain up to round `levels`, in the order of rounds."""
        controls, control_levels = self.recipe.rounds.controls, grids.parse_levels(self.recipe.rounds.control_levels)
        chains = self.chains(replicates)
        found = [job for chain in chains for job in jobs.rounds(chain, levels, controls, control_levels)]
        return sorted(found, key=lambda job: job.level)

    @property
    def finetune_rate(self) -> float:
        """The learning rate of `finetune`: the recipe's, or else that of the schedule's last step."""
        last = schedules.rates(self.recipe.train, self.steps_per_epoch, self.total_steps - 1, 1)[0]
        return self.recipe.rounds.finetune_rate or float(last)

    def epochs(self, job: Job | Round) -> float:
        """What `job` costs, in epochs."""
        return (self.total_steps - job.step) / self.steps_per_epoch


def make(recipe: Recipe, training_images: int) -> Plan:
    """The plan of `recipe` for so many training images.

    Raises InputError when a batch does not fit into them, or a point of training lies past the end.
    """
    steps_per_epoch = training_images // recipe.train.batch
    if not steps_per_epoch:
        raise InputError(f"train.batch is {recipe.train.batch}, but there are {training_images} training images: lower it")
    check_points(recipe, steps_per_epoch)
    return Plan(recipe, steps_per_epoch)


def check_points(recipe: Recipe, steps_per_epoch: int | None = None) -> None:
    """Raise InputError for a point of training past the end; without `steps_per_epoch`, only epochs can be judged."""
    _check("train.snapshots", recipe.train.snapshots, recipe, steps_per_epoch, past_end=True)
    if recipe.train.schedule == "step":
        _check("train.milestones", recipe.train.milestones, recipe, steps_per_epoch, past_end=True)
    _check("train.warmup", recipe.train.warmup, recipe, steps_per_epoch, past_end=True)
    if "oneshot" in recipe.pruning:
        _check("retrain.rewind", recipe.retrain.rewind, recipe, steps_per_epoch, past_end=False)
    if "rounds" in recipe.pruning:
        _check("rounds.rewind", recipe.rounds.rewind, recipe, steps_per_epoch, past_end=False)


def _check(key: str, points: str, recipe: Recipe, steps_per_epoch: int | None, past_end: bool) -> None:
    """Every one of `points` must lie within training; unless `past_end`, before its last step."""
    length = steps_per_epoch or _UNKNOWN_STEPS
    by_steps = bool(recipe.train.steps)
    for point in grids.parse_points(points):
        step, end = point.step(length), recipe.train.steps or recipe.train.epochs * length
        if steps_per_epoch is None and point.amount and (point.unit == "it") != by_steps:
            continue
        if step > end or (step == end and not past_end):
            training = f"{recipe.train.steps} steps" if by_steps else f"{recipe.train.epochs} epochs"
            problem = f"lies past the end of training ({training})" if step > end else "leaves nothing to train"
            raise InputError(
                f"{key}: {point} {problem}: choose an earlier point, or raise train.{'steps' if by_steps else 'epochs'}"
            )


@dataclasses.dataclass(frozen=True)
class Cost:
    """One network of a dry run, and what it costs in epochs (None where a recipe counts steps, and epochs are not known)."""

    title: str
    epochs: float | None
    rewound: bool


def dry_run(recipe: Recipe, training_images: int | None) -> list[Cost]:
    """Every network that `recipe` comes to, dense ones first.

    While the number of training images is not known, iterations count as next to none of an epoch. Raises InputError when it
    must be known.
    """
    unknown = training_images is None and recipe.train.steps > 0
    points = ",".join((recipe.train.snapshots, recipe.retrain.rewind, recipe.rounds.rewind))
    if unknown and any(point.unit == "ep" for point in grids.parse_points(points)):
        raise InputError("how many of train.steps make an epoch is not known yet: prepare the records first (`imp prepare`)")
    planned = make(recipe, training_images) if training_images is not None else Plan(recipe, _UNKNOWN_STEPS)
    replicates = range(1, recipe.replicates + 1)
    dense = [(f"replicate-{number} dense", planned.total_steps, False) for number in replicates]
    found: list[Job | Round] = []
    if "oneshot" in recipe.pruning:
        found += planned.jobs(replicates, recipe.quantiles(), recipe.retrain.rewind)
    if "rounds" in recipe.pruning:
        found += planned.rounds(replicates, recipe.rounds.levels)
    rewound = [(_title(planned, job), planned.total_steps - job.step, True) for job in found]
    return [
        Cost(title, None if unknown else round(steps / planned.steps_per_epoch, 3), is_rewound)
        for title, steps, is_rewound in (*dense, *rewound)
    ]


def _title(planned: Plan, job: Job | Round) -> str:
    """What a network is called in a dry run: with its rewind point as the recipe writes it."""
    points = grids.parse_points(planned.recipe.train.snapshots)
    names = {point.step(planned.steps_per_epoch): str(point) for point in points}
    if isinstance(job, Job):
        name = f"q{grids.quantile_name(job.quantile)} {job.variant}"
        return f"replicate-{job.replicate} {name}, rewound to {names.get(job.step, '0')}"
    chain = f"{job.chain.method} from {names.get(job.chain.step, '0')}"
    return f"replicate-{job.replicate} {chain}, round {job.level:02d} {job.variant}"
