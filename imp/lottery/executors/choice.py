"""The executor that a command uses."""

from typing import cast

from lottery.base import plugins
from lottery.base.errors import InputError
from lottery.executors import communicator
from lottery.executors.here import Processes
from lottery.executors.mpi import Ranks
from lottery.executors.workload import Execution, Executor

GROUP = "lottery.executors"  # of entry points


def executor(execution: Execution) -> Executor:
    """The one that `execution` names, or MPI's ranks where mpirun or srun started this process as one of several, or else
    processes of this host. Raises InputError where it names none that is installed, and as `communicator.join` does."""
    if execution.executor:
        return _named(execution.executor)
    ranks = communicator.join()
    if ranks:
        return Ranks(ranks, execution.per_gpu)
    return Processes(execution.ranks, execution.per_gpu)


def _named(name: str) -> Executor:
    make = plugins.function(name, "--executor") if plugins.is_own(name) else plugins.member(GROUP, name, {}, "executor").load()
    made = make()
    if not callable(getattr(made, "run", None)):
        raise InputError(f"--executor {name} makes nothing that has a method run(workload)")
    return cast(Executor, made)
