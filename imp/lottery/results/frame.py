"""What a run has found so far as a tidy frame: a row a network. `grouping` makes its own of it.

Columns are named in `ROWS`, and nowhere else. `validation`, `test` and `test_there` have the metric that decides; for others to
read, `named` calls them by its name. Metrics, densities and differences are 0 .. 1; what is not known is missing (NA). `each`
gives the rows of a frame as named tuples, in which it is None.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas

from lottery.base import environment
from lottery.base.errors import InputError
from lottery.experiment import controls, grids
from lottery.experiment.graph import DENSE, LONGER, TICKET, Ticket
from lottery.experiment.grids import Point
from lottery.experiment.plan import Plan
from lottery.pruning import densities, masks
from lottery.pruning.costs import BYTES
from lottery.rundir import store
from lottery.rundir.lineage import Lineage
from lottery.rundir.names import NetworkFiles, Replicate
from lottery.rundir.predictions import Predictions
from lottery.rundir.run import Run

EXTENDED = controls.extended.name
KIND = ["variant", "family", "method", "mask", "round", "rewind_step"]  # of a network: what its replicates have in common
DECIDING = ("validation", "test")
FIGURES = [*DECIDING, "test_there", "least_validation_loss_step"]
ANSWERS = ["agreement", "worst_class_accuracy", "calibration_error"]
COSTS = ("macs", "speedup", *BYTES)
TRAINED = ("training_macs", "finding_macs")
SPENT = ("training_cost", "finding_cost")
ROWS = {
    "replicate": "Int64",
    "variant": "string",  # dense, ticket, or a control's name
    "family": "string",
    "criterion": "string",  # this and the next three: of its family
    "allocation": "string",
    "units": "string",
    "updates": "string",
    "method": "string",
    "mask": "string",  # q90, round-03
    "round": "Int64",
    "density": "Float64",  # of the prunable weights
    "density_trainable": "Float64",
    "density_total": "Float64",
    "density_effective": "Float64",
    "exact_zeros": "Int64",
    "macs": "Int64",  # multiply-accumulates for one example, and how many times fewer than those of the dense network
    "speedup": "Float64",
    **dict.fromkeys(BYTES, "Int64"),
    "training_macs": "Float64",  # of its training, and of all that had to be trained and scored before; more than Int64 holds
    "finding_macs": "Float64",
    "training_cost": "Float64",  # the same in epochs of the dense network
    "finding_cost": "Float64",
    "collapse": "string",  # a warning
    "rewind": "string",  # as the recipe writes it: 1ep
    "rewind_step": "Int64",
    "status": "string",  # done, diverged, failed, missing, or stale: not of the dense network that is there
    "reason": "string",
    "validation": "Float64",
    "against": "string",  # the network that `difference` is from: dense, or extended, given the same extra training
    "difference": "Float64",
    "against_folder": "string",
    "validation_loss": "Float64",
    "test": "Float64",
    "test_loss": "Float64",
    "agreement": "Float64",  # the share of test images that get the answer of the replicate's dense network
    "worst_class_accuracy": "Float64",  # on test images
    "calibration_error": "Float64",  # expected, with 15 bins, on test images
    "least_validation_loss_step": "Int64",
    "test_there": "Float64",  # at the step of least validation loss
    "epochs": "Float64",
    "seconds": "Float64",
    "devices": "Int64",
    "made_by": "string",  # versions, kind of device
    "folder": "string",  # inside the run directory
}


def table(rows: Iterable[dict[str, Any]], columns: dict[str, str]) -> pandas.DataFrame:
    """A frame of these columns, each of its type."""
    return pandas.DataFrame(list(rows), columns=list(columns), dtype=object).astype(columns)


def each(frame: pandas.DataFrame) -> list[Any]:
    """The rows of a frame as named tuples, None where a value is missing."""
    return list(frame.astype(object).where(frame.notna(), None).itertuples(index=False, name="Row"))


def dicts(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as dictionaries, None where a value is missing."""
    return [row._asdict() for row in each(frame)]


