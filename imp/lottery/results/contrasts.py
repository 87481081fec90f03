"""Two kinds of networks held against each other, paired by replicate: a ticket and the dense network, its controls, an earlier
rewind point, another family."""

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import pandas

from lottery.experiment.graph import DENSE, TICKET
from lottery.results import frame, verdicts
from lottery.results.frame import EXTENDED, FIGURES, ROWS
from lottery.rundir.run import Run

Kind = tuple[str, str, str, int]  # variant, family, mask, step of the rewind point
Networks = dict[int, dict[str, Any]]  # rows by replicate
CONTRASTS = {
    **{name: ROWS[name] for name in ("family", "method", "mask", "round", "rewind", "rewind_step", "density", "collapse")},
    "against": "string",  # what tickets are held against: dense, a control, an earlier rewind point, another family
    "collapse_against": "string",
    "figure": "string",  # one of FIGURES
    "mean": "Float64",  # of the differences, with their two-sided 95 % Student t interval
    "low": "Float64",
    "high": "Float64",
    "count": "Int64",
    "clear": "boolean",  # whether the interval lies on one side of zero
}


def contrasts(run: Run, networks: pandas.DataFrame) -> pandas.DataFrame:
    """Every kind of ticket against the dense network, against what accompanies it, against the ticket of the same mask that was
    rewound to the earliest point, and against those of families further down in the recipe with a mask of that name; a row for
    each of `FIGURES`. Only replicates that have both count."""
    kinds: dict[Kind, Networks] = {}
    for row in sorted(frame.dicts(networks), key=frame.order(run)):
        if row["status"] == "done":
            kind = (row["variant"], row["family"], row["mask"], row["rewind_step"])
            kinds.setdefault(kind, {})[row["replicate"]] = row
    found = [
        row
        for kind, tickets in kinds.items()
        if kind[0] == TICKET
        for against, others in _others(run, kinds, kind)
        for row in _contrast(tickets, against, others)
    ]
    return frame.table(found, CONTRASTS)


def _others(run: Run, kinds: Mapping[Kind, Networks], ticket: Kind) -> Iterator[tuple[str, Networks]]:
    """What a kind of tickets is held against: a name, and the networks."""
    _, name, mask, step = ticket
    yield DENSE, kinds.get((DENSE, "", "", 0), {})
    family = run.recipe.families[name]
    fresh = family.fresh_controls if family.quantiles else set()
    beside = dict.fromkeys(kind[0] for kind in kinds if kind[1:3] == (name, mask) and kind[0] != TICKET)
    for variant in sorted(beside, key=lambda variant: variant != EXTENDED):
        yield variant, kinds.get((variant, name, mask, 0 if variant in fresh else step), {})
    earliest = min(kind[3] for kind in kinds if kind[:3] == (TICKET, name, mask))
    if earliest < step:
        others = kinds[TICKET, name, mask, earliest]
        yield f"rewound to {next(iter(others.values()))['rewind']}", others
    families = list(run.recipe.families)
    for other in families[families.index(name) + 1 :]:
        yield f"{other} {mask}", kinds.get((TICKET, other, mask, step), {})


def _contrast(tickets: Networks, against: str, others: Networks) -> Iterator[dict[str, Any]]:
    pairs = [(row, others[number]) for number, row in tickets.items() if number in others]
    if not pairs:
        return
    common = {name: pairs[0][0][name] for name in ("family", "method", "mask", "round", "rewind", "rewind_step")}
    common |= {
        "density": statistics.fmean(one["density"] for one, _ in pairs),
        "collapse": next((one["collapse"] for one, _ in pairs if one["collapse"]), None),
        "against": against,
        "collapse_against": next((other["collapse"] for _, other in pairs if other["collapse"]), None),
        "count": len(pairs),
    }
    for figure in FIGURES:
        differences = [one[figure] - other[figure] for one, other in pairs]
        low, high = map(float, verdicts.bounds(differences, 0.975))
        known = {"low": low, "high": high} if math.isfinite(low) else {}
        clear = bool(known) and (low > 0 or high < 0)
        yield common | known | {"figure": figure, "mean": statistics.fmean(differences), "clear": clear}
