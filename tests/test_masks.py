"""Masks: exactly k weights go, the smallest ones, and nothing that is given is changed."""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from data_prep.errors import InputError
from lottery import masks, store

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4)
TIED = st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0])
ANY = st.floats(-(2.0**100), 2.0**100, width=32)
WEIGHTS = st.lists(hnp.arrays(np.float32, SHAPES, elements=st.one_of(TIED, ANY)), min_size=1, max_size=4).map(
    lambda arrays: {f"layer_{index}/kernel": array for index, array in enumerate(arrays)}
)
QUANTILES = st.fractions(0, 100, max_denominator=1000)
DISTINCT = st.lists(st.integers(1, 2**20), min_size=1, max_size=60, unique=True)
MASKS = st.dictionaries(
    st.sampled_from(["a/kernel", "b/kernel", "c/d/kernel"]),
    hnp.arrays(bool, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)),
    min_size=1,
)


def pruned(mask):
    return sum(int(kept.size - np.count_nonzero(kept)) for kept in mask.values())


def state(weights, statistics=None):
    return store.State(0, weights, statistics or {}, {})


def naive_mask(weights, count):
    """Sort (|w|, position) pairs and drop the first `count`."""
    flat = [abs(float(value)) for array in weights.values() for value in array.ravel()]
    dropped = set(sorted(range(len(flat)), key=lambda place: (flat[place], place))[:count])
    kept = iter([place not in dropped for place in range(len(flat))])
    return {
        path: np.array([next(kept) for _ in range(array.size)], bool).reshape(array.shape) for path, array in weights.items()
    }


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[path], other[path]) for path in one)


@pytest.mark.parametrize(
    ("quantile", "count", "expected"),
    [
        ("0", 10, 0),
        ("100", 10, 9),  # the largest is never strictly below the maximum
        ("50", 10, 5),  # 4.5
        ("50", 11, 5),  # exactly 5
        ("60", 101, 60),  # exactly 60, where 0.6 * 100 is 60.0
        ("29", 101, 29),  # exactly 29, where 0.29 * 100 is 28.999999999999996
        ("55", 101, 55),  # exactly 55, where 0.55 * 100 is 55.00000000000001
        ("0.001", 10, 1),
        ("90", 1, 0),
        ("90", 0, 0),
        ("97.5", 3_538_984, 3_450_509),  # 3450508.425
    ],
)
def test_the_number_to_prune_is_the_ceiling_of_q_times_n_less_1_over_100(quantile, count, expected):
    assert masks.pruned_count(Fraction(quantile), count) == expected


@relaxed
@given(weights=WEIGHTS, quantile=QUANTILES)
def test_exactly_k_are_pruned_whatever_the_weights(weights, quantile):
    count = sum(array.size for array in weights.values())

    mask = masks.rank(weights).mask(quantile)

    assert pruned(mask) == math.ceil(quantile * (count - 1) / 100)
    assert {path: kept.shape for path, kept in mask.items()} == {path: array.shape for path, array in weights.items()}
    assert all(kept.dtype == bool for kept in mask.values())


@relaxed
@given(weights=WEIGHTS, quantile=QUANTILES)
def test_the_smallest_go_and_ties_go_by_position(weights, quantile):
    count = sum(array.size for array in weights.values())

    mask = masks.rank(weights).mask(quantile)

    assert equal(mask, naive_mask(weights, masks.pruned_count(quantile, count)))


@relaxed
@given(weights=WEIGHTS, quantile=QUANTILES)
def test_layerwise_prunes_the_k_smallest_of_each_variable(weights, quantile):
    mask = masks.rank(weights, layerwise=True).mask(quantile)

    for path, array in weights.items():
        k = math.ceil(quantile * (array.size - 1) / 100)
        assert equal({path: mask[path]}, naive_mask({path: array}, k))


