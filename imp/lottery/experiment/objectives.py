"""What judges the trials of a sweep, as a recipe writes it: `dense`, or a ticket: `ticket:q90`, `ticket:round-03`, or where
several families have one, `ticket:FAMILY/q90`."""

import dataclasses
import re
from collections.abc import Iterable

from lottery.base.errors import InputError
from lottery.experiment import grids
from lottery.experiment.grids import Quantile, Round


@dataclasses.dataclass(frozen=True)
class Objective:
    """The ticket of the mask `label` in `family` (empty: in the one that has it); without a label, the dense network."""

    label: str = ""
    family: str = ""

    def __str__(self) -> str:
        return f"ticket:{self.family and f'{self.family}/'}{self.label}" if self.label else "dense"


def parse_objective(text: str) -> Objective:
    """Raises InputError for a text that is neither `dense` nor a ticket, or names a quantile or round that cannot be."""
    match = re.fullmatch(r"dense|ticket:(?:([\w-]+)/)?(?:q(\d+(?:\.\d+)?)|round-(\d+))", text.strip())
    if not match:
        raise InputError(f"{text!r} is not an objective: write dense, ticket:q90, ticket:round-03 or ticket:FAMILY/q90")
    family, quantile, number = match.groups()
    if not (quantile or number):
        return Objective()
    grid: Iterable[Quantile | Round] = grids.parse_quantiles(quantile) if quantile else grids.parse_rounds(number)
    [value] = grid
    return Objective(value.label, family or "")
