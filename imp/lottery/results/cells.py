"""Cells that several tables of the report have."""

from collections.abc import Sequence
from typing import Any

from lottery.experiment.graph import DENSE
from lottery.results.block import Cells

FEW = 5  # densities, which a sentence names one by one


def place(row: Any) -> Cells:
    """Which networks a line is about."""
    return {
        "network": row.variant,
        "mask": f"{row.family} {row.mask}".strip(),
        "density": density(row),
        "rewound to": "" if row.variant == DENSE else row.rewind,
    }


def density(row: Any) -> str:
    """The density, with an exclamation mark if a layer has collapsed."""
    return "" if row.density is None else f"{row.density:.2%}{' !' if row.collapse else ''}"


def listed(densities: Sequence[str]) -> str:
    """Densities in a sentence, from dense to sparse: many of them by their ends."""
    if len(densities) <= FEW:
        return ", ".join(densities)
    return f"{len(densities)} densities from {densities[0]} to {densities[-1]}"


def runs(row: Any) -> str:
    """How many networks are done, of as many as are planned."""
    return str(row.count) if row.count == row.planned else f"{row.count} of {row.planned}"


def title(row: Any) -> str:
    """The name of a network or a group in sentences."""
    return DENSE if row.variant == DENSE else f"{row.variant}, {row.family} {row.mask}, rewound to {row.rewind}"