@relaxed
@given(weights=WEIGHTS, quantiles=st.tuples(QUANTILES, QUANTILES), layerwise=st.booleans())
def test_what_a_quantile_prunes_a_higher_one_prunes_too(weights, quantiles, layerwise):
    ranking = masks.rank(weights, layerwise)
    dense, sparse = (ranking.mask(quantile) for quantile in sorted(quantiles))

    assert all((sparse[path] <= dense[path]).all() for path in weights)


@relaxed
@given(magnitudes=DISTINCT, signs=st.integers(0, 2**60), quantile=QUANTILES)
def test_without_ties_k_is_the_number_strictly_below_the_linear_quantile_of_numpy(magnitudes, signs, quantile):
    weights = np.array([value * (-1) ** (signs >> place & 1) for place, value in enumerate(magnitudes)], np.float32)
    exact = np.array([Fraction(value) for value in magnitudes], dtype=object)
    below = sum(value < np.quantile(exact, quantile / 100) for value in exact)

    assert pruned(masks.rank({"fc/kernel": weights}).mask(quantile)) == below


@relaxed
@given(weights=WEIGHTS, quantile=QUANTILES, layerwise=st.booleans())
def test_the_threshold_is_the_linear_quantile_of_numpy(weights, quantile, layerwise):
    flat = np.abs(np.concatenate([array.ravel() for array in weights.values()]).astype(np.float64))

    threshold = masks.rank(weights, layerwise).threshold(quantile)

    assert threshold == pytest.approx(np.quantile(flat, float(quantile) / 100), rel=1e-9, abs=1e-9 * flat.max())


@relaxed
@given(weights=WEIGHTS, quantile=QUANTILES, layerwise=st.booleans())
def test_ranking_leaves_the_weights_as_they_are(weights, quantile, layerwise):
    before = {path: array.tobytes() for path, array in weights.items()}
    for array in weights.values():
        array.flags.writeable = False

    masks.rank(weights, layerwise).mask(quantile)

    assert {path: array.tobytes() for path, array in weights.items()} == before


def test_a_hand_made_network_is_pruned_over_all_layers_together():
    weights = {"a/kernel": np.float32([[0.1, -0.4], [0.2, 0.9]]), "b/kernel": np.float32([-0.3, 0.2, 0.8])}
    ranking = masks.rank(weights)  # 0.1 0.2 0.2 0.3 0.4 0.8 0.9

    half = ranking.mask(Fraction(50))  # k = ceil(0.5 * 6) = 3
    third = ranking.mask(Fraction(25))  # k = ceil(1.5) = 2: of the tied 0.2 the earlier goes

    assert half["a/kernel"].tolist() == [[False, True], [False, True]]
    assert half["b/kernel"].tolist() == [True, False, True]
    assert third["a/kernel"].tolist() == [[False, True], [False, True]]
    assert third["b/kernel"].tolist() == [True, True, True]
    assert ranking.threshold(Fraction(50)) == pytest.approx(0.3)
    assert ranking.threshold(Fraction(75)) == pytest.approx(0.6)  # halfway from 0.4 to 0.8


def test_a_hand_made_network_is_pruned_layer_by_layer():
    weights = {"a/kernel": np.float32([[5, -4], [3, 2]]), "b/kernel": np.float32([1, 0.5, 0.25])}

    mask = masks.rank(weights, layerwise=True).mask(Fraction(50))  # k = ceil(1.5) = 2, and ceil(1) = 1

    assert mask["a/kernel"].tolist() == [[True, True], [False, False]]
    assert mask["b/kernel"].tolist() == [True, True, False]


def test_equal_weights_go_in_the_order_of_their_positions():
    mask = masks.rank({"a/kernel": np.ones(3, np.float32), "b/kernel": -np.ones(2, np.float32)}).mask(Fraction(90))

    assert mask["a/kernel"].tolist() == [False, False, False]  # k = ceil(3.6) = 4
    assert mask["b/kernel"].tolist() == [False, True]


def test_negative_zeros_tie_with_zeros():
    mask = masks.rank({"a/kernel": np.float32([0.0, -0.0, 0.0, 1.0])}).mask(Fraction(50))  # k = ceil(1.5) = 2

    assert mask["a/kernel"].tolist() == [False, False, True, True]


