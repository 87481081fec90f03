"""What masks keep of the embeddings, the attention and the feed-forward parts of a Transformer."""

import pandas

from lottery.pruning.kinds import KINDS, kind_of
from lottery.results.block import Block, Cells
from lottery.results.findings import Findings
from lottery.results.tables import percent

EXPLAINED = "The share of each kind of kernel that a mask keeps, over all replicates."


def section(findings: Findings) -> Block | None:
    shares = by_kind(findings.layers)
    if shares.empty:
        return None
    return Block("kinds", "Kinds of layers", table=lines(shares), explained=EXPLAINED, frames={"kinds": shares})


def by_kind(layers: pandas.DataFrame) -> pandas.DataFrame:
    """The share that each mask keeps of each kind of layer, over all replicates: a row for each `masks` and `mask`, in the
    order of `layers` (those of `Findings`), with its `density` and a column for each kind. Empty where the network has none."""
    kinds = layers["layer"].map(kind_of) if len(layers) else pandas.Series(dtype=str)
    if set(kinds) <= {"other"}:
        return pandas.DataFrame()
    counts = layers.assign(kind=kinds).groupby(["masks", "mask", "kind"], sort=False)[["kept", "weights"]].sum()
    shares = (counts["kept"] / counts["weights"]).unstack("kind", sort=False)
    density = layers.groupby(["masks", "mask"], sort=False)["density"].mean()
    return shares[[kind for kind in KINDS if kind in shares]].assign(density=density).reset_index()


def lines(rows: pandas.DataFrame) -> list[Cells]:
    """A line of a table for each row of `by_kind`."""
    shown = ["density", *(kind for kind in KINDS if kind in rows)]
    return [
        {"masks": f"{row['masks']}, {row['mask']}", **{name: percent(row[name]) for name in shown}}
        for row in rows.to_dict("records")
    ]
