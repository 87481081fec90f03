"""What a recipe comes to once the size of its data set is known: steps, snapshots, rewind points, jobs."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from data_prep.errors import InputError
from lottery import grids, jobs, schedules, verdicts
from lottery.jobs import Chain, Job, Round
from lottery.recipe import Recipe

MOST_NETWORKS = 100_000  # of one grid
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
        """Every one-shot network under a mask, longest first. Raises InputError as `rewind_steps` does, and for more than
        `MOST_NETWORKS`."""
        retrain, quantiles, steps = self.recipe.retrain, list(quantiles), self.rewind_steps(rewind)
        _check_count(replicates, quantiles, steps, ("ticket", *retrain.controls))
        return jobs.one_shot(replicates, quantiles, steps, retrain.controls, grids.parse_quantiles(retrain.control_quantiles))

    def chains(self, replicates: Sequence[int]) -> list[Chain]:
        """The chains of pruning rounds. Raises InputError as `jobs` does."""
        methods, steps = self.recipe.rounds.methods, self.rewind_steps(self.recipe.rounds.rewind)
        if "init" in methods:
            self.rewind_steps("0")
        _check_count(replicates, methods, steps)
        return jobs.chains(replicates, methods, steps)

    def rounds(self, replicates: Sequence[int], levels: int) -> list[Round]:
        """Every network of every chain up to round `levels`, in the order of rounds."""
        controls, control_levels = self.recipe.rounds.controls, grids.parse_levels(self.recipe.rounds.control_levels)
        chains = self.chains(replicates)
        _check_count(chains, range(levels), ("ticket", *controls))
        found = [job for chain in chains for job in jobs.rounds(chain, levels, controls, control_levels)]
        return sorted(found, key=lambda job: job.level)

    def headline_controls(self, replicates: Sequence[int]) -> list[Round]:
        """The controls that come to the headline of every chain, whatever round that will be (here the last), where the recipe
        does not say in which rounds they are."""
        rounds = self.recipe.rounds
        if not rounds.controls_follow or len(replicates) < verdicts.LEAST_REPLICATES:
            return []
        return [Round(chain, rounds.levels, one) for chain in self.chains(replicates) for one in rounds.controls]

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
    return of(recipe, steps_per_epoch)


def of(recipe: Recipe, steps_per_epoch: int) -> Plan:
    """The plan of `recipe` for epochs of so many steps. Raises InputError when a point of training lies past the end."""
    check_points(recipe, steps_per_epoch)
    return Plan(recipe, steps_per_epoch)


def _check_count(*axes: Sequence[object]) -> None:
    count = math.prod(map(len, axes))
    if count > MOST_NETWORKS:
        raise InputError(f"{count:,} networks are too many for one grid, which has {MOST_NETWORKS:,} at most: make it coarser")


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
    """One network of a dry run, and what it costs in epochs (None where a recipe counts steps, and epochs are not known); not
    `certain` where it is trained only if there is a headline."""

    title: str
    epochs: float | None
    rewound: bool
    certain: bool = True


def dry_run(recipe: Recipe, training_images: int | None) -> list[Cost]:
    """Every network that `recipe` comes to, dense ones first, and last, in rounds, the controls of headlines: in which round
    these are, and whether there are any, turns out once the tickets are trained.

    While the number of training images is not known, iterations count as next to none of an epoch. Raises InputError when it
    must be known.
    """
    unknown = training_images is None and recipe.train.steps > 0
    points = ",".join((recipe.train.snapshots, recipe.retrain.rewind, recipe.rounds.rewind))
    if unknown and any(point.unit == "ep" for point in grids.parse_points(points)):
        raise InputError("how many of train.steps make an epoch is not known yet: prepare the records first (`imp prepare`)")
    planned = make(recipe, training_images) if training_images is not None else Plan(recipe, _UNKNOWN_STEPS)
    replicates = range(1, recipe.replicates + 1)
    found: list[Job | Round] = []
    if "oneshot" in recipe.pruning:
        found += planned.jobs(replicates, recipe.quantiles(), recipe.retrain.rewind)
    if "rounds" in recipe.pruning:
        found += planned.rounds(replicates, recipe.rounds.levels)
    later = planned.headline_controls(replicates) if "rounds" in recipe.pruning else []

    def cost(title: str, steps: int, rewound: bool = True, certain: bool = True) -> Cost:
        return Cost(title, None if unknown else round(steps / planned.steps_per_epoch, 3), rewound, certain)

    return [
        *(cost(f"replicate-{number} dense", planned.total_steps, rewound=False) for number in replicates),
        *(cost(_title(planned, job), planned.total_steps - job.step) for job in found),
        *(cost(_title(planned, job, "headline"), planned.total_steps - job.step, certain=False) for job in later),
    ]


def _title(planned: Plan, job: Job | Round, where: str = "") -> str:
    """What a network is called in a dry run: with its rewind point as the recipe writes it; in a round, or `where` else."""
    points = grids.parse_points(planned.recipe.train.snapshots)
    names = {point.step(planned.steps_per_epoch): str(point) for point in points}
    if isinstance(job, Job):
        name = f"q{grids.quantile_name(job.quantile)} {job.variant}"
        return f"replicate-{job.replicate} {name}, rewound to {names.get(job.step, '0')}"
    chain = f"{job.chain.method} from {names.get(job.chain.step, '0')}"
    return f"replicate-{job.replicate} {chain}, {where or f'round {job.level:02d}'} {job.variant}"
