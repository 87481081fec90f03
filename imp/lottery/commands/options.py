"""Options that several commands share, what they stand for, and how a function with options becomes a command."""

import dataclasses
import difflib
import functools
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.base.errors import InputError
from lottery.base.progress import Reporter
from lottery.executors.launcher import launched_rank, launched_size
from lottery.executors.workload import WHOLE, Execution, Headlines, Part
from lottery.experiment import grids
from lottery.experiment.grids import MOST, Grid, Point, Quantile

if TYPE_CHECKING:
    from lottery.experiment.plan import Selection
    from lottery.rundir.run import Run


def read(parse: Callable[[str], Any], *names: str, **more: Any) -> Any:
    """An option whose text `parse` reads, with the line of its InputError."""
    return typer.Option(*names, parser=str, callback=lambda text: None if text is None else parse(text), **more)


RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run", metavar="DIR", help="Run directory; default: $IMP_RUN, else runs/NAME of the recipe given, else runs/latest."
    ),
]
RecipeOption = Annotated[
    Path | None, typer.Option("--recipe", metavar="TOML", help="Recipe; default: the run's own, else the defaults.")
]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe value; repeatable.")]
RecordsOption = Annotated[
    Path | None,
    typer.Option("--records", metavar="DIR", help="Prepared set to train on; default: the one that the recipe names."),
]
FromOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Begin with the weights in this file or folder (model.weights): .keras, .safetensors, .pth and others.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables and sentences.")]
QuantilesOption = Annotated[
    Grid[Quantile] | None,
    read(grids.parse_quantiles, "--quantiles", metavar="GRID", help="Quantiles, such as 90, 60..99 or 60..80:5,85..99."),
]
RewindOption = Annotated[
    Grid[Point] | None,
    read(grids.parse_points, metavar="POINTS", help="Rewind points, such as 0,10it,1ep; default: the recipe's."),
]
ReplicateOption = Annotated[
    list[int] | None,
    typer.Option("--replicate", metavar="N", min=1, max=MOST, help="Only this replicate; repeatable. A new N adds one."),
]
FamilyOption = Annotated[list[str] | None, typer.Option("--family", metavar="NAME", help="Only this family; repeatable.")]
RoundsOption = Annotated[int | None, typer.Option("--rounds", min=1, max=100, help="Number of rounds; default: the recipe's.")]
PerGpuOption = Annotated[
    int | None, typer.Option("--per-gpu", metavar="K", min=1, help="Let K processes share each GPU; default: each has its own.")
]


def bundle_size(text: str) -> int | None:
    """That of `--bundle`; None: auto. Raises InputError when it is neither."""
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise InputError(f"--bundle {text!r} is not a number of networks: write auto, or 1 to {MOST}")
    return int(text)


@dataclasses.dataclass
class RunOptions:
    """Which run, and by which recipe."""

    run: RunOption = None
    recipe: RecipeOption = None
    set_: SetOption = None

    def open(self, **others: Any) -> "Run":
        return opened(self.run, self.recipe, self.set_, **others)


@dataclasses.dataclass
class RecipeOptions(RunOptions):
    """As `RunOptions`, of a command that begins with its recipe."""

    recipe: Annotated[
        Path | None,
        typer.Argument(help="File, or name of a recipe of ours, such as digits; default: the run's own, else the defaults."),
    ] = None


@dataclasses.dataclass
class SelectionOptions:
    """Which tickets."""

    family: FamilyOption = None
    quantiles: QuantilesOption = None
    rewind: RewindOption = None
    rounds: RoundsOption = None

    def selection(self, families: Callable[[], Sequence[str]] = tuple) -> "Selection":
        """Of the families named, or else of those that `families` gives."""
        from lottery.experiment.plan import Selection

        return Selection(tuple(self.family or families()), self.quantiles, self.rewind, self.rounds)


@dataclasses.dataclass
class WorkerOptions:
    """Where networks are trained: fields of `Execution`."""

    ranks: Annotated[
        int | None, typer.Option("--ranks", min=1, max=MOST, help="Train in this many processes on this host.")
    ] = 1
    executor: Annotated[
        str | None,
        typer.Option("--executor", metavar="NAME", help="Train by the executor of another package, or package.module:Class."),
    ] = None
    per_gpu: PerGpuOption = None

    def execution(self) -> Execution:
        return Execution(**vars(self))


