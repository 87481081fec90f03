"""Verdicts on numbers worked out by hand: t(0.95) is 2.919986 with 2 degrees of freedom, 2.353363 with 3."""

import math

import pytest

from lottery import verdicts

DELTA = 0.002


def test_bounds_are_students_t():
    low, high = verdicts.bounds([0.001, 0.002, 0.003])

    margin = 2.919986 * 0.001 / math.sqrt(3)
    assert low == pytest.approx(0.002 - margin, rel=1e-6)
    assert high == pytest.approx(0.002 + margin, rel=1e-6)


def test_bounds_narrow_with_more_replicates():
    low, high = verdicts.bounds([0, 0, 2, 2])

    margin = 2.353363 * math.sqrt(4 / 3) / 2
    assert (low, high) == (pytest.approx(1 - margin, rel=1e-6), pytest.approx(1 + margin, rel=1e-6))


@pytest.mark.parametrize(("differences", "t"), [([1, 3], 12.706205), ([1, 2, 3], 4.302653), ([0, 0, 2, 2], 3.182446)])
def test_at_another_confidence_the_bounds_are_those_of_a_two_sided_interval(differences, t):
    spread = {2: math.sqrt(2), 3: 1, 4: math.sqrt(4 / 3)}[len(differences)]

    low, high = verdicts.bounds(differences, 0.975)

    assert (high - low) / 2 == pytest.approx(t * spread / math.sqrt(len(differences)), rel=1e-6)
    assert (high + low) / 2 == pytest.approx(sum(differences) / len(differences))


@pytest.mark.parametrize("differences", [[], [0.01]])
def test_bounds_of_fewer_than_two_are_infinite(differences):
    assert verdicts.bounds(differences) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.001, 0.002, 0.003], "matching"),  # lower bound +0.03 points
        ([-0.001, 0.0, 0.001], "matching"),  # lower bound -0.169 points
        ([-0.0015, -0.0005, 0.0005], "undecided"),  # lower bound -0.219, upper +0.119 points
        ([-0.01, -0.011, -0.012], "not matching"),  # upper bound -0.93 points
        ([-0.005, -0.004, -0.003], "not matching"),  # upper bound -0.231 points
        ([-0.0045, -0.0035, -0.0025], "undecided"),  # upper bound -0.181 points
        ([-0.01, 0.0, 0.01], "undecided"),
        ([0.0, 0.0, 0.0], "matching"),
        ([-0.01, -0.01, -0.01], "not matching"),
        ([0.01, 0.01], "undecided"),
        ([-0.5, -0.5], "undecided"),
        ([0.01], "undecided"),
        ([], "undecided"),
    ],
)
def test_verdicts(differences, verdict):
    assert verdicts.judge(differences, DELTA) == verdict


def test_exactly_delta_below_is_undecided():
    assert verdicts.judge([-0.25, -0.25, -0.25], 0.25) == "undecided"


def test_a_wider_delta_lets_more_match():
    differences = [-0.0015, -0.0005, 0.0005]

    assert verdicts.judge(differences, 0.002) == "undecided"
    assert verdicts.judge(differences, 0.003) == "matching"
