"""Which executor a command gets, and ranks that it starts; mpirun is played."""

import pytest
from helpers import LAUNCHER

from data_prep.errors import InputError
from lottery.fanout import executors, launcher
from lottery.fanout.executors import Ranks, RanksFailed, on_ranks
from lottery.fanout.tasks import Workload
from lottery.preemption import Preempted

MISSING = ["a1", "a2", "b1"]


@pytest.fixture(autouse=True)
def host(monkeypatch):
    """A host that feeds as many ranks as asked, and no launcher."""
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(executors, "ranks_fed", lambda tasks, threads: tasks // threads)


def chosen(count, missing=MISSING, threads=1):
    return on_ranks(count, ["retrain"], lambda: missing, lambda tasks: len({task[0] for task in tasks}), threads)


@pytest.mark.parametrize(("asked", "threads", "count"), [(3, 1, 3), (3, 2, 3), (None, 1, 2), (None, 2, None), (1, 1, None)])
def test_as_many_ranks_as_are_asked_for_or_as_the_host_feeds(asked, threads, count):
    ranks = chosen(asked, threads=threads)

    assert (ranks and ranks.count) == count


def test_without_anything_missing_no_ranks_are_started_unless_asked_for():
    assert chosen(None, []) is None
    assert chosen(2, []).count == 2


def test_a_rank_starts_no_ranks_and_looks_for_nothing(monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "0")

    assert on_ranks(4, [], lambda: pytest.fail("looked"), len, 1) is None


def test_bad_input_is_raised_before_anything_is_started():
    def refuse():
        raise InputError("no masks")

    with pytest.raises(InputError, match="no masks"):
        on_ranks(None, [], refuse, len, 1)


@pytest.fixture
def mapped(monkeypatch):
    """A function that has ranks do a workload, where mpirun ends with a code and leaves tasks; what was started."""
    started = []

    def map_on(code, missing=()):
        monkeypatch.setattr(launcher, "command", lambda ranks, arguments: ([ranks, *arguments], {}))
        monkeypatch.setattr(launcher, "launch", lambda line, environment: started.append(line) or code)
        workload = Workload(*[lambda *_: pytest.fail("called here")] * 4)
        coordinated = Ranks(3, ["retrain", "--run", "r"], lambda: list(missing)).map(workload)
        return coordinated, started[-1]

    return map_on


def test_ranks_run_the_command_and_this_process_is_not_the_one_that_knows_its_results(mapped):
    assert mapped(0) == (False, [3, "-m", "lottery", "retrain", "--run", "r"])


def test_a_command_that_fails_on_ranks_fails_with_its_code(mapped):
    with pytest.raises(RanksFailed) as failed:
        mapped(2, MISSING)

    assert failed.value.code == 2


def test_an_mpirun_that_says_all_went_well_is_not_believed_while_results_are_missing(mapped):
    with pytest.raises(Preempted, match=r"^mpirun ended early, 3 results are missing$"):
        mapped(0, MISSING)
