"""mpirun, seen from outside: what it told this process, and how to start it. Needs no MPI."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lottery.base.errors import InputError

COUNTING = (  # for Python on each rank; rank 0 says how many there are
    "from mpi4py import MPI; world = MPI.COMM_WORLD; total = world.allreduce(1); "
    'print("found: " + str(total)) if world.rank == 0 else None'
)


def launched_rank() -> int | None:
    """This process's rank as its launcher set it, or None when no MPI launcher started it."""
    return _number("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def launched_size() -> int | None:
    """How many ranks the launcher says it started, or None when it does not say."""
    return _number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def local_size() -> int | None:
    """How many of the ranks run on this host, or None when the launcher does not say."""
    return _number("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def local_rank() -> int | None:
    """This process's number among the ranks of its host, from 0, or None when the launcher does not say."""
    return _number("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def _number(*variables: str) -> int | None:
    """The number in the first of these environment variables that holds one."""
    return next((int(os.environ[name]) for name in variables if os.environ.get(name, "").isdigit()), None)


def unused_tasks(ranks: int) -> str | None:
    """A line for where Slurm gave this job more tasks than there are `ranks`: most likely mpirun or srun was left out."""
    tasks = _number("SLURM_NTASKS") or 0
    if tasks <= ranks:
        return None
    return f"Slurm gave this job {tasks} tasks, of which {ranks} train: `imp slurm` writes a script that uses all"


def mpirun() -> str:
    """The mpirun beside this Python, or else on the path. Raises InputError where there is none."""
    beside = Path(sys.executable).with_name("mpirun")
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if not path:
        raise InputError("no mpirun found: `pip install 'imp-lottery[local]'` brings one, or load your cluster's MPI")
    return path


def tolerates_faults(mpirun: str) -> bool:
    """Whether the Open MPI of this mpirun was built with ULFM, by which the other ranks go on when one dies."""
    try:
        about = subprocess.run([Path(mpirun).with_name("ompi_info")], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    return "FT MPI support: yes" in about


def mpirun_line(ranks: int, *options: str) -> list[str]:
    """The beginning of a command line for so many ranks, which are not bound to cores, and outlive each other where this MPI
    can have it so. Raises InputError where there is no mpirun."""
    starter = mpirun()
    tolerant = ["--with-ft", "ulfm"] if tolerates_faults(starter) else []
    return [starter, "-n", str(ranks), "--bind-to", "none", *tolerant, *options]


def command(ranks: int, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment that start this Python with `arguments` on `ranks` ranks of this host: root may do
    that, and there may be more ranks than cores. Raises InputError where there is no mpirun."""
    line = [*mpirun_line(ranks, "--oversubscribe"), sys.executable, *arguments]
    return line, {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
