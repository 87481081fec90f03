"""Verdicts on numbers worked out by hand: t(0.95) is 2.919986 with 2 degrees of freedom, 2.353363 with 3."""

import math

import numpy as np
import pytest

from lottery.results import verdicts

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


@pytest.mark.parametrize("differences", [[], [0.01], [0.01] * 4, [0.903 - 0.9, 0.913 - 0.91, 0.923 - 0.92]])
def test_without_a_spread_bounds_are_infinite(differences):
    assert verdicts.bounds(differences) == (-math.inf, math.inf)
    assert math.isnan(verdicts.deviation(differences))


def test_many_samples_are_judged_as_each_would_be():
    samples = np.random.default_rng(0).normal(-0.001, 0.002, (500, 4))

    found = verdicts.judged(samples, DELTA)

    assert found.tolist() == [verdicts.judged(sample, DELTA) for sample in samples]
    assert set(found) == {"matching", "not matching", "undecided"}
    assert verdicts.deviation(samples) == pytest.approx(samples.std(axis=1, ddof=1))


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
        ([0.0, 0.0, 0.0], "undecided"),  # without a spread nothing says how far the mean may be off
        ([-0.01, -0.01, -0.01], "undecided"),
        ([0.903 - 0.9, 0.913 - 0.91, 0.923 - 0.92], "undecided"),  # the same but for rounding
        ([0.01, 0.01], "undecided"),
        ([-0.5, -0.5], "undecided"),
        ([0.01], "undecided"),
        ([], "undecided"),
    ],
)
def test_verdicts(differences, verdict):
    assert verdicts.judged(differences, DELTA) == verdict


def test_exactly_delta_below_is_undecided():
    assert verdicts.judged([-0.375, -0.25, -0.125], 0.25) == "undecided"


def test_a_wider_delta_lets_more_match():
    differences = [-0.0015, -0.0005, 0.0005]

    assert verdicts.judged(differences, 0.002) == "undecided"
    assert verdicts.judged(differences, 0.003) == "matching"


# For a ticket exactly as good as dense, by the standard deviation of paired differences in points; a delta of 0.2 points.
@pytest.mark.parametrize(("spread", "of_three", "needed"), [(0.1, 0.71, 4), (0.2, 0.32, 8), (0.3, 0.20, 16), (0.5, 0.13, 41)])
def test_the_power_of_three_replicates_and_how_many_have_80_per_cent(spread, of_three, needed):
    assert verdicts.power(3, spread, 0.2) == pytest.approx(of_three, abs=0.005)
    assert verdicts.replicates_needed(spread, 0.2) == needed
    assert verdicts.power(needed, spread, 0.2) >= 0.8 > verdicts.power(needed - 1, spread, 0.2)


@pytest.mark.parametrize(("replicates", "spread"), [(3, 0.2), (7, 0.2), (20, 0.5)])
def test_power_is_how_often_samples_of_a_ticket_as_good_are_called_matching(replicates, spread):
    samples = np.random.default_rng(1).normal(0, spread, (20_000, replicates))

    simulated = np.mean(verdicts.judged(samples, 0.2) == "matching")

    assert simulated == pytest.approx(verdicts.power(replicates, spread, 0.2), abs=0.012)


def test_of_fewer_than_three_replicates_there_is_no_power_and_of_hardly_any_spread_three_are_enough():
    assert verdicts.power(2, 0.01, 0.2) == 0
    assert verdicts.power(3, 1e-9, 0.2) == 1
    assert verdicts.replicates_needed(1e-9, 0.2) == 3


@pytest.mark.parametrize(("spread", "delta"), [(0.1, 0.0), (1.0, 0.001)])
def test_replicates_beyond_a_million_are_not_counted(spread, delta):
    assert verdicts.replicates_needed(spread, delta) is None


@pytest.mark.parametrize("most", [3, 5, 20])
def test_all_looks_together_err_in_five_per_cent_of_cases(most):
    confidence = verdicts.confidence_of_looks(most)
    samples = np.random.default_rng(3).normal(-0.2, 0.1, (4000, most))
    found = verdicts.first_verdicts(samples, 0.2, confidence)[0].tolist()

    assert found.count("matching") / 4000 == pytest.approx(0.05, abs=0.012)
    assert found.count("not matching") / 4000 == pytest.approx(0.05, abs=0.012)


def test_more_looks_have_wider_bounds_and_a_single_one_those_of_reports():
    levels = [verdicts.confidence_of_looks(most) for most in (1, 2, 3, 5, 10)]

    assert levels[:3] == pytest.approx([0.95, 0.95, 0.95], abs=0.003)
    assert levels == sorted(levels)
    assert verdicts.confidence_of_looks(10, error=0.01) > levels[-1]


def test_the_first_verdict_stands_and_says_after_how_many_replicates():
    good, bad = [0.01, 0.02, 0.015], [-0.3, -0.31, -0.29]

    assert verdicts.first_verdicts([*good, *bad], 0.2, 0.99) == ("matching", 3)
    assert verdicts.first_verdicts([*bad, *good], 0.2, 0.99) == ("not matching", 3)
    assert verdicts.first_verdicts([0.3, -0.9, 0.1, -0.2], 0.2, 0.95) == ("undecided", 4)
    assert verdicts.first_verdicts([], 0.2, 0.95) == ("undecided", 0)
    both, counts = verdicts.first_verdicts([[*good, *bad], [*bad, *good]], 0.2, 0.99)
    assert (both.tolist(), counts.tolist()) == (["matching", "not matching"], [3, 3])
