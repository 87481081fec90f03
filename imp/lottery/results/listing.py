"""What a run has found so far, read from its directory: one row a network."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from lottery import densities, environment, grids, jobs
from lottery.jobs import GOING_ON, AnyJob, Variant
from lottery.lineage import Lineage
from lottery.plan import Plan
from lottery.run import Network, Run

Row = dict[str, Any]
ORDER = ("dense", *get_args(Variant))

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
    "made_by",
    "folder",
)


def rows(run: Run, more: Sequence[AnyJob] = ()) -> list[Row]:
    """A row with the keys `COLUMNS` for each network of the run's grids and of `more`, and for others that have a result; dense
    ones first.

    Accuracies are 0 .. 1, `density` is over the prunable weights, `method` is `oneshot` or that of a chain of rounds, `status`
    is `missing` where there is no result yet, and `stale` where it is not of the dense network that is there (the `reason` says
    why), `made_by` says by which versions and on what kind of device it was trained, `folder` is inside the run directory;
    values not known are None. `difference` is validation accuracy less that of the network `against`: the replicate's dense
    one, or in rounds that train on (`lr`, `finetune`) its `extended`, the dense one given the same extra training.
    """
    planned = run.trained_plan()
    wanted = _wanted(run, planned, more) if planned else []
    listed: list[Row] = []
    for number in run.known_numbers():
        replicate = run.replicate(number)
        dense = {"replicate": number, "variant": "dense", "status": "missing", "first_step": 0}
        results = {replicate.dense.folder: dense | (replicate.dense.read_result() or {})}
        results |= {folder: missing for folder, missing in wanted if missing["replicate"] == number}
        results |= {network.folder: found for network in replicate.networks() if (found := network.read_result())}
        lineage = Lineage(replicate)
        results = {folder: _held(result, lineage.problem, Network(folder)) for folder, result in results.items()}
        names = _rewind_names(planned)
        folders = {folder: str(folder.relative_to(run.folder)) for folder in results}
        dense_row, *others = [_row(names, result) | {"folder": folders[folder]} for folder, result in results.items()]
        dense_row["density_effective"] = densities.effective_of_dense(replicate, run.recipe)
        listed += _compared([dense_row, *others])
    return sorted(
        listed, key=lambda row: (row["variant"] != "dense", row["replicate"], *place(row), ORDER.index(row["variant"]))
    )


def _held(result: dict[str, Any], problem: Callable[[Path], str | None], network: Network) -> dict[str, Any]:
    """`result`; where it was made from something else than its replicate's dense network, without figures and `stale`."""
    found = problem(network.result) if result["status"] == "done" else None
    if not found:
        return result
    return {**result, "status": "stale", "reason": f"{network.result} {found}", "final": {}, "least_validation_loss": {}}


def _wanted(run: Run, planned: Plan, more: Sequence[AnyJob]) -> list[tuple[Path, dict[str, Any]]]:
    """The folder of every network of the run's grids and of `more`, and what is known of one that has no result."""
    found = [*more]
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
        ("prunable", "trainable", "total"), 1.0 if result["variant"] == "dense" else None
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
        "against": _against(result),
        "difference": None,
        "validation_loss": final.get("validation_loss"),
        "test_accuracy": final.get("test_accuracy"),
        "test_loss": final.get("test_loss"),
        "least_validation_loss_step": least.get("step"),
        "test_accuracy_there": least.get("test_accuracy"),
        "epochs": result.get("epochs"),
        "seconds": result.get("timing", {}).get("seconds"),
        "devices": result.get("replicas"),
        "made_by": environment.named(result["made_by"]) if "made_by" in result else None,
    }


def _last_line(reason: str | None) -> str | None:
    """What a traceback ends with."""
    return reason.strip().splitlines()[-1] if reason and reason.strip() else None


def _against(result: dict[str, Any]) -> str | None:
    """What a network is compared with: only what was trained as long."""
    if result["variant"] == "dense":
        return None
    return "extended" if result.get("method") in GOING_ON and result["variant"] != "extended" else "dense"


def _compared(found: list[Row]) -> list[Row]:
    """The rows of one replicate, each with the difference from the network that it is held against, where both are done."""
    done = [row for row in found if row["status"] == "done"]
    dense = next((row for row in done if row["variant"] == "dense"), None)
    extended = {place(row): row for row in done if row["variant"] == "extended"}
    for row in done:
        baseline = extended.get(place(row)) if row["against"] == "extended" else dense
        if baseline and row["against"]:
            row["difference"] = row["validation_accuracy"] - baseline["validation_accuracy"]
    return found


def validation_images(run: Run) -> int | None:
    """How many images verdicts go by, as far as a dense training has noted it."""
    results = [replicate.dense.read_result() or {} for replicate in run.replicates()]
    return next((result["validation_images"] for result in results if "validation_images" in result), None)


def _rewind_names(planned: Plan | None) -> dict[int, str]:
    """Rewind points by step, as the recipe writes them (`1ep`)."""
    if planned is None:
        return {}
    points = grids.parse_points(planned.recipe.train.snapshots)
    return {point.step(planned.steps_per_epoch): str(point) for point in points}
