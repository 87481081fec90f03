"""What a run has found so far, read from its directory: one row a network."""

from pathlib import Path
from typing import Any

from lottery import densities, grids, jobs
from lottery.jobs import Job, Round
from lottery.plan import Plan
from lottery.run import Run

Row = dict[str, Any]

COLUMNS = (
    "replicate",
    "variant",
    "method",
    "quantile",
    "level",
    "density",
    "density_trainable",
    "density_total",
    "density_effective",
    "exact_zeros",
    "collapse",
    "rewind",
    "rewind_step",
    "status",
    "reason",
    "validation_accuracy",
    "against",
    "difference",
    "validation_loss",
    "test_accuracy",
    "test_loss",
    "least_validation_loss_step",
    "test_accuracy_there",
    "epochs",
    "seconds",
    "devices",
    "folder",
)


def rows(run: Run) -> list[Row]:
    """A row with the keys `COLUMNS` for each network of the run's grids, and for others that have a result; dense ones first.

    Accuracies are 0 .. 1, `density` is over the prunable weights, `method` is `oneshot` or that of a chain of rounds, `status`
    is `missing` where there is no result yet, `folder` is inside the run directory; values not known are None. `difference` is
    validation accuracy less that of the network `against`: the replicate's dense one, or one given the same extra training,
    where there is one.
    """
    planned = trained_plan(run)
    wanted = _wanted(run, planned) if planned else []
    listed: list[Row] = []
    for number in run.known_numbers():
        replicate = run.replicate(number)
        dense = {"replicate": number, "variant": "dense", "status": "missing", "first_step": 0}
        results = {replicate.dense.folder: dense | (replicate.dense.read_result() or {})}
        results |= {folder: missing for folder, missing in wanted if missing["replicate"] == number}
        results |= {network.folder: found for network in replicate.networks() if (found := network.read_result())}
        names = _rewind_names(planned)
        folders = {folder: str(folder.relative_to(run.folder)) for folder in results}
        listed += _compared([_row(names, result) | {"folder": folders[folder]} for folder, result in results.items()])
    return sorted(listed, key=lambda row: (row["variant"] != "dense", row["replicate"], *place(row)))


def _wanted(run: Run, planned: Plan) -> list[tuple[Path, dict[str, Any]]]:
    """The folder of every network of the run's grids, and what is known of one that has no result."""
    found: list[Job | Round] = []
    if "oneshot" in run.recipe.pruning:
        found += run.jobs(planned)
    if "rounds" in run.recipe.pruning:
        found += planned.rounds(run.numbers(), run.recipe.rounds.levels)
    return [(run.network(job).folder, {"status": "missing", **jobs.facts(job)}) for job in found]


def place(row: Row) -> tuple[Any, ...]:
    """Where a row stands among others: one-shot before rounds, dense before sparse."""
    return (row["method"] != "oneshot", row["method"], row["quantile"] or 0, row["level"] or 0, row["rewind_step"])


def _row(names: dict[int, str], result: dict[str, Any]) -> Row:
    final, least = result.get("final", {}), result.get("least_validation_loss", {})
    density = result.get("density") or dict.fromkeys(
        ("prunable", "trainable", "total", "effective"), 1.0 if result["variant"] == "dense" else None
    )
    rewind_step = result.get("rewind_step", result["first_step"])
    return {
        "replicate": result["replicate"],
        "variant": result["variant"],
        "method": result.get("method", "oneshot"),
        "quantile": result.get("quantile"),
        "level": result.get("level"),
        "density": density["prunable"],
        "density_trainable": density["trainable"],
        "density_total": density["total"],
        "density_effective": density.get("effective"),
        "exact_zeros": result.get("exact_zeros"),
        "collapse": densities.warning(result),
        "rewind": names.get(rewind_step, f"{rewind_step}it"),
        "rewind_step": rewind_step,
        "status": result["status"],
        "reason": _last_line(result.get("reason")),
        "validation_accuracy": final.get("validation_accuracy"),
        "against": None,
        "difference": None,
        "validation_loss": final.get("validation_loss"),
        "test_accuracy": final.get("test_accuracy"),
        "test_loss": final.get("test_loss"),
        "least_validation_loss_step": least.get("step"),
        "test_accuracy_there": least.get("test_accuracy"),
        "epochs": result.get("epochs"),
        "seconds": result.get("timing", {}).get("seconds"),
        "devices": result.get("replicas"),
    }


def _last_line(reason: str | None) -> str | None:
    """What a traceback ends with."""
    return reason.strip().splitlines()[-1] if reason and reason.strip() else None


def _compared(found: list[Row]) -> list[Row]:
    """The rows of one replicate, each with the network that it is held against and the difference."""
    done = {(row["variant"], *place(row)): row for row in found if row["status"] == "done"}
    dense = next((row for row in done.values() if row["variant"] == "dense"), None)
    for row in found:
        extended = done.get(("extended", *place(row))) if row["variant"] != "extended" else None
        baseline = extended or dense
        if baseline and row["variant"] != "dense":
            row["against"] = baseline["variant"]
            if row["status"] == "done":
                row["difference"] = row["validation_accuracy"] - baseline["validation_accuracy"]
    return found


def trained_plan(run: Run) -> Plan | None:
    """The plan as the dense training carried it out, without the records; None before there is one."""
    for replicate in run.replicates():
        dense = replicate.dense.read_result()
        if dense and dense["status"] == "done":
            return Plan(run.recipe, round(dense["step"] / dense["epochs"]))
    return None


def _rewind_names(planned: Plan | None) -> dict[int, str]:
    """Rewind points by step, as the recipe writes them (`1ep`)."""
    if planned is None:
        return {}
    points = grids.parse_points(planned.recipe.train.snapshots)
    return {point.step(planned.steps_per_epoch): str(point) for point in points}
