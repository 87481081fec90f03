"""`imp slurm`: batch scripts for a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.commands.options import PerGpuOption, QuantilesOption, ReplicateOption, RunOption, opened

if TYPE_CHECKING:
    from lottery.fanout.slurm import Batch
    from lottery.run import Run

app = typer.Typer(no_args_is_help=True, help="Write batch scripts for Slurm.")

NodesOption = Annotated[int, typer.Option("--nodes", min=1, help="Nodes of the job, or of each task of an array.")]
GpusOption = Annotated[int, typer.Option("--gpus-per-node", min=0, help="GPUs of each node; 0 trains on CPUs.")]
TasksOption = Annotated[
    int | None, typer.Option("--tasks-per-node", min=1, help="Ranks on each node; else one for each GPU, or --per-gpu.")
]
CpusOption = Annotated[int | None, typer.Option("--cpus-per-task", min=1, help="Cores for each rank; else left to Slurm.")]
TimeOption = Annotated[str | None, typer.Option("--time", metavar="LIMIT", help="Time limit, such as 4:00:00.")]
PartitionOption = Annotated[str | None, typer.Option("--partition", help="Partition of the cluster.")]
AccountOption = Annotated[str | None, typer.Option("--account", help="Account to charge.")]
MoreOption = Annotated[
    list[str] | None, typer.Option("--sbatch", metavar="OPTION", help="Any other option of sbatch; repeatable.")
]
SubmitOption = Annotated[bool, typer.Option("--submit", help="Hand the script to sbatch as well.")]


@app.command()
def train(
    run: RunOption = None,
    gpus_per_node: GpusOption = 0,
    cpus_per_task: CpusOption = None,
    time: TimeOption = None,
    partition: PartitionOption = None,
    account: AccountOption = None,
    sbatch: MoreOption = None,
    submit: SubmitOption = False,
) -> None:
    """The dense trainings: one job, or an array of a task for each replicate."""
    from lottery.fanout.slurm import TASK, Batch

    target = opened(run)
    target.plan()
    target.adopt()
    replicates = len(target.numbers())
    each = ["--replicate", TASK] if replicates > 1 else []
    batch = Batch(
        f"{target.recipe.name}-train",
        ["train", "--run", str(target.folder), *each],
        target.slurm,
        gpus_per_node=gpus_per_node,
        cpus_per_task=cpus_per_task,
        time=time,
        partition=partition,
        account=account,
        array=replicates if replicates > 1 else 0,
        more=sbatch or [],
    )
    _write(target, "train", batch, submit)


@app.command()
def retrain(
    run: RunOption = None,
    quantiles: QuantilesOption = None,
    rewind: Annotated[str | None, typer.Option(metavar="POINTS", help="Such as 0,10it,1ep; else the recipe's.")] = None,
    replicate: ReplicateOption = None,
    nodes: NodesOption = 1,
    gpus_per_node: GpusOption = 0,
    tasks_per_node: TasksOption = None,
    per_gpu: PerGpuOption = None,
    array: Annotated[int, typer.Option("--array", metavar="N", min=0, help="An array of N tasks in place of an MPI job.")] = 0,
    cpus_per_task: CpusOption = None,
    time: TimeOption = None,
    partition: PartitionOption = None,
    account: AccountOption = None,
    sbatch: MoreOption = None,
    submit: SubmitOption = False,
) -> None:
    """The networks under masks: one MPI job, or an array whose tasks share the grid and need no MPI."""
    from lottery.fanout.slurm import TASK, Batch
    from lottery.stages.retrain import checked_jobs

    target = opened(run, chosen=replicate)
    checked_jobs(target, quantiles, rewind)
    target.adopt()
    given: dict[str, Any] = {"--quantiles": quantiles, "--rewind": rewind, "--per-gpu": per_gpu}
    given["--part"] = f"{TASK}/{array}" if array else None
    options = [part for number in target.chosen for part in ("--replicate", str(number))]
    options += [part for option, value in given.items() if value is not None for part in (option, str(value))]
    batch = Batch(
        f"{target.recipe.name}-retrain",
        ["retrain", "--run", str(target.folder), *options],
        target.slurm,
        nodes,
        1 if array else tasks_per_node or max(1, gpus_per_node) * (per_gpu or 1),
        gpus_per_node,
        cpus_per_task,
        time,
        partition,
        account,
        array,
        sbatch or [],
    )
    _write(target, "retrain", batch, submit)


def _write(target: "Run", stage: str, batch: "Batch", submit: bool) -> None:
    from data_prep import files
    from lottery.fanout import slurm

    path: Path = target.slurm / f"{stage}.sh"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, slurm.script(batch))
    print(slurm.submit(path) if submit else f"{path}: hand it to sbatch, or type this again with --submit")
