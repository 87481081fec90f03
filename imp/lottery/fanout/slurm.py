"""Batch scripts for Slurm, for people to read: one MPI job, or an array of tasks that need no MPI."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_prep.errors import Failed, InputError
from lottery.fanout import launcher
from lottery.preemption import EXIT_CODE

WARNING_SECONDS = 120  # before the time limit; a training notices within a second or two, and saves
TASK = "$SLURM_ARRAY_TASK_ID"


@dataclass(frozen=True)
class Batch:
    """What to ask of Slurm, and for what: `arguments` of imp, in which TASK stands for the number of a task where the job is an
    `array` (of such numbers as "1-20" or "1,3"; None: it is none). Values that are None are left to the cluster."""

    name: str
    arguments: Sequence[str]
    logs: Path
    nodes: int = 1
    tasks_per_node: int = 1
    gpus_per_node: int = 0
    cpus_per_task: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    array: str | None = None
    more: Sequence[str] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return self.nodes * self.tasks_per_node


def script(batch: Batch) -> str:
    """The batch script of `batch`. The job is queued again when its time limit is near or a node is taken away. Raises
    InputError for what cannot be printed, such as a line's end, which would begin a line of its own."""
    lines = ["#!/bin/bash", *_options(batch), "", *_body(batch), ""]
    for line in lines:
        if not line.isprintable():
            raise InputError(f"{line!r} cannot be a line of a batch script: leave out what cannot be printed")
    return "\n".join(lines)


def submit(path: Path) -> str:
    """Hand a script to sbatch and return what that says. Raises InputError where there is none, Failed when it refuses."""
    if not shutil.which("sbatch"):
        raise InputError(f"there is no sbatch here: copy {path} to where Slurm is, or leave out --submit")
    done = subprocess.run(["sbatch", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"sbatch refused {path}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()


def _options(batch: Batch) -> list[str]:
    options = {
        "job-name": batch.name,
        "array": batch.array,
        "nodes": batch.nodes,
        "ntasks-per-node": batch.tasks_per_node,
        "gpus-per-node": batch.gpus_per_node or None,
        "cpus-per-task": batch.cpus_per_task,
        "time": batch.time,
        "partition": batch.partition,
        "account": batch.account,
        "chdir": Path.cwd(),
        "output": batch.logs / ("%A_%a.log" if batch.array else "%j.log"),
        "open-mode": "append",
        "signal": f"B:USR1@{WARNING_SECONDS}",
    }
    given = [f"--{option}={shlex.quote(str(value))}" for option, value in options.items() if value is not None]
    return [f"#SBATCH {option}" for option in [*given, "--requeue", *batch.more]]


def _body(batch: Batch) -> list[str]:
    job = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if batch.array else "$SLURM_JOB_ID"
    return [
        "# Before the time limit Slurm sends USR1: what is under way is saved, imp ends with 75, and the job is queued again.",
        "trap 'kill -USR1 $imp' USR1",
        f"{_command(batch)} &",
        "imp=$!",
        "wait $imp; code=$?",
        "while kill -0 $imp 2> /dev/null; do wait $imp; code=$?; done  # a signal cut the wait short",
        f"[ $code -eq {EXIT_CODE} ] && scontrol requeue {job}",
        "exit $code",
    ]


def _command(batch: Batch) -> str:
    """imp alone, or under mpirun with a log for each rank. TASK is for the shell; all else is quoted for it."""
    imp = [str(Path(sys.executable).with_name("imp")), *batch.arguments]
    if batch.ranks > 1:
        mpirun = launcher.mpirun()
        tolerant = ["--with-ft", "ulfm"] if launcher.tolerates_faults(mpirun) else []
        imp = [mpirun, "-n", str(batch.ranks), "--bind-to", "none", *tolerant, "--output", f"file={batch.logs}/rank", *imp]
    return " ".join(TASK.join(shlex.quote(text) if text else "" for text in part.split(TASK)) for part in imp)
