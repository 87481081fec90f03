"""Attempts that nobody came out of alive are counted, as long as they come no further."""

import contextlib
from types import SimpleNamespace

import pytest

from lottery.base import files
from lottery.base.preemption import Preempted
from lottery.base.progress import Reporter
from lottery.experiment.graph import Bundle
from lottery.experiment.plan import Plan
from lottery.experiment.recipe import Recipe
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


def test_a_trial_comes_further_with_each_network_that_is_done_in_its_folder(network):
    dies(network)
    dies(network)
    (network.folder / "run/replicate-1/train").mkdir(parents=True)
    NetworkFiles(network.folder / "run/replicate-1/train").result.write_bytes(b"done")

    assert [dies(network), dies(network)] == [0, 1]


def test_who_died_beside_others_is_tried_alone_before_it_counts(network):
    def dies_beside_others():
        KILLED.append(attempts.noted(network, alone=False))
        return KILLED[-1].__enter__()

    assert (dies_beside_others(), attempts.must_be_alone(network)) == (0, False)
    network.checkpoint.write_bytes(b"of a bundle")
    assert (dies_beside_others(), dies_beside_others(), attempts.must_be_alone(network)) == (0, 1, True)

    assert dies(network) == 0
    assert not network.checkpoint.exists()  # which only a bundle can go on from
    assert attempts.must_be_alone(network)
    network.checkpoint.write_bytes(b"of its own")
    assert [dies(network), dies(network), dies(network)] == [0, 1, 2]
    assert network.checkpoint.exists()


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """One that only says that it tried each network."""
    from lottery.stages.tickets import TicketWorker

    run = Run(tmp_path, Recipe())
    worker = TicketWorker.__new__(TicketWorker)
    worker.run, worker.planned, worker.trainer = run, Plan(run.recipe, 45), SimpleNamespace(origins={})
    worker.reporter = Reporter(quiet=True)
    monkeypatch.setattr(TicketWorker, "_train", lambda self, trainer, reporter, *made_from: self._failed(*made_from, "tried"))
    return worker


def test_the_networks_of_a_bundle_whose_process_died_twice_are_trained_one_by_one(worker):
    """Only the one that kills its process alone, too, is set aside."""
    tickets = worker.planned.tickets([1], worker.run.recipe.families)[:3]
    networks = [worker.run.network(ticket) for ticket in tickets]
    for network in networks:
        files.write_json(network.attempt, {"reached": 0, "deaths": 1, "alone": False})

    def reasons():
        return [outcome["reason"] for outcome in worker(Bundle(tuple(tickets), 3, (0, 1, 2)))["each"]]

    assert reasons() == ["tried"] * 3
    files.write_json(networks[1].attempt, {"reached": 0, "deaths": 1, "alone": True})
    assert reasons() == ["tried", attempts.KILLS, "tried"]


@pytest.mark.parametrize(("before", "reason"), [(0, "tried"), (1, attempts.KILLS)])
def test_a_network_that_killed_two_attempts_in_a_row_is_set_aside_and_one_that_killed_one_is_tried(worker, before, reason):
    told, ticket = [], worker.planned.tickets([1], worker.run.recipe.families)[0]
    network = worker.run.network(ticket)
    files.write_json(network.attempt, {"reached": 0, "deaths": before})
    worker.reporter.beat = told.append

    (result,) = worker(Bundle((ticket,)))["each"]

    assert (result["status"], result["reason"]) == ("failed", reason)
    assert told == [True]  # that it is saved
    assert not network.attempt.exists()
