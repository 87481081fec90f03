"""What a run has found so far as a tidy frame: a row a network. `grouping` and `contrasts` make theirs of it.

Columns are named in `ROWS`, and nowhere else. Accuracies, densities and differences are 0 .. 1; what is not known is missing
(NA). `each` gives the rows of a frame as named tuples, in which it is None.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from lottery.experiment import controls, grids
from lottery.experiment.graph import DENSE, GOING_ON, TICKET, Ticket
from lottery.experiment.plan import Plan
from lottery.machine import environment
from lottery.pruning import densities, masks
from lottery.rundir import store
from lottery.rundir.lineage import Lineage
from lottery.rundir.names import NetworkFiles, Replicate
from lottery.rundir.records import Result
from lottery.rundir.run import Run
from lottery.rundir.topology import topology_of

EXTENDED = controls.extended.name
KIND = ["variant", "family", "method", "mask", "round", "rewind_step"]  # of a network: what its replicates have in common
FIGURES = ["validation_accuracy", "test_accuracy", "test_accuracy_there", "least_validation_loss_step"]
ROWS = {
    "replicate": "Int64",
    "variant": "string",  # dense, ticket, or a control's name
    "family": "string",
    "method": "string",
    "mask": "string",  # q90, round-03
    "round": "Int64",
    "density": "Float64",  # of the prunable weights
    "density_trainable": "Float64",
    "density_total": "Float64",
    "density_effective": "Float64",
    "exact_zeros": "Int64",
    "collapse": "string",  # a warning
    "rewind": "string",  # as the recipe writes it: 1ep
    "rewind_step": "Int64",
    "status": "string",  # done, diverged, failed, missing, or stale: not of the dense network that is there
    "reason": "string",
    "validation_accuracy": "Float64",
    "against": "string",  # the network that `difference` is from: dense, or extended, given the same extra training
    "difference": "Float64",
    "validation_loss": "Float64",
    "test_accuracy": "Float64",
    "test_loss": "Float64",
    "least_validation_loss_step": "Int64",
    "test_accuracy_there": "Float64",
    "epochs": "Float64",
    "seconds": "Float64",
    "devices": "Int64",
    "made_by": "string",  # versions, kind of device
    "folder": "string",  # inside the run directory
}


def table(rows: Iterable[dict[str, Any]], columns: dict[str, str]) -> pandas.DataFrame:
    """A frame of these columns, each of its type."""
    return pandas.DataFrame(list(rows), columns=list(columns)).astype(columns)


def each(frame: pandas.DataFrame) -> list[Any]:
    """The rows of a frame as named tuples, None where a value is missing."""
    return list(_plain(frame).itertuples(index=False, name="Row"))


def dicts(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as dictionaries, None where a value is missing."""
    return [{str(key): value for key, value in row.items()} for row in _plain(frame).to_dict("records")]


def _plain(frame: pandas.DataFrame) -> pandas.DataFrame:
    return frame.astype(object).where(frame.notna(), None)


def rows(run: Run, tickets: Sequence[Ticket] | None = None) -> pandas.DataFrame:
    """A row for each dense network, for each of `tickets` (those of the run's grids, unless told otherwise), and for others of
    the recipe's families that have a result; dense ones first."""
    planned = run.trained_plan()
    if tickets is None:
        tickets = run.tickets(planned) if planned else []
    found = [row for number in run.known_numbers() for row in _of_replicate(run, planned, number, tickets)]
    place = order(run)
    return table(sorted(found, key=lambda row: (row["variant"] != DENSE, row["replicate"], *place(row))), ROWS)


def order(run: Run) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """A key that sorts rows from dense to sparse within each family, families as the recipe has them, tickets before
    controls."""
    families, variants = [*run.recipe.families], [TICKET, *controls.CONTROLS]

    def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
        family = families.index(row["family"]) if row["family"] else -1
        variant = variants.index(row["variant"]) if row["variant"] in variants else len(variants)
        return family, row["round"], grids.label_number(row["mask"]), row["rewind_step"], variant, row["variant"]

    return place


def rewind_name(planned: Plan | None, step: int) -> str:
    """A rewind point as the recipe writes it (`1ep`), or else in steps."""
    points = grids.parse_points(planned.recipe.train.snapshots) if planned else []
    named = (str(point) for point in points if planned and point.step(planned.steps_per_epoch) == step)
    return next(named, f"{step}it" if step else "0")


