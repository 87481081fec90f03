"""The figure: which densities its axis labels."""

from lottery.figure import _apart


def test_densities_that_stand_apart_are_all_labelled():
    assert _apart([0.5, 0.3, 0.2, 0.1, 0.05]) == [0.05, 0.1, 0.2, 0.3, 0.5]


def test_of_crowded_densities_the_sparse_ones_are_labelled():
    assert _apart([0.01, 0.02, 0.022, 0.024, 0.026, 0.03]) == [0.01, 0.02, 0.026]
