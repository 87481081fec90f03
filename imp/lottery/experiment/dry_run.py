"""Every network that a recipe asks for, and its cost, before anything is trained."""

import dataclasses

from data_prep.errors import InputError
from lottery.experiment import grids, plan
from lottery.experiment.graph import TICKET, Ticket
from lottery.experiment.plan import Plan
from lottery.experiment.recipe import Recipe

LEAST_REPLICATES = 3  # without which there is no verdict, and no headline


@dataclasses.dataclass(frozen=True)
class Cost:
    """One network and its cost in epochs (None if the recipe counts steps and the length of an epoch is unknown). It is not
    `certain` if it is trained only when there is a headline."""

    title: str
    epochs: float | None
    rewound: bool
    certain: bool = True


def dry_run(recipe: Recipe, training_images: int | None) -> list[Cost]:
    """Dense networks first, then those under masks, and last the controls of headlines. Whether there are any of these, and at
    which mask, is known only once the tickets are trained.

    While the number of training images is unknown, iterations count as almost no part of an epoch. Raises InputError if it must
    be known.
    """
    unknown = training_images is None and recipe.train.steps > 0
    points = ",".join((recipe.train.snapshots, *(family.rewind for family in recipe.families.values())))
    if unknown and any(point.unit == "ep" for point in grids.parse_points(points)):
        raise InputError("the number of steps in an epoch is not known yet: run `imp prepare` first")
    planned = plan.make(recipe, training_images) if training_images is not None else Plan(recipe, plan.UNKNOWN_STEPS)
    replicates = range(1, recipe.replicates + 1)
    tickets = planned.tickets(replicates, recipe.families)

    def cost(title: str, steps: int, rewound: bool = True, certain: bool = True) -> Cost:
        return Cost(title, None if unknown else round(steps / planned.steps_per_epoch, 3), rewound, certain)

    return [
        *(cost(f"replicate-{number} dense", planned.total_steps, rewound=False) for number in replicates),
        *(cost(_title(planned, ticket), planned.total_steps - ticket.first_step) for ticket in tickets),
        *(
            cost(_title(planned, ticket, "headline"), planned.total_steps - ticket.first_step, certain=False)
            for ticket in _following(planned, tickets)
        ),
    ]


def _following(planned: Plan, tickets: list[Ticket]) -> list[Ticket]:
    """The controls of headlines, here beside the sparsest ticket of each series."""
    families = {name: family for name, family in planned.recipe.families.items() if family.controls_follow}
    if planned.recipe.replicates < LEAST_REPLICATES:
        return []
    last = [one for one in tickets if one.variant == TICKET and one.family in families]
    last = [one for one in last if one.mask.label == families[one.family].labels[-1]]
    return list(dict.fromkeys(control for one in last for control in planned.controls_of(one, families[one.family])))


def _title(planned: Plan, ticket: Ticket, label: str = "") -> str:
    """The name of a network: its mask, or `label` if that is not known yet, and its rewind point as the recipe writes it."""
    points = grids.parse_points(planned.recipe.train.snapshots)
    names = {point.step(planned.steps_per_epoch): str(point) for point in points}
    label = label or ticket.mask.label
    return f"replicate-{ticket.replicate} {ticket.family} {label} {ticket.variant}, rewound to {names.get(ticket.rewind, '0')}"
