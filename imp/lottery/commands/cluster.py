"""`imp slurm`: batch scripts for a cluster."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.base.errors import InputError
from lottery.base.progress import count_of
from lottery.commands import options
from lottery.commands.options import RecipeOptions, RunOptions
from lottery.commands.sweeping import ObjectiveOptions
from lottery.results.tables import print_table

if TYPE_CHECKING:
    from lottery.rundir.run import Run

CHAIN = "run"  # the folder of a chain's scripts, and the one that submits all
Nodes = Annotated[int | None, typer.Option(min=1, help="Number of nodes; default: one.")]
GpusPerNode = Annotated[int, typer.Option(min=0, help="GPUs on each node; 0: train on CPUs.")]


@dataclasses.dataclass
class SlurmOptions:
    """What is asked of Slurm for every job, and whether it is submitted."""

    cpus_per_task: Annotated[int | None, typer.Option(min=1, help="Cores for each rank; default: what Slurm gives.")] = None
    time: Annotated[str | None, typer.Option(metavar="LIMIT", help="Time limit, such as 4:00:00.")] = None
    partition: Annotated[str | None, typer.Option(help="Partition of the cluster.")] = None
    account: Annotated[str | None, typer.Option(help="Account to charge.")] = None
    sbatch: Annotated[list[str] | None, typer.Option(metavar="OPTION", help="Any other option of sbatch; repeatable.")] = None
    submit: Annotated[bool, typer.Option("--submit", help="Submit it with sbatch, too.")] = False

    def asked(self, name: str, nodes: int = 1, tasks: int = 1, gpus: int = 0, array: str | None = None) -> dict[str, object]:
        """sbatch's options by their long names, for so many ranks (`tasks`) and GPUs on each of its nodes."""
        shape = {"job-name": name, "array": array, "nodes": nodes, "ntasks-per-node": tasks, "gpus-per-node": gpus or None}
        own = {name.replace("_", "-"): getattr(self, name) for name in ("cpus_per_task", "time", "partition", "account")}
        return shape | own


@dataclasses.dataclass
class ShapeOptions:
    """The shape of one MPI job, or of an array without MPI."""

    nodes: Nodes = None
    gpus_per_node: GpusPerNode = 0
    tasks_per_node: Annotated[
        int | None, typer.Option(min=1, help="Ranks on each node; default: one per GPU, or --per-gpu.")
    ] = None
    array: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=999_999, help="An array of N tasks that share the work, instead of an MPI job."),
    ] = None

    def ranks(self, per_gpu: int | None = None) -> int:
        """Those on each node."""
        return 1 if self.array else self.tasks_per_node or max(1, self.gpus_per_node) * (per_gpu or 1)


