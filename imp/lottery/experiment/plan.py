"""What follows from a recipe once the size of its data set is known: steps, snapshots, rewind points, networks."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import pydantic

from lottery.base.errors import InputError
from lottery.experiment import controls, graph, schedules
from lottery.experiment.family import LONGEST, Family
from lottery.experiment.graph import GOING_ON, TICKET, Mask, Snapshot, Ticket
from lottery.experiment.grids import Grid, Point, Quantile
from lottery.experiment.recipe import Recipe
from lottery.experiment.rule import LEAST_REPLICATES
from lottery.pruning import criteria, updates
from lottery.pruning.costs import STEP

LEAST_SNAPSHOTS = 3  # of which a mask can settle between two
UNKNOWN_STEPS = 1_000_000  # an epoch so long that iterations do not count


@dataclasses.dataclass(frozen=True)
class Selection:
    """What a command works on, as its options say: `families` by name (empty: all that it can), other `quantiles` or rewind
    points than the recipe's, and only the first `rounds` rounds."""

    families: tuple[str, ...] = ()
    quantiles: Grid[Quantile] | None = None
    rewind: Grid[Point] | None = None
    rounds: int | None = None

    def of(self, recipe: Recipe) -> dict[str, Family]:
        """The selected families, with the grids asked for. Raises InputError for an unknown one, or for grids that none has."""
        for name in self.families:
            if name not in recipe.families:
                raise InputError(f"--family {name} is not in the recipe, which has {', '.join(recipe.families)}")
        chosen = {name: family for name, family in recipe.families.items() if not self.families or name in self.families}
        given = self._given()
        for option, way in (("quantiles", "in one shot"), ("rounds", "in rounds")):
            if option in given and not any(getattr(family, option) for family in chosen.values()):
                raise InputError(f"--{option}: no selected family prunes {way}")
        if self.quantiles is not None:
            chosen = {name: family for name, family in chosen.items() if family.quantiles}
        in_one_shot = {option: value for option, value in given.items() if option != "rounds"}
        return {name: _changed(name, one, given if one.rounds else in_one_shot) for name, one in chosen.items()}

    def _given(self) -> dict[str, Any]:
        """The grids in place of the recipe's, by option."""
        options = {"quantiles": self.quantiles, "rewind": self.rewind, "rounds": self.rounds}
        return {option: value for option, value in options.items() if value is not None}


