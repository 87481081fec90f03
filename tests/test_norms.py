from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lottery.pruning import norms

WEIGHTS = {"a/kernel": np.array([[0.0, -3.0], [4.0, 0.0]], np.float32), "b/kernel": np.array([1.0, -0.1], np.float32)}


def test_a_row_for_each_variable_and_one_for_all():
    first, second, last = norms.table(WEIGHTS, {"half": Fraction(50), "all": Fraction(100)})

    known = {"path": "a/kernel", "count": 4, "zeros": 2, "min": 0.0, "max": 4.0, "mean": 7 / 4, "norm": 5.0}
    assert first | known == first
    assert first["quantiles"] == {"half": 1.5, "all": 4.0}
    assert second["min"] == pytest.approx(0.1)
    assert (last["path"], last["count"], last["zeros"]) == ("in all", 6, 2)
    assert last["norm"] == pytest.approx(np.sqrt(25 + 1.01))


def test_histograms_share_their_bins_and_leave_zeros_out(monkeypatch):
    monkeypatch.setattr(norms, "BINS", 4)
    rows = norms.table(WEIGHTS, {})

    assert {(row["low"], row["high"]) for row in rows} == {(rows[0]["low"], rows[0]["high"])}
    assert [row["histogram"] for row in rows] == [[0, 0, 0, 2], [1, 0, 1, 0], [1, 0, 1, 2]]


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_equal_weights_have_a_histogram_too(value):
    (row, _) = norms.table({"a": np.full(5, value)}, {"half": Fraction(50)})

    assert sum(row["histogram"]) == (5 if value else 0)
    assert row["low"] < row["high"]
    assert row["quantiles"] == {"half": value}


@given(arrays.arrays(np.float64, st.integers(1, 50), elements=st.floats(-1e6, 1e6, allow_subnormal=False)))
def test_quantiles_are_those_of_numpy(values):
    quantiles = {str(per_cent): Fraction(per_cent) for per_cent in (0, 12.5, 50, 99, 100)}

    _, row = norms.table({"a": values}, quantiles)

    expected = np.quantile(np.abs(values), [float(quantile) / 100 for quantile in quantiles.values()])
    np.testing.assert_allclose(list(row["quantiles"].values()), expected)
    assert sum(row["histogram"]) == np.count_nonzero(values)


@pytest.mark.parametrize("weights", [{}, {"a": np.empty(0)}])
def test_no_weights_are_refused(weights):
    with pytest.raises(ValueError, match="no weights"):
        norms.table(weights, {})


def test_movements_are_shares_of_the_first_norm():
    first = {"a": np.array([3.0, 4.0]), "b": np.array([0.0])}
    now = {"a": np.array([3.0, 5.0]), "b": np.array([2.0])}

    moved = norms.movements(7, now, first)

    assert [(row["path"], row["step"]) for row in moved] == [("a", 7), ("b", 7), ("in all", 7)]
    assert [row["moved"] for row in moved] == [pytest.approx(0.2), None, pytest.approx(np.sqrt(5) / 5)]
    assert [row["norm"] for row in moved] == [pytest.approx(np.sqrt(34)), 2.0, pytest.approx(np.sqrt(38))]
    assert moved[2]["mean"] == pytest.approx(10 / 3)


def test_paths_are_in_the_order_of_their_layers_and_behind_them_as_one_reads_them():
    paths = ["block_10/kernel", "block_2/kernel", "out/bias", "in/kernel", "out/kernel"]

    assert norms.in_order(paths) == ["block_2/kernel", "block_10/kernel", "in/kernel", "out/bias", "out/kernel"]
    assert norms.in_order(paths, ["in", "elsewhere", "out"]) == [
        *("in/kernel", "out/bias", "out/kernel"),
        *("block_2/kernel", "block_10/kernel"),
    ]
