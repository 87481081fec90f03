"""What several commands share: their options, and what those stand for."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.grids import MOST

if TYPE_CHECKING:
    from lottery.progress import Reporter
    from lottery.run import Run

STALL_SECONDS = 600.0

RunOption = Annotated[
    Path | None,
    typer.Option("--run", metavar="DIR", help="Run directory; else $IMP_RUN, runs/NAME of a given recipe, runs/latest."),
]
RecipeOption = Annotated[Path | None, typer.Option("--recipe", metavar="TOML", help="Recipe; else the run's own, else digits.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe value; repeatable.")]
RecordsOption = Annotated[
    Path | None, typer.Option("--records", metavar="DIR", help="Prepared set to train on; else the one the recipe names.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables and sentences.")]
QuantilesOption = Annotated[
    str | None, typer.Option("--quantiles", metavar="GRID", help="Such as 90, 60..99 or 60..80:5,85..99.")
]
RewindOption = Annotated[str | None, typer.Option(metavar="POINTS", help="Such as 0,10it,1ep; else the recipe's.")]
ReplicateOption = Annotated[
    list[int] | None,
    typer.Option("--replicate", metavar="N", min=1, max=MOST, help="Only this replicate; repeatable. A new N adds one."),
]
PerGpuOption = Annotated[
    int | None, typer.Option("--per-gpu", metavar="K", min=1, help="Let K ranks share each GPU; else each rank has its own.")
]
PartOption = Annotated[
    str, typer.Option("--part", metavar="I/N", help="Only the I-th of N parts of the grid, as for a task of a job array.")
]
StallOption = Annotated[
    float, typer.Option("--stall", metavar="SECONDS", min=1, help="Name a rank that has come no further for so long.")
]
RanksOption = Annotated[int, typer.Option("--ranks", min=1, max=MOST, help="Start this many MPI ranks on this host.")]


def opened(
    run: Path | None,
    recipe: Path | None = None,
    overrides: Sequence[str] | None = None,
    must_exist: bool = False,
    records: Path | None = None,
    chosen: Sequence[int] | None = None,
) -> "Run":
    """The run that the options name, as `open_run` finds it; of its replicates, those `chosen`."""
    from lottery.run import open_run

    found = open_run(run, recipe, overrides or (), must_exist, records)
    return dataclasses.replace(found, chosen=tuple(chosen or ()))


def reporter() -> "Reporter":
    """Where progress is said; under mpirun every line begins with the rank."""
    from lottery.fanout.launcher import launched_rank
    from lottery.progress import Reporter

    rank = launched_rank()
    return Reporter(prefix=f"rank {rank}: " if rank else "")


def alone() -> None:
    """Raise InputError in one of several MPI ranks."""
    from lottery.fanout.launcher import refuse_ranks

    refuse_ranks()


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))