def _changed(name: str, family: Family, given: Mapping[str, Any]) -> Family:
    try:
        return Family.model_validate(family.model_copy(update=given).model_dump()) if given else family
    except pydantic.ValidationError as error:
        raise InputError(f"families.{name}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


Share = Callable[[Mask], float]


def by_weights(mask: Mask) -> float:
    """The share of the prunable weights that `mask` keeps."""
    return float(1 - mask.rate / 100) * (by_weights(mask.within) if mask.within else 1)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A recipe over a training split of `steps_per_epoch` batches; `total_steps` is the length of a dense training. `share`
    says which share of the dense network's MACs a mask leaves, as far as that is known. Without the number of `classes`, as
    where a run is only read, scoring costs nothing."""

    recipe: Recipe
    steps_per_epoch: int
    share: Share = dataclasses.field(default=by_weights, compare=False, repr=False)
    classes: int | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def total_steps(self) -> int:
        return self.recipe.train.steps or self.recipe.train.epochs * self.steps_per_epoch

    def last_step(self, ticket: Ticket) -> int:
        """Where `ticket` ends."""
        return round(self.length(ticket) * self.total_steps)

    def first_step(self, ticket: Ticket) -> int:
        """Where the training of `ticket` begins in the schedule: at its end if it is not trained."""
        return ticket.first_step if ticket.is_trained else self.last_step(ticket)

    def length(self, ticket: Ticket) -> float:
        """How many times as long as the dense network `ticket` trains. With a budget: until it has cost that. Fresh weights
        beside tickets that go on from trained ones train as long as the dense network."""
        is_begun_anew = self.recipe.families[ticket.family].method in GOING_ON and ticket.start is None
        return 1.0 if is_begun_anew else self._length(ticket.mask)

    def _length(self, mask: Mask) -> float:
        family = self.recipe.families[mask.family]
        if not family.budget:
            return family.length
        if not (share := self._mean_share(mask)):
            raise InputError(f"families.{mask.family}.budget: a step under {mask.name} costs nothing: leave that quantile out")
        return (family.budget - self.found(mask)) / share

    def found(self, mask: Mask) -> float:
        """What a mask of one shot took to find, in dense trainings. Raises InputError where its criterion does not say."""
        family = self.recipe.families[mask.family]
        if self.scoring_passes(family) is None:
            told = f"{family.criterion} does not say what it costs, which a budget asks: set its attribute `passes`"
            raise InputError(f"families.{mask.family}.criterion: {told}")
        step = mask.scored_on.step if isinstance(mask.scored_on, Snapshot) and family.is_scored else 0
        return step / self.total_steps + self._scoring(family)

    def scoring_passes(self, family: Family) -> float | None:
        """How often an example goes through the network for the scores of one mask; None where the criterion does not say."""
        name, (count, each) = family.criterion, family.scored_on
        if self.classes is None:
            return 0.0
        passes, is_without = criteria.passes(name, criteria.by_name(name)), name in criteria.CRITERIA
        examples = 1 if is_without and name not in criteria.WITH_IMAGES else count * (self.classes if each else 1)
        return None if passes is None else passes * examples * family.passes

    def _scoring(self, family: Family) -> float:
        """What the scores of one mask cost, in dense trainings, as far as that is known."""
        return (self.scoring_passes(family) or 0) / (STEP * self.total_steps * self.recipe.train.batch)

    def _mean_share(self, mask: Mask) -> float:
        """The MACs of the mean step of a ticket's training, as a share of a dense one's."""
        family = self.recipe.families[mask.family]
        every = max(1, family.update_every.step(self.steps_per_epoch))
        return updates.mean_share(family.updates, self.share(mask), family.update_from, family.update_until, every)

    def cost(self, ticket: Ticket) -> float:
        """What `ticket` takes to find and to train, in dense trainings, as far as that is known before."""
        family = self.recipe.families[ticket.family]
        spent = float(ticket.dense_steps(family.is_scored, self.total_steps))
        for one in (*ticket.lineage, ticket):
            share = self._mean_share(one.mask) if one.variant == TICKET else self.share(one.mask) if one.is_masked else 1.0
            spent += share * self._steps(one)
        return spent / self.total_steps + len(ticket.masks) * self._scoring(family)

    def snapshot_steps(self) -> list[int]:
        """Steps at which the dense training is saved: the grid of the recipe, and the end."""
        return sorted({point.step(self.steps_per_epoch) for point in self.recipe.train.snapshots} | {self.total_steps})

    def point_at(self, step: int) -> Point:
        """The first point of `train.snapshots` that is this step, or else the step itself."""
        points = (point for point in self.recipe.train.snapshots if point.step(self.steps_per_epoch) == step)
        return next(points, Point(Fraction(step), "it"))

    def rewind_steps(self, rewind: Iterable[Point]) -> list[int]:
        """The steps of rewind points, ascending. Raises InputError for one that leaves nothing to train, or has no snapshot."""
        _check("rewind point", rewind, self.recipe, self.steps_per_epoch, past_end=False)
        return self._saved("rewind point", rewind)

    def check_length(self, name: str, family: Family) -> None:
        """Raise InputError where tickets of the family `name` would train for no step, or no mask would change that is to."""
        masks = [] if family.rounds else self._one_shot(1, name, family)
        key, lengths = "budget" if family.budget else "length", [family.length, *map(self._length, masks)]
        if round(min(lengths) * self.total_steps) < 1:
            raise InputError(f"families.{name}.{key}: {getattr(family, key):g} leaves nothing to train: raise it")
        for mask in masks if family.changes_masks else []:
            schedule = self.updates(mask)
            if family.updates == "rigl" and schedule.every < 2:
                raise InputError(f"families.{name}.update_every: rigl spends a step on each change: write at least 2it")
            for point in family.rewind:
                if not schedule.steps(step := point.step(self.steps_per_epoch)):
                    raise InputError(
                        f"families.{name}: its masks never change after step {step}: lower update_every "
                        f"({family.update_every}), or raise update_until ({family.update_until:g})"
                    )

    def _check_longest(self, name: str, family: Family) -> None:
        """Apart from `check_length`, because without masks it is not known what a budget comes to."""
        lengths = [self._length(mask) for mask in self._one_shot(1, name, family)] if family.budget else []
        if max(lengths, default=0) > LONGEST:
            longest = f"a training {max(lengths):,.0f} times as long as the dense one"
            raise InputError(f"families.{name}.budget: {longest}: lower it")

    def _saved(self, what: str, points: Iterable[Point]) -> list[int]:
        """Steps of points at which the dense network is saved, ascending. Raises InputError for another."""
        saved, known = self.recipe.train.snapshots, self.snapshot_steps()
        steps = {point.step(self.steps_per_epoch): point for point in points}
        for step, point in steps.items():
            if step not in known:
                way_out = f"add it with `imp train --set train.snapshots={saved},{point}`"
                raise InputError(f"{what} {point} is not among the snapshots ({saved}): {way_out}")
        return sorted(steps)

    def _scored(self, family: Family) -> int:
        return self._saved("scored_at", [family.scored_at])[0] if isinstance(family.scored_at, Point) else self.total_steps

    def tickets(self, replicates: Sequence[int], families: Mapping[str, Family]) -> list[Ticket]:
        """Every network of these families, in order. Raises InputError as `rewind_steps` and `check_length` do."""
        for name, family in families.items() if self.steps_per_epoch != UNKNOWN_STEPS else ():
            self.check_length(name, family)
            self._check_longest(name, family)
        return graph.in_order(
            ticket
            for number in replicates
            for name, family in families.items()
            for rewinds in [[0] if family.is_linear else self.rewind_steps(family.rewind)]
            for ticket in graph.tickets(number, name, family, self._scored(family), rewinds)
        )

    def masks(self, replicates: Sequence[int], families: Mapping[str, Family]) -> list[Mask]:
        """The one-shot masks of these families, which are cut before anything is rewound, whatever the rewind points."""
        cut = {name: family for name, family in families.items() if family.is_cut_at_once}
        return [mask for number in replicates for name, family in cut.items() for mask in self._one_shot(number, name, family)]

    def _one_shot(self, number: int, name: str, family: Family) -> list[Mask]:
        scored = None if family.is_gradual else self._scored(family)
        return [graph.one_shot(number, name, quantile, scored) for quantile in family.quantiles]

    def controls_of(self, ticket: Ticket, family: Family) -> list[Ticket]:
        """The controls that the recipe asks for beside a ticket that has them."""
        return graph.controls_of(ticket, family, self._scored(family))

    def finetune_rate(self, family: Family) -> float:
        """The learning rate of `finetune`: the recipe's, or else that of the schedule's last step."""
        last = schedules.rates(self.recipe.train, self.steps_per_epoch, self.total_steps - 1, 1)[0]
        return family.finetune_rate or float(last)

    def updates(self, mask: Mask) -> updates.Schedule:
        """When `mask` changes in the training of its ticket."""
        family = self.recipe.families[mask.family]
        last = round(self._length(mask) * self.total_steps)
        every = max(1, family.update_every.step(self.steps_per_epoch))
        begin, until = (int(share * last) for share in (family.update_from, family.update_until))
        return updates.Schedule(family.updates, every, begin, until, family.drop_fraction)

    def epochs(self, ticket: Ticket) -> float:
        """What `ticket` costs, in epochs."""
        return self._steps(ticket) / self.steps_per_epoch

    def _steps(self, ticket: Ticket) -> float:
        """Those of its training; of what is not trained, as many as cost the same as its pass over the examples."""
        if not ticket.is_trained:
            return 0.0 if self.steps_per_epoch == UNKNOWN_STEPS else self.steps_per_epoch / STEP
        return self.last_step(ticket) - self.first_step(ticket)


def make(recipe: Recipe, training_examples: int, share: Share = by_weights, classes: int | None = None) -> Plan:
    """The plan of `recipe` for so many training examples. Raises InputError when a batch does not fit in, and as `of`."""
    steps_per_epoch = training_examples // recipe.train.batch
    if not steps_per_epoch:
        raise InputError(f"train.batch is {recipe.train.batch}, but there are {training_examples} training examples: lower it")
    return of(recipe, steps_per_epoch, share, classes)


def of(recipe: Recipe, steps_per_epoch: int, share: Share = by_weights, classes: int | None = None) -> Plan:
    """The plan of `recipe` for epochs of so many steps. Raises InputError when a point of training lies past the end."""
    check_points(recipe, steps_per_epoch)
    planned = Plan(recipe, steps_per_epoch, functools.cache(share), classes)
    for name, family in recipe.families.items():
        planned.check_length(name, family)
    return planned


def check_points(recipe: Recipe, steps_per_epoch: int | None = None) -> None:
    """Raise InputError for a point of training past the end; without `steps_per_epoch`, only epochs can be judged."""
    _check("train.snapshots", recipe.train.snapshots, recipe, steps_per_epoch, past_end=True)
    _check("train.warmup", [recipe.train.warmup], recipe, steps_per_epoch, past_end=True)
    if recipe.train.schedule == "step":
        _check("train.milestones", recipe.train.milestones, recipe, steps_per_epoch, past_end=True)
    for name, family in recipe.families.items():
        _check(f"families.{name}.rewind", family.rewind, recipe, steps_per_epoch, past_end=False)
        if isinstance(family.scored_at, Point):
            _check(f"families.{name}.scored_at", [family.scored_at], recipe, steps_per_epoch, past_end=True)
        if family.is_settled and (saved := len(recipe.train.snapshots) + 1) < LEAST_SNAPSHOTS:
            raise InputError(
                f"families.{name}.scored_at: whether a mask is settled is seen from {LEAST_SNAPSHOTS} or more snapshots, and "
                f"there are {saved} with the end: add some, as in --set train.snapshots={recipe.train.snapshots},1ep,2ep,3ep"
            )


def _check(key: str, points: Iterable[Point], recipe: Recipe, steps_per_epoch: int | None, past_end: bool) -> None:
    """Every one of `points` must lie within training; unless `past_end`, before its last step."""
    length = steps_per_epoch or UNKNOWN_STEPS
    unit = "steps" if recipe.train.steps else "epochs"
    for point in points:
        step, end = point.step(length), recipe.train.steps or recipe.train.epochs * length
        if steps_per_epoch is None and point.amount and (point.unit == "it") != (unit == "steps"):
            continue
        if step > end or (step == end and not past_end):
            training = f"{getattr(recipe.train, unit)} {unit}"
            problem = f"lies past the end of training ({training})" if step > end else "leaves nothing to train"
            raise InputError(f"{key}: {point} {problem}: choose an earlier point, or raise train.{unit}")


@dataclasses.dataclass(frozen=True)
class Cost:
    """A `network` (a dense one by its replicate), the kind that it is of, its cost in epochs (None while the length of one
    matters and is unknown), and what it takes to find and to train, in dense trainings, as `Plan.cost` counts; `certain` if not
    a headline's."""

    network: int | Ticket
    title: str
    kind: str
    epochs: float | None
    cost: float
    certain: bool = True

    @property
    def is_trained(self) -> bool:
        return isinstance(self.network, int) or self.network.is_trained

    @property
    def role(self) -> Literal["dense", "tickets", "controls"]:
        """What it is one of; trainings of a ticket that differ in the order of examples are tickets, too."""
        if isinstance(self.network, int):
            return "dense"
        return "tickets" if self.network.variant == TICKET or controls.is_again(self.network.variant) else "controls"


def estimated(recipe: Recipe, training_examples: int | None, share: Share = by_weights, classes: int | None = None) -> Plan:
    """The plan of `recipe`. While the number of training examples is unknown, iterations count as almost no part of an epoch.
    Raises InputError if it must be known."""
    if training_examples is not None:
        return make(recipe, training_examples, share, classes)
    given = recipe.train.snapshots, *(family.rewind for family in recipe.families.values())
    if recipe.train.steps and any(point.unit == "ep" for points in given for point in points):
        raise InputError("the number of steps in an epoch is not known yet: run `imp prepare` first")
    check_points(recipe)
    return Plan(recipe, UNKNOWN_STEPS, functools.cache(share))


def dry_run(planned: Plan, controls: Sequence[Ticket] | None = None) -> list[Cost]:
    """Every network: dense ones (by replicate) first, then those under masks, and last the `controls` of headlines. Before
    these are known (None), they are those of the sparsest tickets: at which masks, if any, the tickets will tell."""
    recipe, unknown = planned.recipe, planned.steps_per_epoch == UNKNOWN_STEPS and planned.recipe.train.steps
    replicates = range(1, recipe.replicates + 1)
    tickets = planned.tickets(replicates, recipe.families)
    for family in recipe.families.values():
        criteria.by_name(family.criterion)

    def under(ticket: Ticket, label: str, certain: bool) -> Cost:
        title = f"replicate-{ticket.replicate} {ticket.family} {label} {ticket.variant}"
        title += f", rewound to {planned.point_at(ticket.rewind)}"
        kind = f"{ticket.family} {'' if certain else 'headline '}{ticket.variant}"
        epochs = None if unknown else round(planned.epochs(ticket), 3)
        return Cost(ticket, title, kind, epochs, round(planned.cost(ticket), 3), certain)

    perhaps = []
    if controls is None and recipe.replicates >= LEAST_REPLICATES:
        last = {name: family.grid[-1].label for name, family in recipe.families.items() if family.controls_follow}
        sparsest = [one for one in tickets if one.variant == TICKET and one.mask.label == last.get(one.family)]
        perhaps = [control for one in sparsest for control in planned.controls_of(one, recipe.families[one.family])]
    length = None if unknown else round(planned.total_steps / planned.steps_per_epoch, 3)
    return [
        *(Cost(number, f"replicate-{number} dense", "dense", length, 1.0) for number in replicates),
        *(under(ticket, ticket.mask.label, certain=True) for ticket in (*tickets, *(controls or ()))),
        *(under(ticket, "headline", certain=False) for ticket in dict.fromkeys(perhaps)),
    ]
