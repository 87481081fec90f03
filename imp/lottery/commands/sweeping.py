"""The command that searches for hyperparameters: sweep."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lottery.commands.options import JsonOption, RecordsOption, RunOption, SetOption, opened, print_json, reporter
from lottery.tables import print_table

if TYPE_CHECKING:
    from lottery.run import Run
    from lottery.search.page import Outcome

SHOWN = 10  # trials in the terminal; the page has them all


def sweep(
    recipe: Annotated[
        Path | None, typer.Argument(help="Recipe, whose table `sweep` says what to search; else the run's own.")
    ] = None,
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
        _show(outcome, target)


def _show(outcome: "Outcome", target: "Run") -> None:
    folder = target.sweep
    ranked = outcome.ranked()
    print_table(str(folder), outcome.headings, map(outcome.cells, ranked[:SHOWN]))
    if len(ranked) > SHOWN:
        print(f"and {len(ranked) - SHOWN} more")
    for key, share in outcome.importances.items():
        print(f"{key} explains {share:.0%} of the differences")
    if outcome.best:
        print(f"To train the best values with another seed: {_again(target)}")
    print(f"Open {folder / 'index.html'}")


def _again(target: "Run") -> str:
    """The command that trains the best values with the next seed, on records that a search on fewer classes has not made."""
    words = ["--recipe", str(target.sweep / "best.toml"), "--set", f"seed={target.recipe.seed + 1}"]
    options = shlex.join([*words, "--run", f"runs/{target.recipe.name}-best"])
    return f"{'' if target.known_training_images() else f'imp prepare {options} && '}imp train {options}"
