"""`imp slurm`: batch scripts for a cluster."""

import dataclasses
from enum import StrEnum
from typing import Annotated, Any

import typer

from lottery.commands import options

Stage = StrEnum("Stage", ["train", "retrain", "rounds", "sweep"])
_MPI = ("--nodes", "--tasks-per-node", "--array")
OWN = {  # the options that not every stage has
    Stage.train: ("--replicate",),
    Stage.retrain: ("--replicate", "--quantiles", "--rewind", "--per-gpu", *_MPI),
    Stage.rounds: ("--replicate", "--rounds", "--per-gpu", *_MPI),
    Stage.sweep: _MPI,
}


def slurm(
    stage: Annotated[Stage, typer.Argument(help="What the job does.", show_default=False)],
    run: options.RunOption = None,
    recipe: options.RecipeOption = None,
    replicate: options.ReplicateOption = None,
    quantiles: options.QuantilesOption = None,
    rewind: options.RewindOption = None,
    rounds: options.RoundsOption = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of nodes; default: one.")] = None,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="GPUs on each node; 0: train on CPUs.")] = 0,
    tasks_per_node: Annotated[
        int | None, typer.Option(min=1, help="Ranks on each node; default: one per GPU, or --per-gpu.")
    ] = None,
    per_gpu: options.PerGpuOption = None,
    array: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=999_999, help="An array of N tasks that share the work, instead of an MPI job."),
    ] = None,
    cpus_per_task: Annotated[int | None, typer.Option(min=1, help="Cores for each rank; default: what Slurm gives.")] = None,
    time: Annotated[str | None, typer.Option(metavar="LIMIT", help="Time limit, such as 4:00:00.")] = None,
    partition: Annotated[str | None, typer.Option(help="Partition of the cluster.")] = None,
    account: Annotated[str | None, typer.Option(help="Account to charge.")] = None,
    sbatch: Annotated[list[str] | None, typer.Option(metavar="OPTION", help="Any other option of sbatch; repeatable.")] = None,
    submits: Annotated[bool, typer.Option("--submit", help="Submit the script with sbatch, too.")] = False,
) -> None:
    """Write a batch script for Slurm: an array with a task for each dense training; for networks under masks and for a sweep
    one MPI job, or an array that needs no MPI."""
    from lottery.base import files
    from lottery.executors.slurm import TASK, script, submit

    target = options.opened(run, recipe, chosen=replicate, must_exist=stage is Stage.sweep and recipe is None)
    given: dict[str, Any] = {"--quantiles": quantiles, "--rewind": rewind, "--rounds": rounds, "--per-gpu": per_gpu}
    shape = {"--replicate": replicate or None, "--nodes": nodes, "--tasks-per-node": tasks_per_node, "--array": array}
    for option, value in {**given, **shape}.items():
        if value is not None and option not in OWN[stage]:
            raise typer.BadParameter(f"{option} cannot be used with {stage}")
    if stage is Stage.sweep:  # which raises, as in the other cases, the error that the job would end with
        from lottery.sweep.values import searched

        searched(target.recipe)
    elif stage is Stage.train:
        target.plan()
    else:
        from lottery.experiment.plan import Selection
        from lottery.stages.retrain import checked_tickets

        is_rounds = stage is Stage.rounds
        asked_of = dataclasses.replace(target, recipe=target.recipe.with_rounds()) if is_rounds else target
        checked_tickets(asked_of, Selection(tuple(options.family_names(asked_of, is_rounds)), quantiles, rewind, rounds))
    replicates = [str(number) for number in target.chosen]
    tasks = f"1-{array}" if array else None
    if stage is Stage.train and len(target.numbers()) > 1:
        replicates, tasks = [TASK], ",".join(map(str, target.numbers()))
    elif array and stage is not Stage.sweep:
        given["--part"] = f"{TASK}/{array}"
    typed = [part for number in replicates for part in ("--replicate", number)]
    typed += [part for option, value in given.items() if value is not None for part in (option, str(value))]
    is_mpi = not tasks and stage is not Stage.train
    per_node = (tasks_per_node or max(1, gpus_per_node) * (per_gpu or 1)) if is_mpi else 1
    asked = {
        "job-name": f"{target.recipe.name}-{stage}",
        "array": tasks,
        "nodes": nodes or 1,
        "ntasks-per-node": per_node,
        "gpus-per-node": gpus_per_node or None,
        "cpus-per-task": cpus_per_task,
        "time": time,
        "partition": partition,
        "account": account,
    }
    arguments = [stage, "--run", str(target.folder), *typed]
    content = script(arguments, target.slurm, asked, sbatch or [], (nodes or 1) * per_node)
    path = target.slurm / f"{stage}.sh"
    target.adopt()
    files.write_text(path, content)
    print(submit(path) if submits else f"{path}: submit it with sbatch, or type this command again with --submit")
