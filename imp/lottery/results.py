"""What a run has found so far, read from its directory: one row a network, and one line a group of replicates."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lottery import cuts, grids, verdicts
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
)


def rows(run: Run) -> list[Row]:
    """A row with the keys `COLUMNS` for each network of the run's grids, and for others that have a result; dense ones first.

    Accuracies are 0 .. 1, `density` is over the prunable weights, `method` is `oneshot` or that of a chain of rounds, `status`
    is `missing` where there is no result yet; values not known are None. `difference` is validation accuracy less that of
    the network `against`: the replicate's dense one, or one given the same extra training, where there is one.
    """
    planned = plan_of(run)
    wanted = _wanted(run, planned) if planned else []
    listed: list[Row] = []
    for number in run.known_numbers():
        replicate = run.replicate(number)
        dense = {"replicate": number, "variant": "dense", "status": "missing", "first_step": 0}
        results = {replicate.dense.folder: dense | (replicate.dense.read_result() or {})}
        results |= {folder: missing for folder, missing in wanted if missing["replicate"] == number}
        results |= {network.folder: found for network in replicate.networks() if (found := network.read_result())}
        listed += _compared([_row(_rewind_names(planned), result) for result in results.values()])
    return sorted(listed, key=lambda row: (row["variant"] != "dense", row["replicate"], *_place(row)))


def _wanted(run: Run, planned: Plan) -> list[tuple[Path, dict[str, Any]]]:
    """The folder of every network of the run's grids, and what is known of one that has no result."""
    found: list[Job | Round] = []
    if "oneshot" in run.recipe.pruning:
        found += run.jobs(planned)
    if "rounds" in run.recipe.pruning:
        found += planned.rounds(run.numbers(), run.recipe.rounds.levels)
    return [(run.network(job).folder, {"status": "missing", **facts(job)}) for job in found]


def facts(job: Job | Round) -> dict[str, Any]:
    """What a result says of where its network stands in the grids."""
    where: dict[str, Any]
    if isinstance(job, Round):
        where = {"quantile": None, "method": job.chain.method, "level": job.level, "rewind_step": job.chain.step}
    else:
        where = {"quantile": float(job.quantile)}
    return {"replicate": job.replicate, "variant": job.variant, **where, "first_step": job.step}


def _place(row: Row) -> tuple[Any, ...]:
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
        "collapse": cuts.warning(result),
        "rewind": names.get(rewind_step, f"{rewind_step}it"),
        "rewind_step": rewind_step,
        "status": result["status"],
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
    }


def _compared(found: list[Row]) -> list[Row]:
    """The rows of one replicate, each with the network that it is held against and the difference."""
    done = {(row["variant"], *_place(row)): row for row in found if row["status"] == "done"}
    dense = next((row for row in done.values() if row["variant"] == "dense"), None)
    for row in found:
        extended = done.get(("extended", *_place(row))) if row["variant"] != "extended" else None
        baseline = extended or dense
        if baseline and row["variant"] != "dense":
            row["against"] = baseline["variant"]
            if row["status"] == "done":
                row["difference"] = row["validation_accuracy"] - baseline["validation_accuracy"]
    return found


def plan_of(run: Run) -> Plan | None:
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


@dataclasses.dataclass(frozen=True)
class Group:
    """All replicates of one (variant, quantile or round, rewind point): means over the `count` of `planned` networks that are
    done. `early_step` is where the validation loss was least, `early_test_accuracy` the test accuracy there.

    The figures are NaN before one is done. `low` and `high` are the one-sided 95 % bounds of the mean difference, infinite
    under two replicates. The verdict is undecided while a network is missing, failed or diverged.
    """

    variant: str
    method: str
    quantile: float | None
    level: int | None
    density: float
    collapse: str | None
    rewind: str
    rewind_step: int
    count: int
    planned: int
    validation_accuracy: float
    spread: float | None
    test_accuracy: float
    early_step: float
    early_test_accuracy: float
    against: str | None
    difference: float
    low: float
    high: float
    verdict: verdicts.Verdict | None

    @property
    def title(self) -> str:
        """What its members are called in sentences and figures."""
        if self.variant == "dense":
            return "dense"
        where = f"quantile {self.quantile:g}" if self.level is None else f"{self.method}, round {self.level}"
        return f"{self.variant}, {where}, rewound to {self.rewind}"


def groups(found: Sequence[Row], delta: float) -> list[Group]:
    """The networks of `rows` by group: dense first, then from dense to sparse."""
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in found:
        place = (row["variant"] != "dense", *_place(row), row["variant"] != "ticket", row["variant"])
        members.setdefault(place, []).append(row)
    return [_group(members[place], delta) for place in sorted(members)]


def _group(members: list[Row], delta: float) -> Group:
    first, finished = members[0], [row for row in members if row["status"] == "done"]
    accuracies = [row["validation_accuracy"] for row in finished]
    differences = [row["difference"] for row in finished if row["difference"] is not None]
    low, high = verdicts.bounds(differences)
    alike = len({row["against"] for row in finished}) < 2  # not some held against the dense network, some against another
    verdict = verdicts.judge(differences, delta) if alike and len(differences) == len(members) else "undecided"
    return Group(
        variant=first["variant"],
        method=first["method"],
        quantile=first["quantile"],
        level=first["level"],
        density=_mean([row["density"] for row in members if row["density"] is not None]),
        collapse=next((row["collapse"] for row in members if row["collapse"]), None),
        rewind=first["rewind"],
        rewind_step=first["rewind_step"],
        count=len(finished),
        planned=len(members),
        validation_accuracy=_mean(accuracies),
        spread=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        test_accuracy=_mean([row["test_accuracy"] for row in finished]),
        early_step=_mean([row["least_validation_loss_step"] for row in finished]),
        early_test_accuracy=_mean([row["test_accuracy_there"] for row in finished]),
        against=first["against"],
        difference=_mean(differences),
        low=low,
        high=high,
        verdict=None if first["variant"] == "dense" else verdict,
    )


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def series(found: Sequence[Group]) -> dict[tuple[str, str], list[Group]]:
    """The tickets by (method, rewind point), each from dense to sparse."""
    lines: dict[tuple[str, str], list[Group]] = {}
    for group in found:
        if group.variant == "ticket":
            lines.setdefault((group.method, group.rewind), []).append(group)
    return lines


def sparsest_matching(tickets: Sequence[Group]) -> Group | None:
    """Of the tickets of one series: the sparsest that matches, all denser ones matching too; None where none does."""
    best = None
    for group in tickets:
        if group.verdict != "matching":
            break
        best = group
    return best


def undecided(found: Sequence[Group]) -> list[Group]:
    """The one-shot tickets that more replicates could decide: none of theirs is missing or failed."""
    tickets = [group for group in found if group.variant == "ticket" and group.method == "oneshot"]
    return [group for group in tickets if group.verdict == "undecided" and group.count == group.planned]
