"""Which executor a command gets, and ranks that it starts; mpirun is played."""

from types import SimpleNamespace

import pytest
from helpers import LAUNCHER

from lottery.base.errors import InputError
from lottery.base.preemption import Preempted
from lottery.fanout import allocation, launcher
from lottery.fanout.allocation import Resources, ranks_to_start
from lottery.fanout.executors import RanksFailed, on_ranks

MISSING = ["a1", "a2", "b1"]


@pytest.fixture(autouse=True)
def host(monkeypatch):
    """A host of four cores without GPUs, memory for many ranks, and an MPI; no launcher."""
    for name in (*LAUNCHER, "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(allocation, "resources_here", lambda: Resources("a", frozenset(range(4)), ()))
    monkeypatch.setattr(allocation.capacity, "free_memory", lambda: 1 << 50)
    monkeypatch.setattr(allocation, "Path", lambda path: SimpleNamespace(read_text=lambda: "max 100000"))
    monkeypatch.setattr(launcher, "finds_ranks", lambda: True)


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
def test_as_many_ranks_are_started_as_are_asked_for_or_as_the_host_has_cores_for(asked, tasks, threads, count):
    assert ranks_to_start(asked, lambda: tasks, threads) == count


def test_without_anything_to_do_no_ranks_are_started_unless_asked_for():
    assert ranks_to_start(None, lambda: 0, 1) == 1


def test_a_container_may_have_less_time_than_cores_and_memory_for_fewer_ranks(monkeypatch):
    monkeypatch.setattr(allocation, "Path", lambda path: SimpleNamespace(read_text=lambda: "350000 100000"))
    assert ranks_to_start(None, lambda: 9, 1) == 3
    monkeypatch.setattr(allocation, "RANK_BYTES", 1 << 49)
    assert ranks_to_start(None, lambda: 9, 1) == 2


def test_no_ranks_are_started_beside_gpus_in_a_job_or_without_mpi(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(launcher, "finds_ranks", lambda: False)
        assert ranks_to_start(None, lambda: 9, 1) == 1
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_JOB_ID", "7")
        assert ranks_to_start(None, lambda: 9, 1) == 1
    monkeypatch.setattr(allocation, "resources_here", lambda: Resources("a", frozenset(range(4)), ("GPU-1",)))
    assert ranks_to_start(None, lambda: 9, 1) == 1


def test_a_rank_starts_no_ranks_and_looks_for_nothing(monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "0")

    assert ranks_to_start(4, lambda: pytest.fail("looked"), 1) == 1


@pytest.mark.parametrize("count", [None, 4])
def test_bad_input_is_raised_before_anything_is_started(count):
    def refuse():
        raise InputError("no masks")

    with pytest.raises(InputError, match="no masks"):
        ranks_to_start(count, refuse, 1)


@pytest.fixture
def started(monkeypatch):
    """A function that has ranks do a workload, where mpirun ends with a code and leaves tasks; what was started."""
    lines = []

    def start(code, missing=()):
        monkeypatch.setattr(launcher, "command", lambda ranks, arguments: ([ranks, *arguments], {}))
        monkeypatch.setattr(launcher, "launch", lambda line, environment: lines.append(line) or code)
        on_ranks(3, ["retrain", "--run", "r"], lambda: list(missing))
        return lines[-1]

    return start


def test_ranks_run_the_command(started):
    assert started(0) == [3, "-m", "lottery", "retrain", "--run", "r"]


def test_a_command_that_fails_on_ranks_fails_with_its_code(started):
    with pytest.raises(RanksFailed) as failed:
        started(2, MISSING)

    assert failed.value.code == 2


def test_an_mpirun_that_says_all_went_well_is_not_believed_while_results_are_missing(started):
    with pytest.raises(Preempted, match=r"^mpirun ended early, 3 results are missing$"):
        started(0, MISSING)
