"""How many signs differ between a ticket and the networks that it comes from: a row for each pair of networks, over
replicates."""

import functools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import pandas

from lottery.experiment.graph import TICKET
from lottery.experiment.grids import Round
from lottery.pruning import signs
from lottery.pruning.state import Arrays, State
from lottery.results import frame, lookup
from lottery.results.tables import interval
from lottery.rundir import store
from lottery.rundir.lineage import Lineage
from lottery.rundir.names import Replicate
from lottery.rundir.run import Run

START, REWIND, DENSE, BEFORE, OWN = "start", "rewind point", "dense end", "round before", "ticket end"
PAIRS = ((START, REWIND), (START, DENSE), (REWIND, DENSE), (START, OWN), (REWIND, OWN), (DENSE, OWN), (BEFORE, OWN))
NAMES = {pair: " to ".join(pair) for pair in PAIRS}
KIND = ("family", "mask", "rewind")  # what the replicates of a ticket have in common
GROUPS = {
    **dict.fromkeys((*KIND, "pair"), "string"),
    "replicates": "Int64",
    **dict.fromkeys(("density", "flipped", "low", "high"), "Float64"),  # the share of signs that differ, and its interval
}


def groups(run: Run, networks: pandas.DataFrame) -> pandas.DataFrame:
    """A row for each trained ticket of `networks` (`frame.ROWS`) whose weights are there, and each pair of networks that are
    saved: means over replicates, with two-sided intervals. Raises InputError where a file is damaged."""
    tickets = networks[(networks["status"] == "done") & (networks["variant"] == TICKET)]
    found: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for number, own in tickets.groupby("replicate"):
        for row, pair, share in _shares(run, run.replicate(int(number)), frame.each(own)):
            found.setdefault((row.family, row.mask, row.rewind, pair), []).append((row.density, share))
    return frame.table((_row(run, place, shares) for place, shares in found.items()), GROUPS)


def _row(run: Run, place: tuple[str, ...], found: Sequence[tuple[float, float]]) -> dict[str, Any]:
    densities, shares = zip(*found, strict=True)
    low, high = (None if bound is None else min(max(bound, 0.0), 1.0) for bound in run.rule.interval(shares))
    means = {"density": statistics.fmean(densities), "flipped": statistics.fmean(shares)}
    return dict(zip((*KIND, "pair"), place, strict=True)) | means | {"low": low, "high": high, "replicates": len(found)}


def _shares(run: Run, place: Replicate, tickets: Sequence[Any]) -> Iterator[tuple[Any, str, float]]:
    """The tickets of a replicate, each with the name of a pair of networks and the share of signs that differ between them."""
    held, saved, end = Lineage(place), place.snapshot_steps(), lookup.end(place)

    @functools.cache
    def dense(step: int) -> Arrays | None:
        return lookup.snapshot(place, step, optimizer=False).weights if step in saved else None

    def ended(folder: str) -> Arrays | None:
        network = run.network_in(folder)
        if not network.final.exists():
            return None
        held.check(network.final)
        with store.promised_by(network.result):
            return store.load_state(network.final, optimizer=False).weights

    for row in tickets:
        network, own = run.network_in(row.folder), ended(row.folder)
        result = network.read_result()
        if own is None or result is None:
            continue
        mask = lookup.mask(run, place, result, State(0, own, {}, {}))
        before = row.folder.replace(f"/{row.mask}-", f"/{Round(row.round - 1).label}-")
        known = {
            START: dense(0),
            REWIND: dense(row.rewind_step) if row.rewind_step else None,
            DENSE: dense(end),
            BEFORE: ended(before) if row.round > 1 else None,
            OWN: own,
        }
        for pair, name in NAMES.items():
            first, second = (known[one] for one in pair)
            if first and second and (share := signs.flipped(first, second, mask)) is not None:
                yield row, name, share


def cells(found: pandas.DataFrame) -> list[dict[str, str]]:
    """A line for each ticket, with a column for each pair."""
    lines = []
    for place, alike in found.groupby([*KIND], sort=False):
        rows = {row.pair: row for row in frame.each(alike)}
        one = next(iter(rows.values()))
        line = dict(zip(("family", "mask", "rewound to"), place, strict=True))
        line |= {"density": f"{one.density:.2%}", "replicates": str(one.replicates)}
        shares = {name: interval(row.flipped, row.low, row.high, form="{:.2f}") for name, row in rows.items()}
        lines.append(line | {name: shares.get(name, "") for name in NAMES.values()})
    return lines
