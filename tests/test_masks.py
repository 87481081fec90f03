"""Masks: which weights are ranked, and what a mask does to a network."""

import copy

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lottery.base.errors import InputError
from lottery.pruning import masks
from lottery.pruning.state import State

relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
MASKS = st.dictionaries(
    st.sampled_from(["a/kernel", "b/kernel", "c/d/kernel"]),
    hnp.arrays(bool, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)),
    min_size=1,
)


def state(weights, statistics=None):
    return State(0, weights, statistics or {}, {})


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[path], other[path]) for path in one)


NETWORK = State(
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


def test_scope_all_ranks_biases_and_statistics_but_no_optimizer_state():
    assert list(masks.prunable(NETWORK, "all")) == sorted([*NETWORK.weights, *NETWORK.statistics])


def test_excluded_patterns_are_left_out():
    assert list(masks.prunable(NETWORK, "kernels", ["predictions/*", "Conv*"])) == ["depthwise/kernel", "expand/kernel"]


def test_included_patterns_are_taken_in_whatever_the_scope_unless_they_are_excluded_too():
    network = state(
        {"own/w": np.ones((3, 2)), "own/v": np.ones((3, 2)), "a/kernel": np.ones((3, 2))}, {"own/table": np.ones(2)}
    )

    assert list(masks.prunable(network, "kernels", (), ["own/*"])) == ["a/kernel", "own/v", "own/w"]
    assert list(masks.prunable(network, "pointwise", ["*/v"], ["own/*"])) == ["own/w"]


def test_a_scope_that_leaves_nothing_is_refused():
    with pytest.raises(InputError, match="nothing to prune"):
        masks.prunable(NETWORK, "pointwise", ["expand/*"])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(value):
    weights = {"a/kernel": np.ones(3, np.float32), "b/kernel": np.float32([1, value, 2])}

    with pytest.raises(InputError, match="b/kernel"):
        masks.prunable(state(weights), "kernels")


def test_choosing_what_to_prune_leaves_the_state_as_it_is():
    before = copy.deepcopy(NETWORK)

    masks.prunable(NETWORK, "all", ["bn/*"])

    assert list(NETWORK.weights) == list(before.weights)
    assert equal(NETWORK.weights, before.weights)
    assert equal(NETWORK.statistics, before.statistics)


@relaxed
@given(mask=MASKS, seed=st.integers(0, 2**31 - 1))
def test_shuffling_keeps_how_many_are_kept_in_each_variable(mask, seed):
    before = copy.deepcopy(mask)

    shuffled = masks.shuffle(mask, seed)

    assert equal(mask, before)
    assert {path: (kept.shape, int(kept.sum())) for path, kept in shuffled.items()} == {
        path: (kept.shape, int(kept.sum())) for path, kept in mask.items()
    }


def test_shuffling_does_not_depend_on_the_order_of_the_dictionary():
    a, b = np.arange(100) < 30, np.arange(100) < 60

    assert equal(masks.shuffle({"a": a, "b": b}, 5), masks.shuffle({"b": b, "a": a}, 5))


def test_shuffling_permutes_a_variable_as_a_whole_where_every_place_is_met():
    mask = {"a/kernel": np.arange(24).reshape(3, 2, 4) % 5 < 2, "b/kernel": np.arange(7) < 3}
    whole = {"a/kernel": np.ones((3, 1, 1), bool)}

    expected = {
        path: np.random.default_rng([9, index]).permutation(kept.ravel()).reshape(kept.shape)
        for index, (path, kept) in enumerate(mask.items())
    }
    assert equal(masks.shuffle(mask, 9), expected)
    assert equal(masks.shuffle(mask, 9, whole), expected)


def test_shuffling_leaves_alone_what_meets_only_padding():
    rng = np.random.default_rng(0)
    mask = {"a/kernel": rng.random((3, 3, 20, 1)) < 0.5, "b/kernel": rng.random((4, 5)) < 0.5}
    met = np.zeros((3, 3, 1, 1), bool)
    met[:2, 1] = True

    shuffled = masks.shuffle(mask, 1, {"a/kernel": met})

    before, after, places = mask["a/kernel"], shuffled["a/kernel"], np.broadcast_to(met, (3, 3, 20, 1))
    assert np.array_equal(before[~places], after[~places])
    assert before[places].sum() == after[places].sum()
    assert not np.array_equal(before[places], after[places])
    assert np.array_equal(shuffled["b/kernel"], masks.shuffle(mask, 1)["b/kernel"])


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


def test_a_mask_over_statistics_prunes_none_of_them():
    network = state({"a/kernel": np.ones(10)}, {"bn/moving_mean": np.ones(10)})
    mask = {"a/kernel": np.arange(10) < 4, "bn/moving_mean": np.zeros(10, bool)}

    assert list(masks.trainable_part(mask, network.weights)) == ["a/kernel"]


def test_the_whole_mask_keeps_everything():
    assert equal(masks.whole({"a/kernel": np.zeros((2, 3))}), {"a/kernel": np.ones((2, 3), bool)})
