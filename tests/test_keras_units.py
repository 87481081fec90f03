"""Whole units in a user's own `model.fit`: channels with all that is theirs, blocks, n of m."""

from fractions import Fraction

import keras
import numpy as np
import pytest
from keras_networks import GRADUAL, LOSS, OPTIMIZERS, X, Y, fit, is_exact, network, same

from lottery.base.errors import InputError
from lottery.keras import Constant, Cubic, masks, prune, resume, rewind, snapshot, strip
from lottery.keras.fitting import pruned
from lottery.networks.topology import topology
from lottery.pruning.criteria import CRITERIA
from lottery.pruning.cut import Cutter, Method
from lottery.pruning.masks import whole
from lottery.pruning.ranking import pruned_count
from lottery.pruning.state import State
from lottery.pruning.units import of, parse

pytestmark = [pytest.mark.usefixtures("any_backend"), pytest.mark.filterwarnings("ignore:fit ended before the schedule")]

UNITS = {"channel": 0.6, "4x1": 0.6, "2x3": 0.6, "2:4": 0.5}  # and a sparsity
SCOPE = ("stem/kernel", "up/kernel", "deep/kernel", "down/kernel")
OUT = ["out/*"]


def residual(optimizer="adam"):
    """A stream of six channels to which a branch adds, with BatchNorm, biases and a depthwise kernel."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    images = keras.Input((8, 8, 1))
    stream = layers.Conv2D(6, 3, name="stem")(images)
    branch = layers.ReLU()(layers.BatchNormalization(name="norm")(layers.Conv2D(8, 1, use_bias=False, name="up")(stream)))
    branch = layers.DepthwiseConv2D(3, padding="same", activation="relu", name="deep")(branch)
    stream = layers.ReLU()(layers.Add()([stream, layers.Conv2D(6, 1, name="down")(branch)]))
    model = keras.Model(images, layers.Dense(10, name="out")(layers.Flatten()(stream)))
    model.compile(OPTIMIZERS[optimizer](), LOSS)
    return model


def made_of(model, units, score="mean", streams=True):
    shapes = {variable.path: tuple(variable.shape) for variable in model.trainable_weights}
    return of(parse(units), score, shapes, SCOPE, topology(model), streams)


def counts(model):
    return sum(int(masks(model)[path].sum()) for path in SCOPE)


def size(model):
    return sum(masks(model)[path].size for path in SCOPE)


def is_whole(model, units, streams=True):
    """Whether the masks are made of whole units: each, with something left, is all there."""
    mask, units = masks(model), made_of(model, units, streams=streams)
    left = units.pool(mask, units.ranked({path: mask[path] for path in units.covered(SCOPE)}))[1]
    return all((bits == mask[path]).all() for path, bits in units.spread(left, whole(mask)).items())


@pytest.mark.parametrize(("units", "sparsity"), UNITS.items())
@pytest.mark.parametrize("optimizer", ["adam", "muon", "ftrl"])
def test_whole_units_go_with_all_that_is_theirs_and_stay_zero(units, sparsity, optimizer):
    model = prune(residual(optimizer), sparsity, units=units, exclude=OUT)
    before = masks(model)
    fit(model, 2)

    assert is_exact(model)
    assert all((bits == before[path]).all() for path, bits in masks(model).items())
    if units == "2:4":
        for path, bits in before.items():
            for inputs in bits.reshape(-1, 8 if path == "deep/kernel" else bits.shape[-1]).T:
                groups = [inputs[place : place + 4] for place in range(0, len(inputs), 4)]
                assert [group.sum() for group in groups] == [min(2, len(group)) for group in groups]
        return
    assert is_whole(model, units)
    if units == "channel":
        assert before.keys() == {
            *SCOPE, *("stem/bias", "deep/bias", "down/bias", "norm/gamma", "norm/beta", "out/kernel")
        }  # fmt: skip
        assert (before["norm/gamma"] == before["deep/bias"]).all()
        assert (before["stem/bias"] == before["down/bias"]).all()
    else:
        assert before.keys() == set(SCOPE)


@pytest.mark.parametrize("units", ["channel", "4x1"])
@pytest.mark.parametrize("sparsity", [0.01, 0.3, 0.777, 0.95])
def test_the_most_units_stay_that_leave_no_more_weights(units, sparsity):
    model = residual()
    weights = {variable.path: variable.numpy() for variable in model.weights}
    prune(model, sparsity, units=units, exclude=OUT, unit_score="norm")
    most = size(model) - pruned_count(100 * Fraction(str(sparsity)), size(model))

    units = made_of(model, units, "norm")
    within = whole({path: weights[path] for path in masks(model)})
    cutter = Cutter(Method(CRITERIA["magnitude"], units=units), State(0, weights, {}, {}), within)
    total = sum(map(np.count_nonzero, cutter.units.values()))
    cuts = [cutter.to([(tuple(cutter.units), keep)]).mask for keep in range(total + 1)]
    left = [sum(int(mask[path].sum()) for path in SCOPE) for mask in cuts]
    assert counts(model) == max(count for count in left if count <= most)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_every_criterion_scores_channels(criterion):
    model = prune(network(), 0.5, criterion=criterion, units="channel", images=(X, Y))
    assert masks(model).keys() == {"conv/kernel", "conv/bias", "dense/kernel"}
    assert masks(model)["conv/bias"].sum() == 2


@pytest.mark.parametrize("allocation", ["uniform", "uniform+", "erk"])
def test_every_allocation_divides_units(allocation):
    model = prune(residual(), 0.3, units="4x1", exclude=OUT, allocation=allocation, densities={"deep/*": 1})

    assert masks(model)["deep/kernel"].all()
    assert masks(model)["stem/kernel"].all() == (allocation == "uniform+")
    assert is_whole(model, "4x1")


@pytest.mark.parametrize("units", ["channel", "4x1"])
def test_gradual_units_are_whole_at_each_change_and_training_goes_on_from_a_file(units, tmp_path):
    model, halfway = prune(residual(), 0.6, units=units, exclude=OUT, schedule=GRADUAL, streams=False), tmp_path / "half.keras"
    shares = []
    looked = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: shares.append(counts(model) / size(model)))
    fit(model, 2, callbacks=[looked])
    assert is_exact(model)
    model.save(halfway)
    fit(model, 4, 2, callbacks=[looked])

    assert is_exact(model)
    assert is_whole(model, units, streams=False)
    assert len(set(shares)) > 1
    assert shares == sorted(shares, reverse=True)
    assert 0.33 < counts(model) / size(model) <= 0.401
    if units == "channel":
        assert "stem/bias" not in masks(model)  # of the stream
        assert not masks(model)["deep/bias"].all()
    other = resume(keras.models.load_model(halfway))
    fit(other, 4, 2)
    assert same(model, other)
    other.compile("sgd", LOSS)
    fit(other)
    assert is_exact(other)
    assert pruned(other).scope == pruned(model).scope


def test_a_channel_that_returns_brings_all_that_is_its_own():
    model = prune(residual(), 0.6, units="channel", exclude=OUT, schedule=Cubic(end=8, every=4, start=0.6))
    before = masks(model)
    gone = int(np.flatnonzero(~before["norm/gamma"])[0])
    aside = dict(zip(pruned(model).paths, pruned(model)._aside, strict=True))
    for path in SCOPE:
        aside[path].assign(1e3 * aside[path].numpy())  # all but biases, which were 0 when they went
    fit(model)

    after = masks(model)
    assert after["norm/gamma"][gone]
    assert after["norm/beta"][gone]
    assert after["deep/bias"][gone]
    assert after["up/kernel"][..., gone].any()
    assert is_whole(model, "channel")


def test_units_are_pruned_within_the_masks_of_a_pruned_model():
    model = prune(residual(), 0.3, exclude=OUT)
    single = masks(model)
    fit(model)
    prune(model, 0.6, units="channel", exclude=OUT, schedule=GRADUAL)
    fit(model, 5, 1)
    channels = masks(model)
    assert all(not (channels[path] & ~single[path]).any() for path in single)
    assert is_exact(model)
    fewer = counts(model)
    early = snapshot(model)
    prune(model, 0.8, exclude=OUT)

    assert counts(model) == size(model) - pruned_count(Fraction(80), size(model)) < fewer
    assert all(not (bits & ~channels[path]).any() for path, bits in masks(model).items())
    assert (masks(model)["norm/gamma"] == channels["norm/gamma"]).all()
    rewind(model, early)
    fit(model)
    assert is_exact(model)
    assert not any(hasattr(variable.constraint, "mask") for variable in strip(model).weights)


def test_frozen_layers_are_left_alone():
    model = residual()
    model.get_layer("down").trainable = False
    model.compile("adam", LOSS)
    weights = model.get_layer("down").get_weights()
    prune(model, 0.5, units="channel", exclude=OUT)

    assert "down/kernel" not in masks(model)
    assert "stem/bias" not in masks(model)  # as a frozen kernel makes a part of its stream
    assert not masks(model)["deep/bias"].all()
    assert all((one == other).all() for one, other in zip(weights, model.get_layer("down").get_weights(), strict=True))


def test_single_weights_are_as_without_units():
    one, other = (prune(network(), 0.7, schedule=GRADUAL, **given) for given in ({}, {"units": "weight"}))
    fit(one, 4)
    fit(other, 4)

    assert same(one, other)


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(10)

    def call(self, x):
        return self.second(self.first(keras.ops.reshape(x, (-1, 64))))


def subclassed():
    model = Own()
    model(X[:1])
    model.compile("sgd", LOSS)
    return model


@pytest.mark.parametrize(
    ("make", "given", "words"),
    [
        (network, {"sparsity": 0.7, "units": "2:4"}, "units = 2:4 wants sparsity=0.5, neither more nor less"),
        (network, {"units": "2:4", "schedule": GRADUAL}, "units = 2:4 are pruned at once"),
        (network, {"units": "2:4", "allocation": "erk"}, "units = 2:4 are pruned at once"),
        (network, {"units": "2:4", "densities": {"conv/*": 0.1}}, "units = 2:4 are pruned at once"),
        (network, {"units": "channels"}, "'channels' are not units"),
        (network, {"units": (2, 4)}, "'(2, 4)' are not units"),
        (network, {"units": "channel", "unit_score": "max"}, "unknown unit_score 'max'; known are mean, norm, sum"),
        (network, {"units": "99x1"}, "a block is larger than conv/kernel, 9 inputs x 4 outputs"),
        (network, {"units": "99x1", "schedule": Constant(5)}, "a block is larger than conv/kernel"),
        (network, {"units": "channel", "exclude": ["conv/*"]}, "all channels of this network stay"),
        (subclassed, {"units": "channel"}, "this network cannot be followed"),
    ],
)
def test_units_that_do_not_fit_are_one_line_and_change_nothing(make, given, words):
    model = make()
    before = [variable.numpy() for variable in model.weights]

    with pytest.raises(InputError) as error:
        prune(model, **{"sparsity": 0.5, **given})

    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert all((variable.numpy() == array).all() for variable, array in zip(model.weights, before, strict=True))
    assert masks(model) == {}


@pytest.mark.parametrize(("units", "sparsity"), [("4x1", 0.6), ("2:4", 0.5)])
def test_a_subclassed_model_has_blocks_and_n_of_m(units, sparsity):
    model = prune(subclassed(), sparsity, units=units)
    fit(model)

    assert is_exact(model)
    assert 1 - sparsity - 0.05 < sum(bits.mean() * bits.size for bits in masks(model).values()) / 296 <= 1 - sparsity + 1e-9