def named(frame: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """A frame of rows, groups or contrasts for others to read, in which the figures of the deciding `metric` have its name:
    `validation_accuracy`, `test_rouge1_there`."""
    names = {split: f"{split}_{metric}" for split in DECIDING} | {"test_there": f"test_{metric}_there"}
    renamed = frame.rename(columns=names)
    return renamed.replace({"figure": names}) if "figure" in frame else renamed


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
        mask = grids.of_label(row["mask"]) if row["mask"] else 0
        return family, row["round"], mask, row["rewind_step"], variant, row["variant"]

    return place


def rewind_name(planned: Plan | None, step: int) -> str:
    """A rewind point as the recipe writes it (`1ep`), or else in steps."""
    return str(planned.point_at(step) if planned else Point(Fraction(step), "it"))


def _of_replicate(run: Run, planned: Plan | None, number: int, tickets: Sequence[Ticket]) -> list[dict[str, Any]]:
    replicate, families, metric = run.replicate(number), run.recipe.families, run.metric
    known: dict[NetworkFiles, tuple[Any, ...]] = {replicate.dense: (DENSE, "", "", "", 0, 0)}  # by KIND
    for one in (one for one in tickets if one.replicate == number):
        place = (one.variant, one.family, families[one.family].method, one.mask.label, one.mask.round, one.rewind)
        known[run.network(one)] = place
    for network in replicate.networks():
        if network not in known and network.result.exists() and replicate.family_of(network) in families:
            known[network] = ()  # its result says so
    held, found = Lineage(replicate), list[dict[str, Any]]()
    for network, place in known.items():
        row: dict[str, Any] = dict(zip(KIND, place, strict=False)) | _row(run, network, held.problem, metric)
        going_on = row["method"] in LONGER and row["variant"] != EXTENDED
        row["against"] = None if row["variant"] == DENSE else EXTENDED if going_on else DENSE  # what was trained as long
        row["rewind"] = rewind_name(planned, row["rewind_step"])
        if family := families.get(row["family"]):
            row |= {"criterion": family.chosen_by, "units": family.units.text}
            row |= {"allocation": family.allocation, "updates": family.updates}
        found.append({**row, "replicate": number, "folder": str(network.folder.relative_to(run.folder))})
    found[0]["density_effective"] = _effective_of_dense(replicate, run)
    epoch = found[0]["training_macs"] / found[0]["epochs"] if found[0].get("training_macs") else None
    for row in found if epoch else ():
        row |= {cost: row[macs] / epoch for macs, cost in zip(TRAINED, SPENT, strict=True) if row.get(macs) is not None}
    done = {(row["variant"], row["family"], row["mask"], row["rewind_step"]): row for row in found if row["status"] == "done"}
    dense = held.predictions(replicate.dense) if found[0]["status"] == "done" else {}
    for row in done.values():
        baseline = done.get(_baseline(run, row, done))
        if baseline and row["against"]:
            row["difference"] = row["validation"] - baseline["validation"]
            row["against_folder"] = baseline["folder"]
        row |= _answers(held, run.network_in(row["folder"]), dense)
    return found


def _row(run: Run, network: NetworkFiles, problem: Callable[[Path], str | None], metric: str) -> dict[str, Any]:
    """What its result says of a network; without figures where that is of another dense network than the one that is there.
    Raises InputError where another metric than the run's decides."""
    result = network.read_result()
    if result is None:
        return {"status": "missing"}
    density = result.kept.density if result.kept else None
    if result.variant == DENSE:
        density = densities.Density(1.0, 1.0, 1.0, None)
    row: dict[str, Any] = {
        **{name: getattr(result, name) for name in (*KIND, "status", "exact_zeros", "epochs")},
        "density": density and density.prunable,
        "density_trainable": density and density.trainable,
        "density_total": density and density.total,
        "density_effective": density and density.effective,
        **({name: getattr(result.costs, name) for name in COSTS} if result.costs else {}),
        **{name: getattr(result, name) for name in TRAINED},
        "collapse": result.warning(run.recipe.pruning.collapse),
        "reason": result.last_reason or None,
        "seconds": result.timing.seconds,
        "devices": result.replicas,
        "made_by": environment.named(result.made_by) if result.made_by else None,
    }
    stale = problem(network.result) if result.status == "done" else None
    if stale:
        return row | {"status": "stale", "reason": f"{network.result} {stale}"}
    final, least = result.final, result.least_validation_loss
    if final and least:
        if result.metric != metric:
            raise InputError(f"{network.result} is decided by {result.metric}, but this run by {metric}: start a new run")
        row |= {split: final.metric(split, result.metric) for split in DECIDING}
        row |= {"validation_loss": final.validation_loss, "test_loss": final.test_loss}
        row |= {"least_validation_loss_step": least.step, "test_there": least.metric("test", result.metric)}
    return row


def _answers(held: Lineage, network: NetworkFiles, dense: Mapping[str, Predictions]) -> dict[str, float]:
    """What the predictions of a network say of its answers to test images. Raises InputError where they are of other images
    than those of the dense network."""
    own = held.predictions(network)
    if not own:
        return {}
    if dense and any(len(own[split].right) != len(dense[split].right) for split in own):
        raise InputError(
            f"{network.predictions} is about other images than the dense network's: remove {network.result} and run its stage "
            "again"
        )
    test = own["test"]
    agreement = {"agreement": test.agreement(dense["test"])} if dense else {}
    return agreement | {name: getattr(test, name) for name in ("worst_class_accuracy", "calibration_error")}


def _effective_of_dense(replicate: Replicate, run: Run) -> float | None:
    """The effective density of a dense network: 1, unless some of its weights only ever meet padding. None where its topology
    is not known, or it has no snapshot."""
    topology, steps = replicate.read_topology(), replicate.snapshot_steps()
    if topology is None or not steps:
        return None
    state = store.load_state(replicate.snapshot(steps[-1]), optimizer=False)
    return densities.kept(masks.whole(run.recipe.pruning.prunable(state)), state, topology).density.effective


def _baseline(run: Run, row: Mapping[str, Any], done: Iterable[tuple[str, str, str, int]]) -> tuple[str, str, str, int]:
    """The network that one is compared with. A fresh control of one shot serves all rewind points: it is compared with what the
    ticket of the earliest is."""
    if row["against"] != EXTENDED:
        return DENSE, "", "", 0
    family, step = run.recipe.families[row["family"]], row["rewind_step"]
    if row["variant"] in family.shared_controls:
        step = min((one[3] for one in done if one[:3] == (EXTENDED, row["family"], row["mask"])), default=step)
    return EXTENDED, row["family"], row["mask"], step
