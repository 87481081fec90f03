"""The line between two networks: exact at its ends, and barriers that are known in closed form."""

import numpy as np
import pytest

from lottery.pruning import interpolation
from lottery.pruning.state import State


def network(*weights, statistics=(), **averages):
    optimizer = {f"ema/{path}": np.asarray(value, np.float32) for path, value in averages.items()}
    return State(5, {"a": np.array(weights, np.float32)}, {"b": np.array(statistics, np.float32)}, optimizer)


def along(one, other, error, points=31):
    return interpolation.along(one, other, lambda state: float(error(state.weights["a"].astype(float))), points)


def test_a_bowl_has_no_barrier_and_a_hill_has_the_one_of_the_formula():
    def hill(w):
        return 1 - (w**2).sum() / 8

    ends = network(2, 0), network(-2, 0)

    assert interpolation.instability(along(*ends, lambda w: (w**2).sum())) == 0  # the highest errors are at the ends
    assert interpolation.instability(along(*ends, hill)) == pytest.approx(0.5)  # 1 in the middle, 0.5 at both ends
    # Of unequal ends: E = 1 - w² / 8 from w = 2 (0.5) to w = -1 (0.875) has 1 at w = 0, two thirds of the way.
    assert interpolation.instability(along(network(2), network(-1), hill)) == pytest.approx(1 - (0.5 + 0.875) / 2)


def test_the_ends_are_exact_and_so_is_the_line_between_equal_networks():
    rng = np.random.default_rng(0)
    one, other = (network(*rng.normal(size=1000), statistics=rng.uniform(1e-9, 1e9, 50)) for _ in range(2))

    for share, end in ((0.0, one), (1.0, other)):
        found = interpolation.between(one, other, share)
        assert found.weights["a"].tobytes() == end.weights["a"].tobytes()
        assert found.statistics["b"].tobytes() == end.statistics["b"].tobytes()
        assert (found.optimizer, found.weights["a"].dtype) == ({}, np.float32)
    for share in interpolation.shares():
        assert interpolation.between(one, one, share).weights["a"].tobytes() == one.weights["a"].tobytes()
    middle = interpolation.between(one, other, 0.25).weights["a"]
    np.testing.assert_allclose(middle, 0.75 * one.weights["a"] + 0.25 * other.weights["a"], rtol=1e-5, atol=1e-6)


def test_a_line_has_thirty_points_from_end_to_end():
    found = interpolation.shares()

    assert (len(found), found[0], found[-1]) == (30, 0.0, 1.0)
    np.testing.assert_allclose(np.diff(found), 1 / 29)


def test_networks_with_running_averages_are_interpolated_as_they_are_evaluated():
    assert along(network(1, a=[3.0]), network(1, a=[5.0]), lambda w: w[0], points=3) == [3, 4, 5]


def test_distances_are_euclidean_and_angles_are_between_the_ways_from_the_start():
    found = interpolation.distances(network(1, 1), network(4, 1), network(1, 5))

    assert found == pytest.approx((5, 3, 4, 90))
    assert interpolation.distances(network(1, 1), network(1, 1), network(1, 5)).angle is None
    assert interpolation.distances(network(0, 0), network(1, 1), network(2, 2)).angle == pytest.approx(0, abs=1e-5)
