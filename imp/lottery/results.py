"""What a run has found so far, read from its directory: one row a network, and one line a group of replicates."""

import dataclasses
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
    """A row with the keys `COLUMNS` for each network that has a result, dense ones first; accuracies are 0 .. 1.

    `density` is over the prunable weights; `difference` is validation accuracy less that of the replicate's dense network;
    missing values are None.
    """
    found, names = [], _rewind_names(run)
    for number, replicate in enumerate(run.replicates(), 1):
        dense = replicate.dense.read_result()
        if dense is None:
            continue
        found.append(_row(names, number, "dense", dense, None))
        baseline = found[-1]["validation_accuracy"]
        for path in sorted(replicate.folder.glob("retrain/*/*/result.json")):
            result = files.read_json(path)
            found.append(_row(names, number, result["variant"], result, baseline))
    return sorted(
        found, key=lambda row: (row["variant"] != "dense", row["replicate"], row["quantile"] or 0, row["rewind_step"])
    )


def _row(names: dict[int, str], replicate: int, variant: str, result: dict[str, Any], baseline: float | None) -> Row:
    final, least = result.get("final", {}), result.get("least_validation_loss", {})
    density = result.get("density", dict.fromkeys(("prunable", "trainable", "total"), 1.0 if variant == "dense" else None))
    accuracy = final.get("validation_accuracy")
    return {
        "replicate": replicate,
        "variant": variant,
        "quantile": result.get("quantile"),
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
        "epochs": result["epochs"],
        "seconds": result["timing"].get("seconds"),
    }


def plan_of(run: Run) -> Plan | None:
    """The plan as the dense training carried it out, without the records; None before there is one."""
    for replicate in run.replicates():
        dense = replicate.dense.read_result()
        if dense and dense["status"] == "done":
            return Plan(run.recipe, dense["step"] // dense["epochs"])
    return None


def _rewind_names(run: Run) -> dict[int, str]:
    """Rewind points by step, as the recipe writes them (`1ep`)."""
    planned = plan_of(run)
    points = grids.parse_points(run.recipe.train.snapshots) if planned else []
    return {point.step(planned.steps_per_epoch): str(point) for point in points if planned}


@dataclasses.dataclass(frozen=True)
class Group:
    """All replicates of one (variant, density, rewind point): means over `count` finished networks, and the verdict.

    `low` and `high` are the one-sided 95 % bounds of the mean difference, infinite under two replicates.
    """

    variant: str
    quantile: float | None
    density: float
    rewind: str
    rewind_step: int
    count: int
    validation_accuracy: float
    spread: float | None
    test_accuracy: float
    difference: float
    low: float
    high: float
    verdict: verdicts.Verdict | None


def groups(found: Sequence[Row], delta: float) -> list[Group]:
    """The finished networks of `rows` by group: dense first, then from dense to sparse."""
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in found:
        if row["status"] == "done":
            members.setdefault((row["variant"], row["quantile"], row["rewind_step"]), []).append(row)
    return sorted((_group(together, delta) for together in members.values()), key=_position)


def _position(group: Group) -> tuple[Any, ...]:
    return (group.variant != "dense", -group.density, group.rewind_step, group.variant != "ticket")


def _group(members: list[Row], delta: float) -> Group:
    first, differences = members[0], [row["difference"] for row in members if row["difference"] is not None]
    accuracies = [row["validation_accuracy"] for row in members]
    low, high = verdicts.bounds(differences)
    return Group(
        variant=first["variant"],
        quantile=first["quantile"],
        density=statistics.fmean(row["density"] for row in members),
        rewind=first["rewind"],
        rewind_step=first["rewind_step"],
        count=len(members),
        validation_accuracy=statistics.fmean(accuracies),
        spread=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        test_accuracy=statistics.fmean(row["test_accuracy"] for row in members),
        difference=statistics.fmean(differences) if differences else 0.0,
        low=low,
        high=high,
        verdict=None if first["variant"] == "dense" else verdicts.judge(differences, delta),
    )


def sparsest_matching(found: Sequence[Group]) -> dict[str, Group | None]:
    """For each rewind point of the tickets: the sparsest that matches, all denser ones matching too; None where none does."""
    best: dict[str, Group | None] = {}
    for rewind in dict.fromkeys(group.rewind for group in found if group.variant == "ticket"):
        best[rewind] = None
        tickets = [group for group in found if group.variant == "ticket" and group.rewind == rewind]
        for group in sorted(tickets, key=lambda group: -group.density):
            if group.verdict != "matching":
                break
            best[rewind] = group
    return best