@dataclasses.dataclass
class BundleOptions(WorkerOptions):
    """As `WorkerOptions`, where networks may share a compiled step."""

    bundle: Annotated[
        int | None,
        read(
            bundle_size,
            "--bundle",
            metavar="T",
            show_default="auto",
            help="Let each process train T networks in one compiled step; auto: on a GPU, as it measures.",
        ),
    ] = None


@dataclasses.dataclass
class PartOptions(BundleOptions):
    """As `BundleOptions`, where a job array may share the networks."""

    part: Annotated[
        Part, read(Part.parse, "--part", metavar="I/N", help="Train only part I of N, as a task of a job array does.")
    ] = WHOLE
    headlines: Annotated[
        Headlines,
        typer.Option("--headlines", help="Controls of headlines: they follow on the tickets; leave them out; train only them."),
    ] = "follow"


def command(function: Callable[..., None], of_many: bool = True) -> Callable[..., None]:
    """`function` as a command for Typer: a parameter that is a dataclass of options stands for each of these. Unless it is
    one `of_many` MPI ranks, it raises InputError on several."""
    given = inspect.signature(function).parameters
    groups: dict[str, Any] = {name: one.annotation for name, one in given.items() if dataclasses.is_dataclass(one.annotation)}
    parts = {name: dict(inspect.signature(group).parameters) for name, group in groups.items()}
    listed = [option for name, one in given.items() for option in parts.get(name, {name: one}).values()]
    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in listed]

    @functools.wraps(function)
    def parsed(**values: Any) -> None:
        if not of_many:
            alone()
        made = {name: group(**{option: values.pop(option) for option in parts[name]}) for name, group in groups.items()}
        function(**made, **values)

    parsed.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    parsed.__annotations__ = {option.name: option.annotation for option in options}
    return parsed


def opened(
    run: Path | None,
    recipe: Path | None = None,
    overrides: Sequence[str] | None = None,
    must_exist: bool = False,
    records: Path | None = None,
    chosen: Sequence[int] | None = None,
    weights: Path | None = None,
) -> "Run":
    """The run that the options name, as `open_run` finds it, with the replicates `chosen`. Dense networks begin with `weights`.
    Raises InputError for a run that is named and does not exist, where neither recipe nor records say what it is to be."""
    from lottery.rundir.names import RECIPE
    from lottery.rundir.run import open_run

    is_named = run and run.suffix != ".toml" and not (must_exist or recipe or records or run.is_file())
    if run and is_named and not (run / RECIPE).exists():
        near = difflib.get_close_matches(run.name, [path.parent.name for path in run.parent.glob(f"*/{RECIPE}")], n=1)
        meant = f"did you mean {run.parent / near[0]}? To" if near else "to"
        raise InputError(f"there is no run in {run}; {meant} start one there, name its recipe, such as digits")

    if weights:
        if not weights.exists():
            raise InputError(f"--from {weights}: there is no such file or folder")
        overrides = [f"model.weights={weights.resolve()}", *(overrides or ())]
    found = open_run(run, recipe, overrides or (), must_exist, records)
    return dataclasses.replace(found, chosen=tuple(chosen or ()))


def family_names(run: "Run", rounds: bool) -> list[str]:
    """The families that prune in rounds, or those that prune in one shot. Raises InputError where none does."""
    names = [name for name, family in run.recipe.families.items() if bool(family.rounds) == rounds]
    if not names:
        raise InputError("no family prunes in one shot: `imp thresholds` adds one")
    return names


def reporter() -> Reporter:
    """Shows progress; under mpirun every line starts with the rank."""
    rank = launched_rank()
    return Reporter(prefix=f"rank {rank}: " if rank else "")


def alone() -> None:
    """Raise InputError if this process is one of several MPI ranks: only trainings are for many."""
    if launched_rank() is not None and launched_size() != 1:
        raise InputError("only trainings run on many ranks: leave mpirun out (`imp run --ranks N` starts its own)")


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))
