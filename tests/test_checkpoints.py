"""When a checkpoint is due, by a clock made up here, and what it holds."""

import dataclasses

import numpy as np
import pytest

from lottery.base.errors import InputError
from lottery.engine import checkpoints
from lottery.engine.checkpoints import Checkpoint, Clock
from lottery.experiment.recipe import Train
from lottery.rundir import store


@dataclasses.dataclass
class Time:
    """A clock that stands still until it is moved."""

    seconds: float = 1000.0

    def __call__(self):
        return self.seconds


def clock(time, step=0, size=1, **train):
    return Clock(Train(**{f"checkpoint_{key}": value for key, value in train.items()}), step, size, time)


def save(clock, time, step, cost):
    with clock.saving(step):
        time.seconds += cost


@pytest.mark.parametrize(
    ("how", "passing", "steps", "expected"),
    [
        ({"seconds": 60.0}, 20, range(1, 13), [3, 6, 9, 12]),
        ({"step": 40, "seconds": 1e9, "steps": 10}, 100, (45, 49, 50, 55, 59, 61, 70, 71), [50, 61, 71]),
    ],
)
def test_it_is_due_when_so_many_seconds_have_passed_or_steps_been_taken_since_the_last(how, passing, steps, expected):
    time, due = Time(), []
    watched = clock(time, **how)
    for step in steps:
        time.seconds += passing
        if watched.is_due(step):
            due.append(step)
            save(watched, time, step, cost=0.1)

    assert due == expected


@pytest.mark.parametrize("share", [0.02, 0.3])
def test_saving_never_takes_more_than_its_share_of_a_long_training(share):
    time = Time()
    watched = clock(time, seconds=1.0, share=share)
    spent, saved = 0.0, []
    for step in range(100_000):
        time.seconds += 0.1
        if watched.is_due(step):
            save(watched, time, step, cost=1.0)
            spent += 1.0
            saved.append(time.seconds)
            assert len(saved) == 1 or spent <= share * (time.seconds - 1000.0) + 1e-6

    total = time.seconds - 1000.0
    assert 0.95 * share * total < spent <= share * total
    gaps = np.diff(saved[1:])
    assert gaps.max() < 1.2 / share


def test_before_the_first_a_save_is_taken_to_be_as_slow_as_a_slow_disk():
    time = Time()
    watched = clock(time, seconds=1.0, share=0.02, size=10**9)  # ten seconds on a slow disk
    found = {}
    for seconds in (2, 499, 501):
        time.seconds = 1000.0 + seconds
        found[seconds] = watched.is_due(1)

    assert found == {2: False, 499: False, 501: True}


def test_a_save_that_was_fast_is_soon_followed_by_another():
    time = Time()
    watched = clock(time, seconds=1.0, share=0.02, size=10**9)
    time.seconds += 501
    save(watched, time, 1, cost=0.01)

    time.seconds += 1

    assert watched.is_due(2)


def test_without_a_share_nothing_is_ever_due_and_with_all_of_it_always():
    never, always = Time(), Time()
    shy, keen = clock(never, seconds=0.0, share=0.0), clock(always, seconds=0.0, share=1.0)
    for step in range(1, 100):
        for time in (never, always):
            time.seconds += 10
        assert not shy.is_due(step)
        assert keen.is_due(step)
        save(keen, always, step, cost=1.0)


def drawn(steps):
    rng = np.random.default_rng(0)
    state = store.State(
        7,
        {"fc/kernel": rng.normal(size=(2, 3)).astype(np.float32)},
        {"bn/moving_mean": rng.normal(size=3)},
        {"momentum/fc/kernel": np.zeros((2, 3), np.float32), "steps": np.int64(7), "loss_scale": np.float32(32768)},
    )
    return Checkpoint(state, replicas=2, xla=True, journal="ab", figures=rng.normal(size=(steps, 3)), seconds=12.5)


@pytest.mark.parametrize("steps", [0, 5])
def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path, steps):
    saved = drawn(steps)
    checkpoints.save(tmp_path / "checkpoint.h5", saved)

    found = checkpoints.load(tmp_path / "checkpoint.h5")

    assert (found.state.step, found.seconds, found.replicas, found.xla, found.journal) == (7, 12.5, 2, True, "ab")
    for one, other in (
        *((getattr(found.state, group), getattr(saved.state, group)) for group in ("weights", "statistics", "optimizer")),
        ({"figures": found.figures}, {"figures": saved.figures}),
    ):
        assert one.keys() == other.keys()
        for name, array in one.items():
            assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape)
            np.testing.assert_array_equal(array, other[name])


def test_a_snapshot_in_the_place_of_a_checkpoint_is_refused_by_name(tmp_path):
    store.save_state(tmp_path / "checkpoint.h5", drawn(3).state)

    with pytest.raises(InputError, match=r"checkpoint\.h5 is no checkpoint"):
        checkpoints.load(tmp_path / "checkpoint.h5")
