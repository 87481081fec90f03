"""Ranking: exactly k weights go, those with the lowest scores, and nothing that is given is changed."""

import tracemalloc
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lottery.pruning import ranking

relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

TIED = st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0])

QUANTILES = st.fractions(0, 100, max_denominator=1000)
DISTINCT = st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=60, unique=True)
ANY_SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
KINDS = st.sampled_from([(np.float16, 16, 2.0**15), (np.float32, 32, 2.0**100), (np.float64, 64, 2.0**1000)])


@st.composite
def cases(draw):
    """Weights of any dtypes and shapes (scalars and empty ones too), what of them survives, how many of those go, and how
    many weights are looked at together."""
    weights, among = {}, {}
    for index in range(draw(st.integers(1, 4))):
        dtype, width, most = draw(KINDS)
        values = st.one_of(TIED, st.floats(-most, most, width=width))
        weights[f"layer_{index}/kernel"] = draw(hnp.arrays(dtype, ANY_SHAPES, elements=values))
        if draw(st.booleans()):
            among[f"layer_{index}/kernel"] = draw(hnp.arrays(bool, weights[f"layer_{index}/kernel"].shape))
    survivors = sum(int(among[path].sum()) if path in among else array.size for path, array in weights.items())
    return weights, among, draw(st.integers(0, survivors)), draw(st.integers(1, 7))


def pruned(mask):
    return sum(int(kept.size - np.count_nonzero(kept)) for kept in mask.values())


def naive_mask(weights, count, among=None):
    """Of the survivors, sorted by (score, position), drop the first `count`."""
    alive = np.concatenate([(among or {}).get(path, np.ones(array.shape, bool)).ravel() for path, array in weights.items()])
    scores = np.concatenate([array.ravel().astype(np.float64) for array in weights.values()])
    places = np.flatnonzero(alive)
    alive[places[np.argsort(scores[places], kind="stable")[:count]]] = False
    parts = np.split(alive, np.cumsum([array.size for array in weights.values()])[:-1])
    return {path: part.reshape(array.shape) for (path, array), part in zip(weights.items(), parts, strict=True)}


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[path], other[path]) for path in one)


@pytest.mark.parametrize(
    ("quantile", "count", "expected"),
    [
        ("0", 10, 0),
        ("100", 10, 9),  # the largest is never strictly below the maximum
        ("50", 10, 5),  # 4.5
        ("50", 11, 5),  # exactly 5
        ("29", 101, 29),  # exactly 29, where 0.29 * 100 is 28.999999999999996
        ("90", 1, 0),
        ("90", 0, 0),
        ("97.5", 3_538_984, 3_450_509),  # 3450508.425
    ],
)
def test_the_number_to_prune_is_the_ceiling_of_q_times_n_less_1_over_100(quantile, count, expected):
    assert ranking.pruned_count(Fraction(quantile), count) == expected


@settings(relaxed, max_examples=300)
@given(case=cases())
def test_exactly_the_lowest_survivors_go_whatever_their_dtypes_and_ties_go_by_position(case):
    weights, among, count, block = case

    ranked = ranking.rank(weights, among)
    with mock.patch.object(ranking, "_BLOCK", block):
        mask = ranked.prune(count)
        from_sorted = ranked.prune(count, sort=True)

    assert list(mask) == list(weights)
    assert {path: (kept.shape, kept.dtype) for path, kept in mask.items()} == {
        path: (array.shape, np.dtype(bool)) for path, array in weights.items()
    }
    assert equal(mask, naive_mask(weights, count, among))  # so masks are nested, and what went before stays away
    assert equal(mask, from_sorted)
    assert ranked.ascending.size == ranked.size


@relaxed
@given(case=cases())
def test_what_is_given_stays_as_it_is_and_what_is_returned_is_not_part_of_it(case):
    weights, among, count, _ = case
    given_arrays = [*weights.values(), *among.values()]
    before = [array.tobytes() for array in given_arrays]
    for array in given_arrays:
        array.flags.writeable = False

    mask = ranking.rank(weights, among).prune(count)

    for kept in mask.values():
        kept[...] = ~kept
    assert [array.tobytes() for array in given_arrays] == before


def test_weights_that_are_not_contiguous_go_by_their_c_order():
    array = np.float32([[1, 1], [1, 2], [0, 1]]).T  # read as 1 1 0, 1 2 1
    among = np.array([[True, True], [False, True], [True, True]]).T

    assert ranking.rank({"a/kernel": array}).prune(3)["a/kernel"].tolist() == [[False, False, False], [True, True, True]]
    assert ranking.rank({"a/kernel": array}, {"a/kernel": among}).prune(2)["a/kernel"].tolist() == [
        [False, False, False],
        [True, True, True],
    ]


@relaxed
@given(scores=DISTINCT, quantile=QUANTILES)
def test_without_ties_k_is_the_number_strictly_below_the_linear_quantile_of_numpy(scores, quantile):
    exact = np.array([Fraction(value) for value in scores], dtype=object)
    below = sum(value < np.quantile(exact, quantile / 100) for value in exact)

    mask = ranking.rank({"fc/kernel": np.array(scores, np.float32)}).prune(ranking.pruned_count(quantile, len(scores)))
    assert pruned(mask) == below


@relaxed
@given(case=cases(), quantile=QUANTILES)
def test_the_threshold_is_the_linear_quantile_of_numpy_over_the_survivors(case, quantile):
    weights, among, _, _ = case
    ranked = ranking.rank(weights, among)
    assume(ranked.ascending.size)
    kept = naive_mask(weights, 0, among)
    flat = np.concatenate([array[kept[path]] for path, array in weights.items()]).astype(np.float64)

    threshold = ranked.threshold(quantile)

    assert threshold == pytest.approx(np.quantile(flat, float(quantile) / 100), rel=1e-9, abs=1e-9 * np.abs(flat).max())


@pytest.mark.parametrize("tied", [False, True])
def test_ranking_takes_as_much_memory_as_the_scores_and_pruning_a_byte_each(monkeypatch, tied):
    monkeypatch.setattr(ranking, "_BLOCK", 1 << 12)
    count = 1 << 20
    weights = {"a/kernel": np.zeros(count, np.float32) if tied else np.arange(count, dtype=np.float32)[::-1].copy()}
    tracemalloc.start()

    try:
        ranked = ranking.rank(weights)
        assert ranked.ascending.size == count
        peak_of_ranking = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        held = tracemalloc.get_traced_memory()[0]
        ranked.prune(count // 2)
        peak = tracemalloc.get_traced_memory()[1] - held
    finally:
        tracemalloc.stop()

    assert peak_of_ranking < 4.2 * count
    assert peak < 1.2 * count
