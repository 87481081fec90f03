"""What a recipe comes to once the size of its data set is known: steps, snapshots, rewind points, jobs."""

import dataclasses
from collections.abc import Iterable
from fractions import Fraction

from data_prep.errors import InputError
from lottery import grids
from lottery.recipe import Recipe

_UNKNOWN_STEPS = 1_000_000  # an epoch so long that iterations do not count


@dataclasses.dataclass(frozen=True)
class Plan:
    """A recipe over a training split of `steps_per_epoch` batches; `total_steps` is the length of a dense training."""

    recipe: Recipe
    steps_per_epoch: int

    @property
    def total_steps(self) -> int:
        return self.recipe.train.epochs * self.steps_per_epoch

    def snapshot_steps(self) -> list[int]:
        """Steps at which the dense training is saved: the grid of the recipe, and the end."""
        points = grids.parse_points(self.recipe.train.snapshots)
        return sorted({point.step(self.steps_per_epoch) for point in points} | {self.total_steps})

    def rewind_steps(self, rewind: str) -> list[int]:
        """Steps of the rewind points in `rewind`, ascending. Raises InputError for one that leaves nothing to train, or
        that is not among the snapshots."""
        _check("rewind point", rewind, self.recipe.train.epochs, self.steps_per_epoch, past_end=False)
        saved = self.snapshot_steps()
        for point in grids.parse_points(rewind):
            if point.step(self.steps_per_epoch) not in saved:
                raise InputError(
                    f"rewind point {point} is not among the snapshots ({self.recipe.train.snapshots}): "
                    f"add it with `imp train --set train.snapshots={self.recipe.train.snapshots},{point}`"
                )
        return sorted({point.step(self.steps_per_epoch) for point in grids.parse_points(rewind)})

    def jobs(self, quantiles: Iterable[Fraction], rewind: str) -> list[grids.Job]:
        """Every network to train under a mask, longest first."""
        retrain = self.recipe.retrain
        return grids.jobs(
            self.recipe.replicates,
            quantiles,
            self.rewind_steps(rewind),
            retrain.controls,
            grids.parse_quantiles(retrain.control_quantiles),
        )

    def epochs(self, job: grids.Job) -> float:
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
    epochs = recipe.train.epochs
    _check("train.snapshots", recipe.train.snapshots, epochs, steps_per_epoch, past_end=True)
    if recipe.train.schedule == "step":
        _check("train.milestones", recipe.train.milestones, epochs, steps_per_epoch, past_end=True)
    _check("train.warmup", recipe.train.warmup, epochs, steps_per_epoch, past_end=True)
    _check("retrain.rewind", recipe.retrain.rewind, epochs, steps_per_epoch, past_end=False)


def _check(key: str, points: str, epochs: int, steps_per_epoch: int | None, past_end: bool) -> None:
    """Every one of `points` must lie within training; unless `past_end`, before its last step."""
    length = steps_per_epoch or _UNKNOWN_STEPS
    for point in grids.parse_points(points):
        step, end = point.step(length), epochs * length
        if point.unit == "it" and steps_per_epoch is None:
            continue
        if step > end or (step == end and not past_end):
            problem = f"lies past the end of training ({epochs} epochs)" if step > end else "leaves nothing to train"
            raise InputError(f"{key}: {point} {problem}: choose an earlier point, or raise train.epochs")


@dataclasses.dataclass(frozen=True)
class Cost:
    """One network of a dry run, and what it costs in epochs."""

    title: str
    epochs: float
    rewound: bool


def dry_run(recipe: Recipe, training_images: int | None) -> list[Cost]:
    """Every network that `recipe` comes to, dense ones first.

    While the number of training images is not known, iterations count as next to none of an epoch.
    """
    planned = make(recipe, training_images) if training_images is not None else Plan(recipe, _UNKNOWN_STEPS)
    names = {point.step(planned.steps_per_epoch): str(point) for point in grids.parse_points(recipe.train.snapshots)}
    dense = [Cost(f"replicate-{number} dense", float(recipe.train.epochs), False) for number in range(1, recipe.replicates + 1)]
    return dense + [
        Cost(
            f"replicate-{job.replicate} q{grids.quantile_name(job.quantile)} {job.variant}, rewound to "
            f"{names.get(job.step, '0')}",
            round(planned.epochs(job), 3),
            True,
        )
        for job in planned.jobs(recipe.quantiles(), recipe.retrain.rewind)
    ]
