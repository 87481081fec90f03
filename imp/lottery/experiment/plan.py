"""What follows from a recipe once the size of its data set is known: steps, snapshots, rewind points, networks."""

import dataclasses
from collections.abc import Mapping, Sequence

from data_prep.errors import InputError
from lottery.experiment import controls, graph, grids, schedules
from lottery.experiment.graph import Mask, Snapshot, Steps, Ticket
from lottery.experiment.recipe import Family, Recipe

MOST_NETWORKS = 100_000  # of one grid
UNKNOWN_STEPS = 1_000_000  # an epoch so long that iterations do not count


@dataclasses.dataclass(frozen=True)
class Selection:
    """What a command works on, as its options say: `families` by name (empty: all that the command can work on), other
    `quantiles` or rewind points than the recipe's, and only the first `rounds` rounds."""

    families: tuple[str, ...] = ()
    quantiles: str | None = None
    rewind: str | None = None
    rounds: int | None = None

    def of(self, recipe: Recipe) -> dict[str, Family]:
        """The families of `recipe` that are selected, with the grids asked for. Raises InputError for an unknown one, and where
        quantiles or rounds are asked for and no family has them."""
        for name in self.families:
            if name not in recipe.families:
                raise InputError(f"--family {name} is not in the recipe, which has {', '.join(recipe.families)}")
        chosen = {name: family for name, family in recipe.families.items() if not self.families or name in self.families}
        for option, given, way in (("quantiles", self.quantiles, "in one shot"), ("rounds", self.rounds, "in rounds")):
            if given is not None and not any(getattr(family, option) for family in chosen.values()):
                raise InputError(f"--{option}: no selected family prunes {way}")
        if self.quantiles is not None:
            grids.parse_quantiles(self.quantiles)
            chosen = {name: family for name, family in chosen.items() if family.quantiles}
        return {name: family.model_copy(update=self._grids(family)) for name, family in chosen.items()}

    def _grids(self, family: Family) -> dict[str, object]:
        """The grids that options give in place of the recipe's."""
        given = {"quantiles": self.quantiles, "rewind": self.rewind, "rounds": self.rounds if family.rounds else None}
        return {key: value for key, value in given.items() if value is not None}

    def typed(self) -> list[str]:
        """The options that say so."""
        given = {"--quantiles": self.quantiles, "--rewind": self.rewind, "--rounds": self.rounds}
        options = [part for option, value in given.items() if value is not None for part in (option, str(value))]
        return [*(part for name in self.families for part in ("--family", name)), *options]


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
        return self._saved("rewind point", rewind)

    def _saved(self, what: str, points: str) -> list[int]:
        """Steps of points at which the dense network is saved, ascending. Raises InputError for another."""
        steps = {point.step(self.steps_per_epoch): point for point in grids.parse_points(points)}
        for step, point in steps.items():
            if step not in self.snapshot_steps():
                raise InputError(
                    f"{what} {point} is not among the snapshots ({self.recipe.train.snapshots}): "
                    f"add it with `imp train --set train.snapshots={self.recipe.train.snapshots},{point}`"
                )
        return sorted(steps)

    def steps(self, family: Family) -> Steps:
        """The steps that masks and tickets of `family` refer to. Raises InputError as `rewind_steps` does, and where the dense
        network is not saved where it is to be scored."""
        return Steps(self._scored(family), self.rewind_steps(family.rewind), self.total_steps)

    def _scored(self, family: Family) -> int:
        return self.total_steps if family.scored_at == "end" else self._saved("scored_at", family.scored_at)[0]

    def tickets(self, replicates: Sequence[int], families: Mapping[str, Family]) -> list[Ticket]:
        """Every network of these families that the recipe asks for, in the order in which they are trained. Raises InputError
        as `rewind_steps` does, and for more than `MOST_NETWORKS`."""
        for family in families.values():
            count = len(replicates) * len(self.steps(family).rewind) * len(family.labels) * (1 + len(family.controls))
            if count > MOST_NETWORKS:
                raise InputError(f"{count:,} networks are too many: make the grid coarser, {MOST_NETWORKS:,} networks at most")
        return graph.in_order(
            ticket
            for number in replicates
            for name, family in families.items()
            for ticket in graph.tickets(number, name, family, self.steps(family))
        )

    def masks(self, replicates: Sequence[int], families: Mapping[str, Family]) -> list[Mask]:
        """The masks of these families that are scored on the dense network at once: those of one shot. They are cut before
        anything is rewound, and so whatever the rewind points."""
        return [
            graph.one_shot(name, quantile, Snapshot(number, self._scored(family)))
            for number in replicates
            for name, family in families.items()
            if family.quantiles
            for quantile in grids.parse_quantiles(family.quantiles)
        ]

    def controls_of(self, ticket: Ticket, family: Family) -> list[Ticket]:
        """The controls that the recipe asks for beside `ticket`, if it is the one that has them."""
        return [graph.beside(ticket, controls.of(name), family, self.steps(family)) for name in family.controls]

    def finetune_rate(self, family: Family) -> float:
        """The learning rate of `finetune`: the recipe's, or else that of the schedule's last step."""
        last = schedules.rates(self.recipe.train, self.steps_per_epoch, self.total_steps - 1, 1)[0]
        return family.finetune_rate or float(last)

    def epochs(self, ticket: Ticket) -> float:
        """What `ticket` costs, in epochs."""
        return (self.total_steps - ticket.first_step) / self.steps_per_epoch


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


def check_points(recipe: Recipe, steps_per_epoch: int | None = None) -> None:
    """Raise InputError for a point of training past the end; without `steps_per_epoch`, only epochs can be judged."""
    _check("train.snapshots", recipe.train.snapshots, recipe, steps_per_epoch, past_end=True)
    if recipe.train.schedule == "step":
        _check("train.milestones", recipe.train.milestones, recipe, steps_per_epoch, past_end=True)
    _check("train.warmup", recipe.train.warmup, recipe, steps_per_epoch, past_end=True)
    for name, family in recipe.families.items():
        _check(f"families.{name}.rewind", family.rewind, recipe, steps_per_epoch, past_end=False)
        if family.scored_at != "end":
            _check(f"families.{name}.scored_at", family.scored_at, recipe, steps_per_epoch, past_end=True)


def _check(key: str, points: str, recipe: Recipe, steps_per_epoch: int | None, past_end: bool) -> None:
    """Every one of `points` must lie within training; unless `past_end`, before its last step."""
    length = steps_per_epoch or UNKNOWN_STEPS
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
