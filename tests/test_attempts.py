"""Attempts that nobody came out of alive are counted, as long as they come no further."""

import contextlib

import pytest

from lottery import attempts
from lottery.preemption import Preempted
from lottery.run import Network


@pytest.fixture
def network(tmp_path):
    return Network(tmp_path)


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