def _of_replicate(run: Run, planned: Plan | None, number: int, tickets: Sequence[Ticket]) -> list[dict[str, Any]]:
    replicate = run.replicate(number)
    known = {replicate.dense: _DENSE} | {run.network(one): _facts(run, one) for one in tickets if one.replicate == number}
    others = [network for network in replicate.networks() if network not in known and network.result.exists()]
    known |= {network: {} for network in others if replicate.family_of(network) in run.recipe.families}
    problem = Lineage(replicate).problem
    found = [
        {"replicate": number, **facts, **_row(run, network, problem), "folder": str(network.folder.relative_to(run.folder))}
        for network, facts in known.items()
    ]
    found[0]["density_effective"] = _effective_of_dense(replicate, run)
    for row in found:
        row["rewind"] = rewind_name(planned, row["rewind_step"])
        row["against"] = _against(row)
    return _compared(run, found)


_DENSE = {"variant": DENSE, "family": "", "method": "", "mask": "", "round": 0, "rewind_step": 0}


def _facts(run: Run, ticket: Ticket) -> dict[str, Any]:
    """What is known of a network that has no result, by `KIND`."""
    place = (ticket.variant, ticket.family, run.recipe.families[ticket.family].method)
    return dict(zip(KIND, (*place, ticket.mask.label, ticket.mask.round, ticket.rewind), strict=True))


def _row(run: Run, network: NetworkFiles, problem: Callable[[Path], str | None]) -> dict[str, Any]:
    """What its result says of a network; without figures where that is of another dense network than the one that is there."""
    result = network.read_result()
    if result is None:
        return {"status": "missing"}
    row = _described(result, run.recipe.pruning.collapse)
    stale = problem(network.result) if result.status == "done" else None
    if stale:
        return row | {"status": "stale", "reason": f"{network.result} {stale}"}
    final, least = result.final, result.least_validation_loss
    if final and least:
        row |= {name: getattr(final, name) for name in ("validation_accuracy", "validation_loss", "test_accuracy", "test_loss")}
        row |= {"least_validation_loss_step": least.step, "test_accuracy_there": least.test_accuracy}
    return row


def _described(result: Result, collapse: float) -> dict[str, Any]:
    density = result.kept.density if result.kept else None
    if result.variant == DENSE:
        density = densities.Density(1.0, 1.0, 1.0, None)
    return {
        **{name: getattr(result, name) for name in (*KIND, "status", "exact_zeros", "epochs")},
        "density": density.prunable if density else None,
        "density_trainable": density.trainable if density else None,
        "density_total": density.total if density else None,
        "density_effective": density.effective if density else None,
        "collapse": result.warning(collapse),
        "reason": result.last_reason or None,
        "seconds": result.timing.seconds,
        "devices": result.replicas,
        "made_by": environment.named(result.made_by) if result.made_by else None,
    }


def _effective_of_dense(replicate: Replicate, run: Run) -> float | None:
    """The effective density of a dense network: 1, unless some of its weights only ever meet padding. None where its topology
    is not known, or it has no snapshot."""
    topology, steps = topology_of(replicate), replicate.snapshot_steps()
    if topology is None or not steps:
        return None
    state = store.load_state(replicate.snapshot(steps[-1]), optimizer=False)
    prunable = masks.prunable(state, run.recipe.pruning.scope, run.recipe.pruning.exclude)
    return densities.kept(masks.whole(prunable), state, topology).density.effective


def _against(row: Mapping[str, Any]) -> str | None:
    """What a network is compared with: only what was trained as long."""
    if row["variant"] == DENSE:
        return None
    return EXTENDED if row["method"] in GOING_ON and row["variant"] != EXTENDED else DENSE


def _compared(run: Run, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one replicate, each with the difference from the network that it is held against, where both are done."""
    done = {(row["variant"], row["family"], row["mask"], row["rewind_step"]): row for row in found if row["status"] == "done"}
    for row in done.values():
        baseline = done.get(_baseline(run, row, done))
        if baseline and row["against"]:
            row["difference"] = row["validation_accuracy"] - baseline["validation_accuracy"]
    return found


def _baseline(run: Run, row: Mapping[str, Any], done: Iterable[tuple[str, str, str, int]]) -> tuple[str, str, str, int]:
    """The network that one is held against. A fresh control of one shot serves all rewind points: it is held against what the
    ticket of the earliest is."""
    if row["against"] != EXTENDED:
        return DENSE, "", "", 0
    family, step = run.recipe.families[row["family"]], row["rewind_step"]
    if family.quantiles and row["variant"] in family.fresh_controls:
        step = min((one[3] for one in done if one[:3] == (EXTENDED, row["family"], row["mask"])), default=step)
    return EXTENDED, row["family"], row["mask"], step
