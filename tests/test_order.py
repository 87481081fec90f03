"""Orders and draws: functions of (seed, epoch), each image once an epoch, window by window."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.records import BLOCK
from lottery.engine import order
from lottery.experiment.recipe import Data

BLOCK_SIZES = st.lists(st.integers(1, BLOCK), min_size=1, max_size=40).map(np.array)
MIXED = st.integers(1, 12 * BLOCK)
SEEDS = st.integers(0, 2**32 - 1)
EVEN = np.full(40, BLOCK)


def block_of(sizes, indices):
    return np.searchsorted(np.cumsum(sizes), indices, side="right")


def stretches(wanted):
    """Each window with the indices that are fed from it."""
    start = 0
    for window in wanted.windows:
        yield window, wanted.indices[start : window.end]
        start = window.end


@given(BLOCK_SIZES, MIXED, SEEDS, st.integers(0, 5))
def test_an_epoch_has_every_image_once(sizes, mixed, seed, epoch):
    wanted = order.shuffled(sizes, mixed, seed, epoch)

    assert wanted.indices.dtype == np.int32
    np.testing.assert_array_equal(np.sort(wanted.indices), np.arange(sizes.sum()))


@given(BLOCK_SIZES, MIXED, SEEDS)
def test_the_windows_of_an_epoch_divide_it_and_hold_what_is_fed_from_them(sizes, mixed, seed):
    wanted = order.shuffled(sizes, mixed, seed, 0)

    assert wanted.windows[-1].end == sizes.sum()
    np.testing.assert_array_equal(np.sort(np.concatenate([window.blocks for window in wanted.windows])), np.arange(len(sizes)))
    for window, indices in stretches(wanted):
        assert set(block_of(sizes, indices)) == set(window.blocks)
        assert len(indices) == sizes[window.blocks].sum()


def test_the_images_of_a_window_come_from_everywhere_and_are_mixed():
    wanted = order.shuffled(EVEN, 5 * BLOCK, 0, 0)

    assert len(wanted.windows) == 8
    for _, indices in stretches(wanted):
        assert np.ptp(block_of(EVEN, indices)) > 10
        assert (np.diff(block_of(EVEN, indices)) != 0).mean() > 0.7


@pytest.mark.parametrize("mixed", [5 * BLOCK, 40 * BLOCK])
def test_an_epoch_is_a_function_of_its_seed_and_number(mixed):
    first, again, later, other = (order.shuffled(EVEN, mixed, *key).indices for key in ((1, 0), (1, 0), (1, 1), (2, 0)))

    np.testing.assert_array_equal(first, again)
    assert (first != later).mean() > 0.99
    assert (first != other).mean() > 0.99


@pytest.mark.parametrize("sizes", [[48], [250, 7, 250, 250, 1]])
def test_a_set_that_fits_one_window_is_permuted_as_a_whole(sizes):
    count = sum(sizes)
    wanted = order.shuffled(np.array(sizes), count, 7, 3)

    np.testing.assert_array_equal(wanted.indices, np.random.default_rng([7, 3, 0]).permutation(count))
    assert [window.end for window in wanted.windows] == [count]


@given(BLOCK_SIZES, MIXED, st.data())
def test_a_cut_order_begins_like_the_whole_and_needs_no_later_window(sizes, mixed, drawn):
    whole = order.shuffled(sizes, mixed, 0, 0)
    count = drawn.draw(st.integers(1, int(sizes.sum())))
    cut = whole.cut(count)

    np.testing.assert_array_equal(cut.indices, whole.indices[:count])
    assert cut.windows == whole.windows[: len(cut.windows)]
    assert cut.windows[-1].end >= count
    assert all(window.end < count for window in cut.windows[:-1])


@given(BLOCK_SIZES, MIXED, st.integers(0, 300))
def test_a_sweep_has_the_images_in_order_and_the_last_one_as_padding(sizes, mixed, padding):
    count = int(sizes.sum())
    wanted = order.sequential(sizes, mixed, count + padding)

    np.testing.assert_array_equal(wanted.indices, [*range(count), *[count - 1] * padding])
    assert wanted.windows[-1].end == count + padding
    for window, indices in stretches(wanted):
        assert set(block_of(sizes, indices)) <= set(window.blocks)
        assert sizes[window.blocks].sum() < mixed + BLOCK


PLAIN = {"size": 32, "crop": 0}


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({}, set()),
        ({"cutout": 8}, {"hole"}),
        ({"crop": 4, "flip": True, "cutout": 8}, {"corner", "mirrored", "hole"}),
        ({"resized_crop": 0.3, "flip": True, "cutout": 8}, {"box", "mirrored", "hole"}),
    ],
    ids=range(4),
)
def test_only_what_is_asked_for_is_drawn(asked, names):
    assert order.draws(Data(**{**PLAIN, **asked}), 5, 0, 0).keys() == names


def test_draws_are_spread_over_their_whole_range():
    drawn = order.draws(Data(size=10, crop=3, flip=True, cutout=4), 20_000, 0, 0)

    for name, most in (("corner", 6), ("hole", 9)):
        assert drawn[name].dtype == np.int32
        assert drawn[name].shape == (20_000, 2)
        for axis in (0, 1):
            shares = np.bincount(drawn[name][:, axis], minlength=most + 1) / 20_000
            np.testing.assert_allclose(shares, 1 / (most + 1), atol=0.015)
    assert set(drawn["mirrored"]) == {0, 1}
    assert drawn["mirrored"].mean() == pytest.approx(0.5, abs=0.02)


ALL = [{"crop": 2, "flip": True, "cutout": 8}, {"resized_crop": 0.3, "flip": True, "cutout": 8}]


@pytest.mark.parametrize("asked", ALL, ids=str)
def test_draws_are_functions_of_seed_and_epoch(asked):
    data = Data(**{**PLAIN, **asked})
    first, again, later, other = (order.draws(data, 200, *key) for key in ((1, 0), (1, 0), (1, 1), (2, 0)))

    for name, values in first.items():
        np.testing.assert_array_equal(values, again[name])
        assert (values != later[name]).any()
        assert (values != other[name]).any()


@pytest.mark.parametrize("asked", ["crop", "cutout"])
def test_what_is_drawn_for_an_image_does_not_depend_on_how_many_there_are(asked):
    data = Data(**{**PLAIN, asked: 4})
    (few,), (many,) = (order.draws(data, count, 5, 1).values() for count in (33, 1000))

    np.testing.assert_array_equal(few, many[:33])


def test_one_way_of_varying_leaves_the_draws_of_the_others_alone():
    alone = [order.draws(Data(**{**PLAIN, **asked}), 50, 0, 0) for asked in ({"crop": 2}, {"cutout": 8}, {"resized_crop": 0.5})]
    together = order.draws(Data(**{**PLAIN, "crop": 2, "flip": True, "cutout": 8}), 50, 0, 0)
    together |= order.draws(Data(**{**PLAIN, "resized_crop": 0.5, "flip": True}), 50, 0, 0)

    for drawn in alone:
        for name, values in drawn.items():
            np.testing.assert_array_equal(values, together[name])


@pytest.mark.parametrize("least", [0.08, 0.35, 0.99])
def test_boxes_lie_inside_the_image_and_have_the_area_and_aspect_of_the_paper(least):
    box = order.draws(Data(**PLAIN, resized_crop=least), 20_000, 0, 0)["box"].astype(np.float64)
    height, width = box[:, 2] - box[:, 0], box[:, 3] - box[:, 1]
    clipped = (height > 1 - 1e-6) | (width > 1 - 1e-6)
    area, aspect = (height * width)[~clipped], (width / height)[~clipped]

    assert box.min() >= 0
    assert box.max() <= 1 + 1e-6
    assert (height > 0).all()
    assert (width > 0).all()
    assert area.size == 0 or area.min() > least - 1e-5
    assert ((width / height > 3 / 4 - 1e-4) & (width / height < 4 / 3 + 1e-4)).all()
    assert (height * width).min() > min(least, 3 / 4) - 1e-5
    if least < 0.5:
        assert area.min() < least + 0.01
        assert (aspect.min(), aspect.max()) == pytest.approx((3 / 4, 4 / 3), abs=0.01)
        assert np.median(np.log(aspect)) == pytest.approx(0, abs=0.01)
