"""The command that searches for hyperparameters: sweep."""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.commands.options import JsonOption, RecordsOption, RunOptions, opened, print_json, reporter
from lottery.results.tables import percent, print_table

if TYPE_CHECKING:
    from lottery.rundir.run import Run

SHOWN = 10  # trials in the terminal; trials.csv has them all


@dataclasses.dataclass
class ObjectiveOptions(RunOptions):
    """As `RunOptions`, of a search."""

    objective: Annotated[
        str | None,
        typer.Option(metavar="dense|ticket:MASK", help="What judges a trial, such as ticket:q90; default: sweep.objective."),
    ] = None

    def open(self, **others: Any) -> "Run":
        judged = [f"sweep.objective={self.objective}"] if self.objective else []
        return opened(self.run, self.recipe, [*(self.set_ or ()), *judged], **others)


@dataclasses.dataclass
class SpaceOptions(ObjectiveOptions):
    """As `ObjectiveOptions`, of a command that begins with its recipe."""

    recipe: Annotated[
        Path | None, typer.Argument(help="Recipe, whose table `sweep` says what to search; else the run's own.")
    ] = None


def sweep(
    run: SpaceOptions,
    records: RecordsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search for hyperparameters; any number of these commands share a search, also under mpirun."""
    from lottery.executors.launcher import launched_rank
    from lottery.sweep import worker

    target = run.open(records=records)
    outcome = worker.sweep(target, reporter())
    if launched_rank():
        return
    if as_json:
        print_json(outcome)
    else:
        _show(outcome, target)


def _show(outcome: dict[str, Any], target: "Run") -> None:
    from lottery.base.progress import count_of, duration
    from lottery.sweep.values import text

    metric = target.metric
    ranked = sorted(outcome["trials"], key=lambda row: (row["status"] != "complete", -(row[metric] or 0), row["number"]))
    cells = [
        (
            str(row["number"]),
            f"{row['status']}{row['reason'] and ': '}{row['reason']}",
            percent(row[metric]),
            "" if row["epochs"] is None else f"{row['epochs']:g}",
            "" if row["seconds"] is None else duration(row["seconds"]),
            *(text(row["values"].get(key, "")) for key in outcome["keys"]),
        )
        for row in ranked[:SHOWN]
    ]
    title = f"{target.sweep}, judged by {target.recipe.sweep.objective}"
    print_table(title, ("trial", "status", "validation", "epochs", "time", *outcome["keys"]), cells)
    if len(ranked) > SHOWN:
        print(f"and {len(ranked) - SHOWN} more in {target.sweep / 'trials.csv'}")
    cost, count = outcome["cost"], count_of(len(ranked), "trial")
    as_many = f"{cost['epochs']:.1f} epochs, as many as {cost['dense_trainings']:.1f} dense trainings"
    print(f"{count} took {as_many}, in {duration(cost['seconds'])}")
    for key, share in outcome["importances"].items():
        print(f"{key} explains {share:.0%} of the differences")
    if outcome["best"]:
        best, others = str(target.sweep / "best.toml"), ["--set", f"seed={target.recipe.seed + 1}"]
        others += ["--run", f"runs/{target.recipe.name}-best"]
        options = shlex.join(["--recipe", best, *others])
        first = "" if target.known_training_examples() else f"imp prepare {options} && "  # after a search on fewer classes
        is_dense = not target.recipe.sweep.objective.label
        line = f"{first}imp train {options}" if is_dense else shlex.join(["imp", "run", best, *others])
        print(f"To train the best values with another seed: {line}")
