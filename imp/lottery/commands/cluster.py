"""`imp slurm`: batch scripts for a cluster."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.commands.options import (
    PerGpuOption,
    QuantilesOption,
    RecipeOption,
    ReplicateOption,
    RewindOption,
    RunOption,
    opened,
)

if TYPE_CHECKING:
    from lottery.run import Run


class Stage(StrEnum):
    """What a batch script can be about, and the options that only it has."""

    train = "train"
    retrain = "retrain"
    rounds = "rounds"
    sweep = "sweep"

    @property
    def own(self) -> tuple[str, ...]:
        shared = ("--nodes", "--tasks-per-node", "--per-gpu", "--array")
        return {
            "train": ("--replicate",),
            "retrain": ("--replicate", "--quantiles", "--rewind", *shared),
            "rounds": ("--replicate", "--levels", *shared),
            "sweep": ("--nodes", "--tasks-per-node", "--array"),
        }[self]


def slurm(
    stage: Annotated[Stage, typer.Argument(help="What the job does.", show_default=False)],
    run: RunOption = None,
    recipe: RecipeOption = None,
    replicate: ReplicateOption = None,
    quantiles: QuantilesOption = None,
    rewind: RewindOption = None,
    levels: Annotated[int | None, typer.Option(min=1, max=100, help="Rounds of pruning; else the recipe's.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes of the job, else one.")] = None,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="GPUs of each node; 0 trains on CPUs.")] = 0,
    tasks_per_node: Annotated[
        int | None, typer.Option(min=1, help="Ranks on each node; else one for each GPU, or --per-gpu.")
    ] = None,
    per_gpu: PerGpuOption = None,
    array: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=999_999, help="An array of N tasks in place of an MPI job; they share the grid."),
    ] = None,
    cpus_per_task: Annotated[int | None, typer.Option(min=1, help="Cores for each rank; else left to Slurm.")] = None,
    time: Annotated[str | None, typer.Option(metavar="LIMIT", help="Time limit, such as 4:00:00.")] = None,
    partition: Annotated[str | None, typer.Option(help="Partition of the cluster.")] = None,
    account: Annotated[str | None, typer.Option(help="Account to charge.")] = None,
    sbatch: Annotated[list[str] | None, typer.Option(metavar="OPTION", help="Any other option of sbatch; repeatable.")] = None,
    submits: Annotated[bool, typer.Option("--submit", help="Hand the script to sbatch as well.")] = False,
) -> None:
    """Write a batch script for Slurm: the dense trainings (an array where there are replicates), or the networks under masks
    or a sweep, as one MPI job or an array that needs no MPI."""
    from data_prep import files
    from lottery.fanout.slurm import TASK, Batch, script, submit

    target = opened(run, recipe, chosen=replicate, must_exist=stage is Stage.sweep and recipe is None)
    given: dict[str, Any] = {"--quantiles": quantiles, "--rewind": rewind, "--levels": levels, "--per-gpu": per_gpu}
    _check(
        stage,
        target,
        given | {"--replicate": replicate or None, "--nodes": nodes, "--tasks-per-node": tasks_per_node, "--array": array},
    )
    replicates = [str(number) for number in target.chosen]
    tasks = f"1-{array}" if array else None
    if stage is Stage.train and len(target.numbers()) > 1:
        replicates, tasks = [TASK], ",".join(map(str, target.numbers()))
    elif array and stage is not Stage.sweep:
        given["--part"] = f"{TASK}/{array}"
    options = [part for number in replicates for part in ("--replicate", number)]
    options += [part for option, value in given.items() if value is not None for part in (option, str(value))]
    ranks = tasks_per_node or max(1, gpus_per_node) * (per_gpu or 1)
    batch = Batch(
        f"{target.recipe.name}-{stage}",
        [stage, "--run", str(target.folder), *options],
        target.slurm,
        nodes or 1,
        1 if tasks or stage is Stage.train else ranks,
        gpus_per_node,
        cpus_per_task,
        time,
        partition,
        account,
        tasks,
        sbatch or [],
    )
    content, path = script(batch), target.slurm / f"{stage}.sh"
    target.adopt()
    files.write_text(path, content)
    print(submit(path) if submits else f"{path}: hand it to sbatch, or type this again with --submit")


def _check(stage: Stage, target: "Run", given: dict[str, Any]) -> None:
    """Raise what the job would end with, or BadParameter for an option of another stage."""
    from lottery.stages.retrain import checked_jobs
    from lottery.stages.rounds import checked_rounds

    for option, value in given.items():
        if value is not None and option not in stage.own:
            raise typer.BadParameter(f"{option} does not go with {stage}")
    if stage is Stage.sweep:
        from lottery.search.values import searched

        searched(target.recipe)
        return
    planned = target.plan()
    if stage is Stage.retrain:
        checked_jobs(target, given["--quantiles"], given["--rewind"])
    elif stage is Stage.rounds:
        checked_rounds(target, planned, given["--levels"])
