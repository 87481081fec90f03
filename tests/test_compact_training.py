"""Tickets of whole channels train as small networks: as those with zeros do, and stored in full shape."""

import shutil

import numpy as np
import pytest
from helpers import LENET, imp_here, settings
from tiny import CPUS, advance, assert_close, same

from lottery.base.errors import InputError
from lottery.engine import checkpoints, loop
from lottery.experiment.recipe import Model
from lottery.networks.topology import topology
from lottery.pruning.channels import channels
from lottery.pruning.slices import left_by, with_one_each
from lottery.rundir import records, store
from lottery.stages import tickets

pytestmark = pytest.mark.usefixtures("tensorflow")


def shapes(trainer):
    state = trainer.state(0)
    return {path: array.shape for path, array in (state.weights | state.statistics).items()}


def halved(make_trainer, model, seed=1, **train):
    """A trainer, one of it without half of the channels, and the mask that says so, with some single weights gone as well."""
    whole = make_trainer(model=model, maskable=Everything(), **train)
    found, rng = channels(topology(whole.model), shapes(whole)), np.random.default_rng(seed)
    kept = with_one_each(found, rng.random(found.count) < 0.5)
    state = whole.state(0)
    mask = {path: bits.copy() for path, bits in found.spread(kept).items() if path in state.weights}
    for path in [path for path in mask if path.endswith("kernel")]:
        mask[path] &= rng.random(mask[path].shape) < 0.8
    kept = with_one_each(found, left_by(mask, found, state.weights))
    return whole, whole.without(found, kept), mask, state


class Everything:
    """Every path, for `maskable`."""

    def __contains__(self, path):
        return True


def close(found, expected):
    """Whether two states agree, but for statistics of channels that are not there."""
    for one, other in ((found.weights, expected.weights), (found.optimizer, expected.optimizer)):
        assert one.keys() == other.keys()
        for name, array in one.items():
            if "moving_" not in name:
                np.testing.assert_allclose(
                    array, other[name], rtol=0, atol=1e-9 * max(1, np.abs(other[name]).max()), err_msg=name
                )


SETTINGS = [
    {"momentum": 0.9, "weight_decay": 5e-4, "clip_norm": 0.5},
    {"optimizer": "adam", "learning_rate": 0.003, "decay": "decoupled", "weight_decay": 0.1, "ema": 0.9},
]


@pytest.mark.parametrize("train", SETTINGS, ids=["sgd", "adam"])
@pytest.mark.parametrize("model", [Model(name="tiny:parts"), Model(name="tiny:local")], ids=lambda model: model.name)
def test_a_hundred_steps_are_those_of_the_masked_network(make_trainer, model, train):
    whole, small, mask, state = halved(make_trainer, model, precision="float64", **train)
    for trainer in (whole, small):
        trainer.load(state, mask)

    figures = [advance(trainer, 0, 100) for trainer in (whole, small)]

    assert sum(map(np.size, map(np.asarray, small.model.variables))) < sum(array.size for array in state.weights.values())
    np.testing.assert_allclose(*figures, rtol=1e-9)
    close(small.state(100), whole.state(100))
    answers = [trainer.evaluate("test") for trainer in (whole, small)]
    assert answers[0].loss == pytest.approx(answers[1].loss, rel=1e-9)


def test_what_is_saved_has_full_shape_zeros_where_channels_went_and_goes_on_in_the_same_bits(make_trainer):
    whole, small, mask, state = halved(make_trainer, Model(name="tiny:parts"), ema=0.9)
    small.load(state, mask)
    advance(small, 0, 20)
    reached = small.state(20)
    advance(small, 20, 30)
    expected = small.state(30)

    assert {name: array.shape for name, array in store.groups(reached)["optimizer"].items()} == {
        name: array.shape for name, array in whole.state(0).optimizer.items()
    }
    assert all(not reached.weights[path][~bits].any() for path, bits in mask.items())
    assert small.mask().keys() == mask.keys()
    assert all(np.array_equal(small.mask()[path], bits) for path, bits in mask.items())
    small.load(reached, mask)
    assert same(small.state(20), reached)
    advance(small, 20, 30)
    assert same(small.state(30), expected)


def test_replicas_train_it_too(make_trainer):
    whole, small, mask, state = halved(make_trainer, Model(name="tiny:parts"), devices=CPUS[:2], precision="float64")
    for trainer in (whole, small):
        trainer.load(state, mask)
        advance(trainer, 0, 10)

    close(small.state(10), whole.state(10))


CHANNELS = settings(
    *("families.oneshot.units=channel", "families.oneshot.quantiles=50", "families.oneshot.rewind=0"),
    *("families.oneshot.controls=['reinit']", "families.oneshot.controls_at=50"),
)


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A folder with a run of lenet as far as a mask of channels."""
    folder = tmp_path_factory.mktemp("channels")
    imp_here("prepare", *LENET, *CHANNELS, cwd=folder)
    imp_here("train", cwd=folder)
    imp_here("thresholds", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def trained(cut, tmp_path_factory):
    """A function that trains the ticket and its control in a copy of `cut`, and returns their folders."""
    place = tmp_path_factory.mktemp("trained")

    def train(name, *options, check=True):
        if not (place / name).exists():
            shutil.copytree(cut, place / name, symlinks=True)
        imp_here("retrain", *options, cwd=place / name, check=check)
        return [place / name / "runs/digits/replicate-1/oneshot/q50-step-000000" / kind for kind in ("ticket", "reinit")]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tickets, "WORTH_COMPILING", 0)
        yield train


@pytest.fixture(scope="module")
def small(trained):
    return trained("small")


def test_tickets_of_channels_and_their_controls_train_small_and_end_like_those_with_zeros(small, trained):
    for folder, with_zeros in zip(small, trained("zeros", *settings("retrain.compact=off")), strict=True):
        one, other = (records.read(at / "result.json", records.Result) for at in (folder, with_zeros))
        assert one.compact_macs == one.costs.macs < one.costs.dense_macs
        assert other.compact_macs is None
        assert one.exact_zeros == other.exact_zeros
        states = [store.load_state(at / "final.h5") for at in (folder, with_zeros)]
        assert_close(*states, 1e-3)
    with pytest.raises(AssertionError, match=r"retrain.compact was 'auto', is 'off'"):
        trained("small", *settings("retrain.compact=off"))


def test_one_that_was_killed_ends_with_the_same_bytes(small, trained, monkeypatch):
    save = checkpoints.save

    def die(path, saved):
        save(path, saved)
        if saved.state.step > 20:
            raise RuntimeError("killed")

    monkeypatch.setattr(checkpoints, "save", die)
    killed = trained("killed", check=False)
    assert not any((folder / "final.h5").exists() for folder in killed)
    monkeypatch.setattr(checkpoints, "save", save)
    for folder, other in zip(trained("killed"), small, strict=True):
        for name in ("final.h5", "predictions.h5"):
            assert (folder / name).read_bytes() == (other / name).read_bytes()


def test_a_network_that_cannot_be_built_smaller_trains_with_its_zeros(trained, monkeypatch):
    def refuse(*_):
        raise InputError("no")

    monkeypatch.setattr(loop, "shrunk", refuse)
    for folder in trained("refused"):
        assert records.read(folder / "result.json", records.Result).compact_macs is None
