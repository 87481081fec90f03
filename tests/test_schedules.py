"""Learning rates, worked out by hand."""

import numpy as np
import pytest

from lottery.experiment import schedules
from lottery.experiment.recipe import Train


def rates(steps_per_epoch, **train):
    settings = Train(**{"learning_rate": 1.0, "warmup": "0", **train})
    return schedules.rates(settings, steps_per_epoch, 0, settings.steps or settings.epochs * steps_per_epoch)


def test_a_constant_rate_stays():
    assert rates(2, epochs=2, schedule="constant", learning_rate=0.25).tolist() == [0.25] * 4


def test_a_cosine_falls_from_the_full_rate_towards_0():
    expected = [1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]

    np.testing.assert_allclose(rates(2, epochs=2, schedule="cosine"), expected, rtol=1e-6)


def test_a_warmup_rises_linearly_to_the_full_rate_and_the_cosine_starts_after_it():
    expected = [0.25, 0.5, 0.75, 1, 1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]

    np.testing.assert_allclose(rates(4, epochs=2, schedule="cosine", warmup="4it"), expected, rtol=1e-6)


def test_steps_multiply_the_rate_at_each_milestone():
    found = rates(10, epochs=10, schedule="step", milestones="5ep,7.5ep", gamma=0.1)

    np.testing.assert_allclose(found, [1.0] * 50 + [0.1] * 25 + [0.01] * 25, rtol=1e-6)


def test_a_linear_schedule_with_a_warmup_is_a_triangle():
    found = rates(4, epochs=2, schedule="linear", warmup="4it")

    np.testing.assert_allclose(found, [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25], rtol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "step"])
def test_a_rewound_network_takes_the_schedule_up_where_it_was(schedule):
    train = Train(schedule=schedule, epochs=4, warmup="1ep", milestones="2ep")
    whole = schedules.rates(train, 5, 0, 20)

    for first in (0, 3, 5, 11, 20):
        assert schedules.rates(train, 5, first, 20 - first).tobytes() == whole[first:].tobytes()


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "step"])
def test_so_many_steps_have_the_rates_of_as_many_epochs(schedule):
    milestones = {"warmup": "3it", "milestones": "1ep,12it"}

    by_steps = rates(5, steps=15, epochs=100, schedule=schedule, **milestones)

    assert by_steps.tobytes() == rates(5, epochs=3, schedule=schedule, **milestones).tobytes()


def test_a_training_that_is_longer_has_the_same_schedule_stretched():
    settings = Train(epochs=4, schedule="cosine", warmup="1ep", learning_rate=1.0)
    usual, longer = (schedules.rates(settings, 100, 0, 400 * length, length) for length in (1, 5))

    np.testing.assert_allclose(longer[4::5][:100], usual[:100], rtol=1e-6)  # the warm-up, by where steps end
    np.testing.assert_allclose(longer[::5][100:], usual[100:], rtol=1e-6)
    assert len(longer) == 2000
    assert longer[-1] < usual[-1]
    assert longer[:500].argmax() == 499


@pytest.mark.parametrize(
    ("schedule", "warmup", "length"), [("constant", 1, 10), ("cosine", 3, 2.5), ("linear", 5, 0.3), ("step", 3, 0.1)]
)
def test_a_stretched_warmup_grows_in_a_straight_line_and_never_above_the_learning_rate(schedule, warmup, length):
    settings = Train(epochs=4, schedule=schedule, warmup=f"{warmup}it", milestones="3ep", learning_rate=0.1)
    growing = int(warmup * length)

    found = schedules.rates(settings, 100, 0, round(400 * length), length)

    np.testing.assert_allclose(found[:growing], 0.1 * np.arange(1, growing + 1) / (warmup * length), rtol=1e-6)
    assert found.max() <= np.float32(0.1)
    assert (np.diff(found[growing:]) <= 0).all()


@pytest.mark.parametrize(
    ("peak", "steps", "expected"),
    [
        (1.0, 20, [1 / 2, 1, *(left / 18 for left in range(18, 0, -1))]),  # two steps of warm-up, and 18 down
        (0.5, 19, [0.5, *(left / 36 for left in range(18, 0, -1))]),
        (1.0, 1, [1]),
    ],
)
def test_a_linear_retraining_grows_for_a_tenth_and_falls_to_0_in_a_straight_line(peak, steps, expected):
    found = schedules.linear(peak, steps)(0, steps)

    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32
    assert found[-1] > 0


def test_the_rates_of_a_linear_retraining_are_the_same_however_its_steps_are_divided():
    rate = schedules.linear(0.05, 510)
    whole = rate(0, 510)

    assert (whole.argmax(), whole[50], whole[51]) == (50, np.float32(0.05), np.float32(0.05))
    for cuts in ([1, 50, 51, 52, 509], [17, 400], [510]):
        parts = [rate(first, last - first) for first, last in zip([0, *cuts], [*cuts, 510], strict=True)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


WEIGHTS = {"a": np.float32([3, -4]), "b": np.float32([[1], [12]]), "bias": np.float32([1000])}
NORM = (9 + 16 + 1 + 144) ** 0.5


def pruning(*pruned):
    """A mask that prunes these weights of a and b."""
    return {path: ~np.isin(np.abs(WEIGHTS[path]), pruned) for path in ("a", "b")}


@pytest.mark.parametrize(
    ("mask", "length", "expected"),
    [
        (pruning(), 0.25, 0.25),
        (pruning(3, 1), 0.1, 10**0.5 / NORM / 0.5**0.5),
        (pruning(4), 0.6, 8 / NORM),
        (pruning(4), 0.7, 0.7),  # the length is more
        (pruning(12), 0.5, 1),  # 24 / 13
        (pruning(3), 1.0, 1),
    ],
)
def test_the_rate_is_discounted_by_the_norm_that_is_lost_or_by_the_length_where_that_is_more(mask, length, expected):
    assert schedules.discount(WEIGHTS, mask, length) == pytest.approx(expected, rel=1e-12)


def test_what_has_no_norm_is_discounted_by_the_length():
    nothing = {"a": np.zeros(2, np.float32)}

    assert schedules.discount(nothing, {"a": np.array([True, False])}, 0.25) == 0.25
    assert schedules.discount({}, {}, 0.25) == 0.25


def test_what_earlier_rounds_pruned_is_no_loss_of_this_one():
    left = {path: np.where(kept, WEIGHTS[path], 0) for path, kept in pruning(12, 1).items()}

    assert schedules.discount(left, pruning(12, 1, 3), 0.1) == pytest.approx(3 / 5 / 0.5**0.5)
