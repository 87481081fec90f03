"""The command that searches for hyperparameters: sweep."""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.commands.options import JsonOption, RecipeOptions, RecordsOption, print_json, reporter
from lottery.results.tables import percent, print_table

if TYPE_CHECKING:
    from lottery.rundir.run import Run

SHOWN = 10  # trials in the terminal; trials.csv has them all


@dataclasses.dataclass
class SpaceOptions(RecipeOptions):
    """As `RecipeOptions`, of a recipe with a space to search."""

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
    from lottery.base.progress import duration
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
    print_table(str(target.sweep), ("trial", "status", "validation", "epochs", "time", *outcome["keys"]), cells)
    if len(ranked) > SHOWN:
        print(f"and {len(ranked) - SHOWN} more in {target.sweep / 'trials.csv'}")
    for key, share in outcome["importances"].items():
        print(f"{key} explains {share:.0%} of the differences")
    if outcome["best"]:
        words = ["--recipe", str(target.sweep / "best.toml"), "--set", f"seed={target.recipe.seed + 1}"]
        options = shlex.join([*words, "--run", f"runs/{target.recipe.name}-best"])
        first = "" if target.known_training_examples() else f"imp prepare {options} && "  # after a search on fewer classes
        print(f"To train the best values with another seed: {first}imp train {options}")