def run(
    run: RecipeOptions,
    slurm: SlurmOptions,
    records: options.RecordsOption = None,
    nodes: Annotated[int, typer.Option(min=1, help="Use this many nodes at a time, at most.")] = 1,
    gpus_per_ticket: Annotated[int, typer.Option(min=0, help="GPUs that train each network; 0: CPUs.")] = 0,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="GPUs that each node has; default: those of one ticket.")
    ] = None,
) -> None:
    """Write the jobs of a whole run, each to begin when those before it have ended: prepare, train, thresholds, arrays of
    tickets and of rounds, report. Only what is missing; nothing need have run before."""
    from lottery.base import files
    from lottery.executors import slurm as scripts
    from lottery.stages import chain

    if gpus_per_node is not None and not 0 < gpus_per_ticket <= gpus_per_node:
        raise typer.BadParameter(f"--gpus-per-node {gpus_per_node}: give --gpus-per-ticket, 1 to {gpus_per_node}")
    target = run.open(records=records)
    folder = target.slurm / CHAIN
    if scripts.queued(folder):
        raise InputError(f"jobs of {target.folder} are in the queue: `imp status` shows them; wait, or scancel them")
    jobs = chain.jobs(target, nodes * (gpus_per_node // gpus_per_ticket if gpus_per_node else 1))
    if any(job.array for job in jobs):
        _check_devices(target, gpus_per_ticket, slurm)
    content = {}
    for job in jobs:
        arguments = [job.arguments[0], "--run", str(target.folder), *job.arguments[1:]]
        asked = slurm.asked(f"{target.recipe.name}-{job.name}", gpus=gpus_per_ticket * job.on_gpus, array=job.array)
        content[job.name] = scripts.script(
            arguments, folder, asked, slurm.sbatch or [], waits=bool(job.after), tolerates=job.tolerates
        )
    content[CHAIN] = scripts.chain(jobs, folder)
    target.adopt()
    for name, text in content.items():
        files.write_text(folder / f"{name}.sh", text)
    rows = [
        (
            job.name,
            job.array or "1",
            str(gpus_per_ticket * job.on_gpus),
            ", ".join(f"{name} ({kind})" for name, kind in job.after.items()),
        )
        for job in jobs
    ]
    print_table(str(folder), ("job", "tasks", "GPUs of each", "begins after"), rows)
    path = folder / f"{CHAIN}.sh"
    print(scripts.submit_chain(path) if slurm.submit else f"submit all with `bash {path}`, or type this again with --submit")


def train(
    run: RunOptions, slurm: SlurmOptions, replicate: options.ReplicateOption = None, gpus_per_node: GpusPerNode = 0
) -> None:
    """Write a script that trains the dense networks: an array with a task for each replicate."""
    from lottery.executors.slurm import TASK

    target = run.open(chosen=replicate)
    target.plan()
    numbers = target.numbers()
    one = TASK if len(numbers) > 1 else str(numbers[0]) if target.chosen else None
    array = ",".join(map(str, numbers)) if one == TASK else None
    typed = ["--replicate", one] if one else []
    _write(target, "train", typed, slurm, slurm.asked(f"{target.recipe.name}-train", gpus=gpus_per_node, array=array))


def retrain(
    run: RunOptions,
    slurm: SlurmOptions,
    shape: ShapeOptions,
    replicate: options.ReplicateOption = None,
    quantiles: options.QuantilesOption = None,
    rewind: options.RewindOption = None,
    per_gpu: options.PerGpuOption = None,
) -> None:
    """Write a script that trains the networks of one-shot families: one MPI job, or an array."""
    target, given = run.open(chosen=replicate), {"--quantiles": quantiles, "--rewind": rewind}
    _write_tickets(target, "retrain", slurm, shape, per_gpu, given)


def rounds(
    run: RunOptions,
    slurm: SlurmOptions,
    shape: ShapeOptions,
    replicate: options.ReplicateOption = None,
    rounds: options.RoundsOption = None,
    per_gpu: options.PerGpuOption = None,
) -> None:
    """Write a script that trains the networks of families with rounds: one MPI job, or an array."""
    target = run.open(chosen=replicate)
    asked_of = dataclasses.replace(target, recipe=target.recipe.with_rounds())
    _write_tickets(asked_of, "rounds", slurm, shape, per_gpu, {"--rounds": rounds})


def sweep(run: ObjectiveOptions, slurm: SlurmOptions, shape: ShapeOptions) -> None:
    """Write a script that searches for hyperparameters: one MPI job, or an array."""
    from lottery.sweep import values

    target = run.open(must_exist=run.recipe is None)
    values.objective(target.recipe)
    values.searched(target.recipe)
    _write_shaped(target, "sweep", [], slurm, shape)


def _write_tickets(
    target: "Run", stage: str, slurm: SlurmOptions, shape: ShapeOptions, per_gpu: int | None, given: dict[str, Any]
) -> None:
    """Raises, where networks cannot be trained so, the InputError that the job would end with."""
    from lottery.executors.slurm import TASK
    from lottery.experiment.plan import Selection
    from lottery.stages.retrain import checked_tickets

    names = tuple(options.family_names(target, stage == "rounds"))
    checked_tickets(target, Selection(names, **{name.lstrip("-"): value for name, value in given.items()}))
    _check_devices(target, 1 if per_gpu and shape.gpus_per_node else shape.gpus_per_node // shape.ranks(), slurm)
    if shape.array:
        given["--part"] = f"{TASK}/{shape.array}"
    given["--per-gpu"] = per_gpu
    typed = [part for number in target.chosen for part in ("--replicate", str(number))]
    typed += [part for option, value in given.items() if value is not None for part in (option, str(value))]
    _write_shaped(target, stage, typed, slurm, shape, per_gpu)


def _write_shaped(
    target: "Run", stage: str, typed: Sequence[str], slurm: SlurmOptions, shape: ShapeOptions, per_gpu: int | None = None
) -> None:
    nodes, ranks = shape.nodes or 1, shape.ranks(per_gpu)
    array = f"1-{shape.array}" if shape.array else None
    asked = slurm.asked(f"{target.recipe.name}-{stage}", nodes, ranks, shape.gpus_per_node, array)
    _write(target, stage, typed, slurm, asked, nodes * ranks)


def _write(
    target: "Run", stage: str, typed: Sequence[str], slurm: SlurmOptions, asked: dict[str, object], ranks: int = 1
) -> None:
    from lottery.base import files
    from lottery.executors import slurm as scripts

    arguments = [stage, "--run", str(target.folder), *typed]
    content, path = scripts.script(arguments, target.slurm, asked, slurm.sbatch or [], ranks), target.slurm / f"{stage}.sh"
    target.adopt()
    files.write_text(path, content)
    print(scripts.submit(path) if slurm.submit else f"{path}: submit it with sbatch, or type this command again with --submit")


def _check_devices(target: "Run", gpus: int, slurm: SlurmOptions) -> None:
    """Raises InputError where each network is to train on so many GPUs (0: on CPUs), and that is not what the recipe says, or
    what its dense network was trained on. Where other options of sbatch may give it GPUs, nothing is known."""
    if any(option.lstrip("-").startswith(("gres", "gpu", "G")) for option in slurm.sbatch or []):
        return
    wanted = target.recipe.train.devices
    if 0 < gpus < wanted:
        raise InputError(f"train.devices is {wanted}, and a network would have {count_of(gpus, 'GPU')}: give it as many")
    for replicate in target.replicates():
        result = replicate.dense.read_result()
        if not (result and result.status == "done"):
            continue
        trained, devices = result.replicas or 1, wanted or gpus or 1
        kind = "CPU" if result.made_by[-1]["device"] == "CPU" else "GPU"
        if (trained, kind) != (devices, "GPU" if gpus else "CPU"):
            there, here = count_of(trained, kind), count_of(devices, "GPU" if gpus else "CPU")
            raise InputError(
                f"{replicate.dense.folder} was trained on {there}, its tickets would be on {here}: give them the same"
            )