def test_a_single_weight_is_never_pruned():
    ranking = masks.rank({"a/kernel": np.float32([0.0])})

    assert ranking.mask(Fraction(100))["a/kernel"].tolist() == [True]
    assert ranking.threshold(Fraction(100)) == 0


def test_magnitudes_are_reported_in_order_as_float64():
    ranking = masks.rank({"a/kernel": np.float32([-3, 1]), "b/kernel": np.float32([2])})

    assert ranking.magnitudes.dtype == np.float64
    assert ranking.magnitudes.tolist() == [1, 2, 3]


NETWORK = store.State(
    0,
    {
        "Conv1/kernel": np.ones((3, 3, 3, 2), np.float32),
        "expand/kernel": np.ones((1, 1, 2, 4), np.float32),
        "depthwise/kernel": np.ones((3, 3, 4, 1), np.float32),
        "bn/gamma": np.ones(4, np.float32),
        "predictions/kernel": np.ones((4, 3), np.float32),
        "predictions/bias": np.ones(3, np.float32),
    },
    {"bn/moving_mean": np.ones(4, np.float32)},
    {"m/Conv1/kernel": np.ones((3, 3, 3, 2), np.float32)},
)
KERNELS = ["Conv1/kernel", "depthwise/kernel", "expand/kernel", "predictions/kernel"]


def test_scope_kernels_ranks_every_kernel_in_the_order_of_paths():
    assert list(masks.prunable(NETWORK, "kernels")) == KERNELS


def test_scope_pointwise_ranks_1x1_convolutions_alone():
    assert list(masks.prunable(NETWORK, "pointwise")) == ["expand/kernel"]


def test_scope_all_ranks_biases_and_statistics_but_no_slots():
    assert list(masks.prunable(NETWORK, "all")) == sorted([*NETWORK.weights, *NETWORK.statistics])


def test_depthwise_kernels_of_keras_are_kernels():
    network = state({"dw/depthwise_kernel": np.ones((3, 3, 4, 1)), "dw/bias": np.ones(4)})

    assert list(masks.prunable(network, "kernels")) == ["dw/depthwise_kernel"]


def test_excluded_patterns_are_left_out():
    assert list(masks.prunable(NETWORK, "kernels", ["predictions/*", "Conv*"])) == ["depthwise/kernel", "expand/kernel"]


def test_excluded_patterns_heed_the_case_of_a_path():
    assert list(masks.prunable(NETWORK, "kernels", ["PREDICTIONS/*"])) == KERNELS


