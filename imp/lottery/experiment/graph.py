"""The graph of a run: masks are scored on networks, and tickets are trained under masks. One shot is a chain of one round: all
its masks are scored on the dense network. In rounds, the mask of each is scored on the ticket of the round before, within its
mask. A network waits for what it is made from, and for nothing else."""

import dataclasses
from collections.abc import Container, Iterable, Sequence
from fractions import Fraction
from typing import Any

from lottery.experiment import controls
from lottery.experiment.family import Family
from lottery.experiment.grids import Quantile, Round

TICKET, DENSE = "ticket", "dense"
LONGER = "lr", "finetune"  # methods that add a training like the dense network's in every round
GOING_ON = (*LONGER, "llr", "allr")  # methods whose tickets start where the round before ended


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The dense network of a replicate after `step` steps."""

    replicate: int
    step: int


@dataclasses.dataclass(frozen=True)
class Mask:
    """A mask of a family, called `label` in the recipe. It prunes `rate` per cent of what `within` keeps (None: of all): the
    weights with the lowest scores on the network `scored_on` (a ticket is scored at its end; None: it prunes gradually, in the
    training of its ticket). `rewind` is the step that its chain of rounds rewinds to; None in one shot, where all share it."""

    replicate: int
    family: str
    label: str
    rewind: int | None
    round: int = dataclasses.field(compare=False)
    rate: Fraction = dataclasses.field(compare=False)
    scored_on: "Snapshot | Ticket | None" = dataclasses.field(compare=False, repr=False)
    within: "Mask | None" = dataclasses.field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """`q90`, `round-03-step-000034`."""
        return self.label if self.rewind is None else f"{self.label}-step-{self.rewind:06d}"

    def __str__(self) -> str:
        return f"replicate-{self.replicate} {self.family} {self.name}"


@dataclasses.dataclass(frozen=True)
class Ticket:
    """A network trained under `mask`: a ticket, or a control beside it (`variant`). It starts with the state `start` (a
    ticket's at its end; None: fresh weights) at step `first_step` of the schedule. Its ticket is rewound to step `rewind`. A
    control beside a ticket whose mask changes in training has the mask that this ended with (`found_by`). A soup is not
    trained, but the mean of `averaged` networks, its ticket and others like it. `borrowed` is the mask of the same ticket in
    another replicate, where a control is made from that."""

    mask: Mask
    rewind: int
    variant: str
    first_step: int = dataclasses.field(compare=False)
    start: "Snapshot | Ticket | None" = dataclasses.field(compare=False, repr=False)
    found_by: "Ticket | None" = dataclasses.field(default=None, compare=False, repr=False)
    averaged: "tuple[Ticket, ...]" = dataclasses.field(default=(), compare=False, repr=False)
    borrowed: Mask | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def replicate(self) -> int:
        return self.mask.replicate

    @property
    def family(self) -> str:
        return self.mask.family

    @property
    def replicates(self) -> set[int]:
        """Those whose dense networks it needs."""
        return {self.replicate, self.given.replicate}

    @property
    def given(self) -> Mask:
        """The mask that its own is made from."""
        return self.borrowed or self.mask

    @property
    def is_masked(self) -> bool:
        return self.variant != controls.extended.name

    @property
    def is_trained(self) -> bool:
        """Whether it is; an average and a supermask are only evaluated."""
        return not self.averaged and self.variant not in controls.UNTRAINED

    @property
    def chain(self) -> "tuple[Any, ...] | Ticket":
        """What is trained in sequence: all rounds of a rewind point; a ticket whose mask changes, and its controls; or else in
        one shot each network on its own, and a soup after all that it is the mean of."""
        if self.mask.rewind is not None:
            return self.replicate, self.family, self.rewind
        if self.averaged or controls.is_again(self.variant):
            return dataclasses.replace(self, variant=TICKET)
        return self.found_by or self

    @property
    def name(self) -> str:
        """`q90-step-000034`, `round-03-step-000034`: the name of its ticket in its family."""
        return f"{self.mask.label}-step-{self.rewind:06d}"

    @property
    def needs(self) -> "list[Ticket]":
        """The networks that must be trained before this one can be."""
        sources = [self.start, self.found_by, *self.averaged, *([self.given.scored_on] if self.is_masked else [])]
        return [source for source in sources if isinstance(source, Ticket)]

    @property
    def lineage(self) -> "list[Ticket]":
        """The networks under masks that had to be trained before this one, each once."""
        needs = dict.fromkeys(self.needs)
        return list(dict.fromkeys(one for need in needs for one in (*need.lineage, need)))

    @property
    def masks(self) -> list[Mask]:
        """The masks that had to be cut for this one, its own among them."""
        return list(dict.fromkeys(one.given for one in (*self.lineage, self) if one.is_masked and one.given.scored_on))

    def dense_steps(self, is_scored: bool, end: int) -> int:
        """For how many steps dense networks, of one replicate or two, had to be trained before it, whose masks are scored on a
        network or are not. Networks are aligned at the `end` of their training."""
        needs_scores = [one for one in (*self.lineage, self) if is_scored and one.is_masked]
        sources = [*(one.start for one in (*self.lineage, self)), *(one.given.scored_on for one in needs_scores)]
        steps: dict[int, int] = {}
        for source in sources:
            if isinstance(source, Snapshot):
                steps[source.replicate] = max(source.step, steps.get(source.replicate, 0))
        if self.borrowed and self.variant == controls.aligned.name:
            steps |= {self.replicate: end, self.borrowed.replicate: end}
        return sum(steps.values())

    def __str__(self) -> str:
        return f"replicate-{self.replicate} {self.family} {self.name} {self.variant}"


@dataclasses.dataclass(frozen=True)
class Bundle:
    """Networks that one process trains together, in a compiled step for `size` of them, each at its place there."""

    tickets: tuple[Ticket, ...]
    size: int = 1
    places: tuple[int, ...] = (0,)

    def of(self, chosen: Container[Ticket]) -> "Bundle":
        """The same with only the `chosen` ones, each at its place."""
        left = [(one, place) for one, place in zip(self.tickets, self.places, strict=True) if one in chosen]
        return Bundle(tuple(one for one, _ in left), self.size, tuple(place for _, place in left))

    def __str__(self) -> str:
        more = len(self.tickets) - 1
        return f"{self.tickets[0]}{f' and {more} more' if more else ''}"


def bundled(found: Sequence[Ticket], size: int) -> list[Bundle]:
    """Networks that can be trained at the same time in bundles of about one size, `size` at most. The last bits of what is
    trained depend on size and place: so this takes all networks of a command, not only those that are left to train."""
    waves: dict[Any, list[Ticket]] = {}
    for one in found:
        waves.setdefault((one.mask.round, is_beside(one)), []).append(one)
    bundles = []
    for wave in waves.values():
        own = -(-len(wave) // -(-len(wave) // size))
        for first in range(0, len(wave), own):
            together = tuple(wave[first : first + own])
            bundles.append(Bundle(together, own, tuple(range(len(together)))))
    return bundles


def is_beside(ticket: Ticket) -> bool:
    """Whether it is a control in rounds, which gives way to the tickets that later rounds wait for."""
    return ticket.mask.rewind is not None and ticket.variant != TICKET


def tickets(replicate: int, name: str, family: Family, scored: int, rewinds: Sequence[int]) -> list[Ticket]:
    """Every network that `family` asks for in a replicate, in order: tickets, and the controls of the masks that the recipe
    names. Of the dense training's steps, its first masks are `scored` at one, and tickets rewound to some."""
    found = []
    for rewind in rewinds:
        before: Snapshot | Ticket = Snapshot(replicate, scored)
        within: Mask | None = None
        for value in family.grid:
            if isinstance(value, Round):
                mask = Mask(replicate, name, value.label, rewind, value, Fraction(str(family.rate)), before, within)
            else:
                mask = one_shot(replicate, name, value, None if family.is_gradual else scored)
            start = before if family.method in GOING_ON else Snapshot(replicate, rewind)
            ticket = Ticket(mask, rewind, TICKET, rewind, start)
            found += [ticket, *copies_of(ticket, family.copies)]
            if family.method in LONGER:
                found.append(beside(ticket, controls.extended, family, scored))
            if value in family.controls_at:
                found += controls_of(ticket, family, scored)
            if family.rounds:
                before, within = ticket, mask
            if family.particles > 1:
                before = average_of(ticket, family.particles)
                found += [*before.averaged, before]
    return in_order(found)


def in_order(found: Iterable[Ticket]) -> list[Ticket]:
    """Each network once: by round; in rounds tickets come before their controls; the longest training comes first."""
    return sorted(dict.fromkeys(found), key=lambda one: (one.mask.round, is_beside(one), one.first_step))


def controls_of(ticket: Ticket, family: Family, scored: int) -> list[Ticket]:
    """The controls of a ticket that has them, and the networks that a soup is made of."""
    largest = max(map(controls.averaged, family.controls), default=0)
    more = copies_of(ticket, largest)
    found = list(more)
    for name in family.controls:
        if count := controls.averaged(name):
            found.append(average_of(ticket, count))
        else:
            found.append(beside(ticket, controls.of(name), family, scored))
    return found


def copies_of(ticket: Ticket, count: int) -> list[Ticket]:
    """The other trainings of `count` that start as `ticket` does, each with the examples in another order."""
    return [dataclasses.replace(ticket, variant=controls.again(number)) for number in range(2, count + 1)]


def average_of(ticket: Ticket, count: int) -> Ticket:
    """The mean of `ticket` and its copies, `count` in all."""
    averaged = (ticket, *copies_of(ticket, count))
    return dataclasses.replace(ticket, variant=controls.soup_of(count), averaged=averaged)


def beside(ticket: Ticket, control: controls.Control, family: Family, scored: int) -> Ticket:
    """The control of `ticket`; a fresh one serves all rewind points of a mask."""
    mask, rewind = ticket.mask, ticket.rewind
    found_by = ticket if family.changes_masks else None
    if control.start == "fresh":
        return Ticket(mask, 0 if control.name in family.shared_controls else rewind, control.name, 0, None, found_by)
    start: Snapshot | Ticket = Snapshot(mask.replicate, scored if family.method in GOING_ON else rewind)
    borrowed = mask_in(lender(mask.replicate), mask, family, scored) if control.name in controls.BORROWED else None
    if control.start == "own" and isinstance(ticket.start, Ticket):
        start = beside(ticket.start, control, family, scored)
    return Ticket(mask, rewind, control.name, rewind, start, found_by, borrowed=borrowed)


def lender(replicate: int) -> int:
    """The replicate whose masks `replicate` borrows: the one before, so that this does not change as others are added."""
    return replicate - 1 or 2


def mask_in(replicate: int, mask: Mask, family: Family, scored: int) -> Mask:
    """The mask of `family` in another replicate that `mask` is in its own."""
    without_controls = family.model_copy(update={"controls": []})
    same = tickets(replicate, mask.family, without_controls, scored, [mask.rewind or 0])
    return next(one.mask for one in same if one.mask.label == mask.label)


def one_shot(replicate: int, family: str, quantile: Quantile, scored: int | None) -> Mask:
    """The mask of a quantile, scored on the dense network after so many steps (None: pruned gradually)."""
    source = None if scored is None else Snapshot(replicate, scored)
    return Mask(replicate, family, quantile.label, None, 1, quantile, source, None)


def masks_of(found: Iterable[Ticket]) -> list[Mask]:
    """The masks of networks, each once."""
    return list(dict.fromkeys(ticket.mask for ticket in found))


def side_by_side(found: Iterable[Ticket]) -> int:
    """How many of these networks can be trained at the same time: all of one shot, and one of each variant of each chain."""
    return len({(ticket.chain, ticket.variant) for ticket in found})
