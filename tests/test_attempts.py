"""Attempts that nobody came out of alive are counted, as long as they come no further."""

import contextlib
from types import SimpleNamespace

import pytest

from data_prep import files
from lottery.experiment.graph import Bundle
from lottery.experiment.plan import Plan
from lottery.experiment.recipe import Recipe
from lottery.preemption import Preempted
from lottery.rundir import attempts
from lottery.rundir.names import NetworkFiles
from lottery.rundir.run import Run


@pytest.fixture
def network(tmp_path):
    return NetworkFiles(tmp_path)


KILLED = []


def dies(network):
    """How many died before, in an attempt that ends as by SIGKILL: nothing runs after it."""
    KILLED.append(attempts.noted(network))
    return KILLED[-1].__enter__()


def lives(network, error=None):
    with contextlib.suppress(Exception, Preempted), attempts.noted(network) as deaths:
        found = deaths
        if error:
            raise error
    return found


def test_each_death_in_a_row_counts(network):
    assert [dies(network), dies(network), dies(network)] == [0, 1, 2]


@pytest.mark.parametrize("error", [None, ValueError("odd"), Preempted("stopped")])
def test_who_comes_out_alive_leaves_nothing(network, error):
    dies(network)

    assert lives(network, error) == 1
    assert not network.attempt.exists()
    assert lives(network) == 0


def test_an_attempt_that_came_further_starts_the_count_anew(network):
    dies(network)
    dies(network)
    network.checkpoint.write_bytes(b"further")

    assert [dies(network), dies(network)] == [0, 1]


@pytest.mark.parametrize(("before", "reason"), [(0, "tried"), (1, attempts.KILLS)])
def test_a_network_that_killed_two_attempts_in_a_row_is_set_aside_and_one_that_killed_one_is_tried(
    tmp_path, monkeypatch, before, reason
):
    from lottery.stages.tickets import TicketWorker

    run = Run(tmp_path, Recipe())
    worker = TicketWorker.__new__(TicketWorker)
    worker.run, worker.planned, worker.trainer, worker.reporter = run, Plan(run.recipe, 45), SimpleNamespace(origins={}), None
    monkeypatch.setattr(TicketWorker, "_train", lambda self, trainer, reporter, *made_from: self._failed(*made_from, "tried"))
    ticket = worker.planned.tickets([1], run.recipe.families)[0]
    network = run.network(ticket)
    files.write_json(network.attempt, {"reached": 0, "deaths": before})

    (result,) = worker(Bundle((ticket,)))["each"]

    assert (result["status"], result["reason"]) == ("failed", reason)
    assert not network.attempt.exists()