def test_a_scope_that_leaves_nothing_is_refused():
    with pytest.raises(InputError, match="nothing to prune"):
        masks.prunable(NETWORK, "pointwise", ["expand/*"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(value):
    weights = {"a/kernel": np.ones(3, np.float32), "b/kernel": np.float32([1, value, 2])}

    with pytest.raises(InputError, match="b/kernel"):
        masks.prunable(state(weights), "kernels")


def test_a_diverged_variable_outside_the_scope_is_no_hindrance():
    weights = {"a/kernel": np.ones(3, np.float32), "a/bias": np.float32([np.nan])}

    assert list(masks.prunable(state(weights), "kernels")) == ["a/kernel"]


def test_choosing_what_to_prune_leaves_the_state_as_it_is():
    before = copy.deepcopy(NETWORK)

    masks.prunable(NETWORK, "all", ["bn/*"])

    assert list(NETWORK.weights) == list(before.weights)
    assert equal(NETWORK.weights, before.weights)
    assert equal(NETWORK.statistics, before.statistics)


@relaxed
@given(mask=MASKS)
def test_a_mask_of_any_shape_comes_back_as_it_was_packed(tmp_path, mask):
    masks.save(tmp_path / "q90.h5", mask, {"quantile": "90", "step": 0})

    loaded = masks.load(tmp_path / "q90.h5")

    assert equal(loaded, mask)
    assert all(kept.dtype == bool and kept.shape == mask[path].shape for path, kept in loaded.items())


def test_masks_are_stored_one_bit_a_weight_first_weight_highest(tmp_path):
    mask = {"a/kernel": np.array([[1, 0, 0, 0, 0], [0, 0, 1, 1, 1]], bool)}

    masks.save(tmp_path / "q90.h5", mask, {})

    groups, _ = store.load(tmp_path / "q90.h5")
    assert groups["bits"]["a/kernel"].tolist() == [0b10000001, 0b11000000]
    assert groups["shape"]["a/kernel"].tolist() == [2, 5]


@relaxed
@given(mask=MASKS, seed=st.integers(0, 2**31 - 1))
def test_shuffling_keeps_how_many_are_kept_in_each_variable(mask, seed):
    before = copy.deepcopy(mask)

    shuffled = masks.shuffle(mask, seed)

    assert equal(mask, before)
    assert {path: (kept.shape, int(kept.sum())) for path, kept in shuffled.items()} == {
        path: (kept.shape, int(kept.sum())) for path, kept in mask.items()
    }


def test_shuffling_is_a_function_of_the_seed():
    kept = np.arange(1000).reshape(10, 100) < 300
    mask = {"a/kernel": kept, "b/kernel": kept}

    one, again, other = (masks.shuffle(mask, seed) for seed in (1, 1, 2))

    assert equal(one, again)
    assert not np.array_equal(one["a/kernel"], other["a/kernel"])
    assert not np.array_equal(one["a/kernel"], mask["a/kernel"])
    assert not np.array_equal(one["a/kernel"], one["b/kernel"])


def test_shuffling_does_not_depend_on_the_order_of_the_dictionary():
    a, b = np.arange(100) < 30, np.arange(100) < 60

    assert equal(masks.shuffle({"a": a, "b": b}, 5), masks.shuffle({"b": b, "a": a}, 5))


def test_pruned_weights_become_positive_zeros_whatever_they_were():
    arrays = {"a/kernel": np.float32([np.nan, np.inf, -1, -0.0, 2]), "a/bias": np.float32([7])}
    mask = {"a/kernel": np.array([False, False, False, False, True])}

    applied = masks.apply(mask, arrays)

    assert applied["a/kernel"].tobytes() == np.float32([0, 0, 0, 0, 2]).tobytes()
    assert applied["a/bias"].tolist() == [7]
    assert np.isnan(arrays["a/kernel"][0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_applying_a_mask_keeps_the_dtype(dtype):
    assert masks.apply({"a": np.array([True, False])}, {"a": np.ones(2, dtype)})["a"].dtype == dtype


def test_kept_weights_keep_their_bits():
    arrays = {"a/kernel": np.float32([-0.0, np.nan, 1e-45])}

    applied = masks.apply({"a/kernel": np.ones(3, bool)}, arrays)

    assert applied["a/kernel"].tobytes() == arrays["a/kernel"].tobytes()


def test_densities_are_over_prunable_trainable_and_all_weights():
    network = state({"a/kernel": np.ones((2, 5)), "a/bias": np.ones(10)}, {"bn/moving_mean": np.ones(20)})
    kept = np.ones((2, 5), bool)
    kept[0] = False

    density = masks.density({"a/kernel": kept}, network)

    assert density == masks.Density(prunable=0.5, trainable=0.75, total=0.875)


def test_a_mask_over_statistics_prunes_none_of_them():
    network = state({"a/kernel": np.ones(10)}, {"bn/moving_mean": np.ones(10)})
    mask = {"a/kernel": np.arange(10) < 4, "bn/moving_mean": np.zeros(10, bool)}

    assert list(masks.trainable_part(mask, network.weights)) == ["a/kernel"]
    assert masks.density(mask, network) == masks.Density(prunable=0.4, trainable=0.4, total=0.7)


def test_a_layer_of_which_nothing_is_left_is_named():
    mask = {"a/kernel": np.zeros(3, bool), "b/kernel": np.array([False, True]), "c/kernel": np.zeros((0, 2), bool)}

    assert masks.collapsed(mask) == ["a/kernel"]
