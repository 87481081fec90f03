"""Which executor a command gets, and of how many processes."""

import importlib.metadata
import os
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import executor_contract
import pytest
from helpers import ROOT

from lottery.base.errors import Failed, InputError
from lottery.base.preemption import Preempted
from lottery.executors import allocation, choice
from lottery.executors.allocation import Resources, ranks_to_start
from lottery.executors.choice import executor
from lottery.executors.here import Processes
from lottery.executors.job import Job, opened
from lottery.executors.workload import Execution

TESTS = str(Path(__file__).parent)  # where the processes that train find the checks


@pytest.fixture(autouse=True)
def host(no_launcher, monkeypatch):
    """A host of four cores without GPUs, with memory for many processes."""
    monkeypatch.setattr(allocation, "resources_here", lambda: Resources("a", frozenset(range(4)), ()))
    monkeypatch.setattr(allocation.capacity, "free_memory", lambda: 1 << 50)
    monkeypatch.setattr(allocation, "Path", lambda path: SimpleNamespace(read_text=lambda: "max 100000"))


@pytest.mark.parametrize(
    ("asked", "tasks", "threads", "count"),
    [
        (3, 9, 1, 3),
        (3, 9, 2, 3),
        (2, 0, 1, 2),
        (1, 9, 1, 1),
        (None, 9, 1, 4),
        (None, 3, 1, 3),
        (None, 9, 2, 2),
        (None, 9, 4, 1),
    ],
)
def test_as_many_processes_are_started_as_are_asked_for_or_as_the_host_has_cores_for(asked, tasks, threads, count):
    assert ranks_to_start(asked, lambda: tasks, threads) == count


def test_without_anything_to_do_no_processes_are_started_unless_asked_for():
    assert ranks_to_start(None, lambda: 0, 1) == 1


def test_a_container_may_have_less_time_than_cores_and_memory_for_fewer_processes(monkeypatch):
    monkeypatch.setattr(allocation, "Path", lambda path: SimpleNamespace(read_text=lambda: "350000 100000"))
    assert ranks_to_start(None, lambda: 9, 1) == 3
    monkeypatch.setattr(allocation, "RANK_BYTES", 1 << 49)
    assert ranks_to_start(None, lambda: 9, 1) == 2


def test_no_processes_are_started_beside_gpus_or_in_a_job(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_JOB_ID", "7")
        assert ranks_to_start(None, lambda: 9, 1) == 1
    monkeypatch.setattr(allocation, "resources_here", lambda: Resources("a", frozenset(range(4)), ("GPU-1",)))
    assert ranks_to_start(None, lambda: 9, 1) == 1


def test_a_rank_that_is_alone_starts_as_many_processes_as_are_asked_for_and_else_none(monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")

    assert ranks_to_start(4, lambda: pytest.fail("looked"), 1) == 4
    assert ranks_to_start(None, lambda: pytest.fail("looked"), 1) == 1


class OfAnotherModule(Exception):
    """Which those who asked for the task may not be able to import."""


class Own:
    """An executor of a user's own."""

    def run(self, workload):
        return True


def test_an_executor_of_ones_own_is_named_by_its_module_or_by_an_entry_point(monkeypatch):
    assert isinstance(executor(Execution(executor=f"{__name__}:Own")), Own)
    points = [SimpleNamespace(name="own", load=lambda: Own)]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == choice.GROUP else [])

    assert isinstance(executor(Execution(executor="own")), Own)
    with pytest.raises(InputError, match=r"^unknown executor 'other'; known are own; other packages add entry points"):
        executor(Execution(executor="other"))


@pytest.fixture(scope="module")
def documented():
    """The executors that docs/cluster.md has."""
    names = {}
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL):
        exec(code, names)
    return names


@pytest.mark.parametrize("check", executor_contract.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    ("name", "how"), [("Submitit", {"cluster": "debug"}), pytest.param("Parsl", {"workers": 2}, marks=pytest.mark.smoke)]
)
def test_the_executors_of_the_documentation_keep_the_contract(documented, name, how, check, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", TESTS, prepend=os.pathsep)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # as in an environment that is activated
    check(documented[name](**how))


def test_the_executor_of_the_documentation_does_tasks_in_other_processes(documented, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", TESTS, prepend=os.pathsep)
    executor_contract.every_task_is_done_once_and_told(documented["Submitit"](cluster="local"))


def test_a_job_that_is_told_to_end_says_so_and_an_error_of_a_class_that_may_not_be_known_here_comes_back_as_its_words():
    def make_worker(raised):
        def work(task):
            raise raised

        return lambda allocation, reporter: nullcontext(work)

    class Unpicklable(Exception):
        pass

    ended = Job(make_worker(Preempted("stopped by SIGTERM")), 1, "a")()
    assert ended == {"status": "preempted", "reason": "stopped by SIGTERM"}
    for odd in (Unpicklable("so it is"), OfAnotherModule("so it is"), KeyError(lambda: None)):
        with pytest.raises(Failed, match=rf"^{type(odd).__name__}: {odd}$"):
            opened(Job(make_worker(odd), 1, "a")())


def test_what_is_no_executor_is_one_line():
    with pytest.raises(InputError, match=r"^--executor collections:Counter makes nothing that has a method run\(workload\)$"):
        executor(Execution(executor="collections:Counter"))


def test_without_mpi_and_a_name_it_is_processes_of_this_host():
    made = executor(Execution(3, per_gpu=2))

    assert isinstance(made, Processes)
    assert (made.count, made.per_gpu) == (3, 2)
