"""The command that searches for hyperparameters: sweep."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lottery.commands.options import JsonOption, RecordsOption, RunOption, SetOption, opened, print_json, reporter
from lottery.tables import print_table

if TYPE_CHECKING:
    from lottery.search.page import Outcome

SHOWN = 10  # trials in the terminal; the page has them all


def sweep(
    recipe: Annotated[Path | None, typer.Argument(help="Recipe with a [sweep] table; else the run's own.")] = None,
    run: RunOption = None,
    set_: SetOption = None,
    records: RecordsOption = None,
    wandb: Annotated[
        bool, typer.Option("--wandb", help="Only write the same sweep as a file for `wandb sweep`, whose agents run imp train.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Search for hyperparameters; any number of these commands share a search, also under mpirun."""
    from lottery.fanout.launcher import launched_rank
    from lottery.stages import sweep as stage

    target = opened(run, recipe, set_, records=records)
    if wandb:
        from lottery.search import agents

        path = agents.write(target)
        stage.prepared(target, reporter())
        print(f"{path}: hand it to `wandb sweep`, and start agents as that says")
        return
    outcome = stage.sweep(target, reporter())
    if launched_rank():
        return
    if as_json:
        print_json(outcome.as_json())
    else:
        _show(outcome, target.sweep)


def _show(outcome: "Outcome", folder: Path) -> None:
    ranked = outcome.ranked()
    print_table(str(folder), outcome.headings, map(outcome.cells, ranked[:SHOWN]))
    if len(ranked) > SHOWN:
        print(f"and {len(ranked) - SHOWN} more")
    for key, share in outcome.importances.items():
        print(f"{key} explains {share:.0%} of the differences")
    if outcome.best:
        print(f"{folder / 'best.toml'} is the recipe with the best values")
    print(f"Open {folder / 'index.html'}")
