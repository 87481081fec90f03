"""What a run has found so far, read from its directory: one row a network, and one line a group of replicates."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

from data_prep import files
from lottery import grids, verdicts
from lottery.plan import Plan
from lottery.run import Run

Row = dict[str, Any]

COLUMNS = (
    "replicate",
    "variant",
    "quantile",
    "density",
    "density_trainable",
    "density_total",
    "rewind",
    "rewind_step",
    "status",
    "validation_accuracy",
    "difference",
    "validation_loss",
    "test_accuracy",
    "test_loss",
    "least_validation_loss_step",
    "test_accuracy_there",
    "epochs",
    "seconds",
)


def rows(run: Run) -> list[Row]:
    """A row with the keys `COLUMNS` for each network of the run's grids, and for others that have a result; dense ones first.

    Accuracies are 0 .. 1, `density` is over the prunable weights, `difference` is validation accuracy less that of the
    replicate's dense network, `status` is `missing` where there is no result yet; values not known are None.
    """
    planned = plan_of(run)
    names = _rewind_names(planned)
    jobs = run.jobs(planned) if planned else []
    found = []
    for number, replicate in enumerate(run.replicates(), 1):
        dense = _row(names, _missing(number, "dense", None, 0) | (replicate.dense.read_result() or {}), None)
        found.append(dense)
        results = {path.parent: files.read_json(path) for path in sorted(replicate.folder.glob("retrain/*/*/result.json"))}
        for job in jobs:
            if job.replicate == number:
                missing = _missing(number, job.variant, float(job.quantile), job.step)
                results.setdefault(replicate.network(job).folder, missing)
        found += [_row(names, result, dense["validation_accuracy"]) for result in results.values()]
    return sorted(
        found, key=lambda row: (row["variant"] != "dense", row["replicate"], row["quantile"] or 0, row["rewind_step"])
    )


def _missing(replicate: int, variant: str, quantile: float | None, step: int) -> dict[str, Any]:
    return {"status": "missing", "replicate": replicate, "variant": variant, "quantile": quantile, "first_step": step}


def _row(names: dict[int, str], result: dict[str, Any], baseline: float | None) -> Row:
    final, least = result.get("final", {}), result.get("least_validation_loss", {})
    density = result.get("density") or dict.fromkeys(
        ("prunable", "trainable", "total"), 1.0 if result["variant"] == "dense" else None
    )
    accuracy = final.get("validation_accuracy")
    return {
        "replicate": result["replicate"],
        "variant": result["variant"],
        "quantile": result["quantile"],
        "density": density["prunable"],
        "density_trainable": density["trainable"],
        "density_total": density["total"],
        "rewind": names.get(result["first_step"], f"{result['first_step']}it"),
        "rewind_step": result["first_step"],
        "status": result["status"],
        "validation_accuracy": accuracy,
        "difference": None if accuracy is None or baseline is None else accuracy - baseline,
        "validation_loss": final.get("validation_loss"),
        "test_accuracy": final.get("test_accuracy"),
        "test_loss": final.get("test_loss"),
        "least_validation_loss_step": least.get("step"),
        "test_accuracy_there": least.get("test_accuracy"),
        "epochs": result.get("epochs"),
        "seconds": result.get("timing", {}).get("seconds"),
    }


def plan_of(run: Run) -> Plan | None:
    """The plan as the dense training carried it out, without the records; None before there is one."""
    for replicate in run.replicates():
        dense = replicate.dense.read_result()
        if dense and dense["status"] == "done":
            return Plan(run.recipe, dense["step"] // dense["epochs"])
    return None


def _rewind_names(planned: Plan | None) -> dict[int, str]:
    """Rewind points by step, as the recipe writes them (`1ep`)."""
    if planned is None:
        return {}
    points = grids.parse_points(planned.recipe.train.snapshots)
    return {point.step(planned.steps_per_epoch): str(point) for point in points}


@dataclasses.dataclass(frozen=True)
class Group:
    """All replicates of one (variant, quantile, rewind point): means over the `count` of `planned` networks that are done.

    The figures are NaN before one is done. `low` and `high` are the one-sided 95 % bounds of the mean difference, infinite
    under two replicates. The verdict is undecided while a network is missing, failed or diverged.
    """

    variant: str
    quantile: float | None
    density: float
    rewind: str
    rewind_step: int
    count: int
    planned: int
    validation_accuracy: float
    spread: float | None
    test_accuracy: float
    difference: float
    low: float
    high: float
    verdict: verdicts.Verdict | None


def groups(found: Sequence[Row], delta: float) -> list[Group]:
    """The networks of `rows` by group: dense first, then from dense to sparse."""
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in found:
        members.setdefault((row["variant"], row["quantile"], row["rewind_step"]), []).append(row)
    return sorted((_group(together, delta) for together in members.values()), key=_position)


def _position(group: Group) -> tuple[Any, ...]:
    return (group.variant != "dense", group.quantile or 0, group.rewind_step, group.variant != "ticket")


def _group(members: list[Row], delta: float) -> Group:
    first, finished = members[0], [row for row in members if row["status"] == "done"]
    accuracies = [row["validation_accuracy"] for row in finished]
    differences = [row["difference"] for row in finished if row["difference"] is not None]
    low, high = verdicts.bounds(differences)
    verdict = verdicts.judge(differences, delta) if len(differences) == len(members) else "undecided"
    return Group(
        variant=first["variant"],
        quantile=first["quantile"],
        density=_mean([row["density"] for row in members if row["density"] is not None]),
        rewind=first["rewind"],
        rewind_step=first["rewind_step"],
        count=len(finished),
        planned=len(members),
        validation_accuracy=_mean(accuracies),
        spread=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        test_accuracy=_mean([row["test_accuracy"] for row in finished]),
        difference=_mean(differences),
        low=low,
        high=high,
        verdict=None if first["variant"] == "dense" else verdict,
    )


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def sparsest_matching(found: Sequence[Group]) -> dict[str, Group | None]:
    """For each rewind point of the tickets: the sparsest that matches, all denser ones matching too; None where none does."""
    best: dict[str, Group | None] = {}
    for rewind in dict.fromkeys(group.rewind for group in found if group.variant == "ticket"):
        best[rewind] = None
        tickets = [group for group in found if group.variant == "ticket" and group.rewind == rewind]
        for group in sorted(tickets, key=lambda group: group.quantile or 0):
            if group.verdict != "matching":
                break
            best[rewind] = group
    return best
