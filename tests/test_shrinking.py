"""Smaller networks, by brute force: they compute what the large one does where all that the channels are made of is 0."""

import keras
import numpy as np
import pytest
from helpers import large
from test_compaction import (
    answered,
    application,
    concatenated,
    depthwise,
    gated,
    nested,
    ours,
    padded,
    residual,
    separable,
    sequential,
    shared,
    transposed,
)

from lottery.base.errors import InputError
from lottery.engine import models
from lottery.networks.shrinking import shrunk, slices
from lottery.networks.topology import topology
from lottery.pruning.channels import channels
from lottery.pruning.slices import expanded, sliced, with_one_each

pytestmark = pytest.mark.usefixtures("tensorflow")
layers = keras.layers


def one_image_channel(x):
    return layers.Conv2D(4, 1)(layers.DepthwiseConv2D(3, depth_multiplier=6)(layers.Conv2D(1, 1)(x)))


def folded(x):
    x = layers.Reshape((-1, 4))(layers.Conv2D(4, 1)(x))
    return layers.Conv1D(5, 3)(layers.Reshape((2, -1, 4))(x)[:, 0])


BODIES = (residual, depthwise, separable, concatenated, shared, transposed, nested, gated, padded, one_image_channel, folded)
NETWORKS = {
    **{body.__name__: answered(body) for body in BODIES},
    "lenet": ours("lenet_300_100"),
    "mobilenet_v2": ours("mobilenet_v2", alpha=0.35, batchnorm_gamma="uniform"),
    "resnet20": ours("resnet20", width=4),
    "sequential": sequential,
}


def randomised(network, rng):
    """Values of any sign that keep activations at one size."""
    for variable in network.variables:
        if keras.backend.is_float_dtype(variable.dtype):
            spread = np.prod(variable.shape[:-1]) ** -0.5 if len(variable.shape) > 1 else 1
            variable.assign(
                rng.uniform(0.1, 1, variable.shape) * spread * (rng.choice([-1, 1], variable.shape) if spread < 1 else 1)
            )


def channels_of(network, streams=True):
    return channels(topology(network), {variable.path: tuple(variable.shape) for variable in network.variables}, streams)


def kept_at_random(found, rng, share):
    kept = rng.random(found.count) < share
    kept[-1] = False
    return with_one_each(found, kept)


def check(network, share, streams=True):
    rng = np.random.default_rng(0)
    randomised(network, rng)
    found = channels_of(network, streams)
    kept = kept_at_random(found, rng, share)
    parts = slices(network, found, kept)
    assert found.count > kept.sum()
    for variable in network.variables:
        values = {"only": np.asarray(variable)}
        own = {"only": parts.get(variable.path, {})}
        variable.assign(expanded(sliced(values, own), own)["only"])
    small = shrunk(network, found, kept)

    assert [variable.path for variable in small.variables] == [variable.path for variable in network.variables]
    assert small.count_params() < network.count_params()
    images = rng.normal(size=(3, *network.input_shape[1:]))
    large_answers, small_answers = (np.asarray(model(images, training=False)) for model in (network, small))
    assert large_answers.std() > 0
    np.testing.assert_allclose(small_answers, large_answers, rtol=0, atol=1e-12 * np.abs(large_answers).max())


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_smaller_network_computes_what_the_large_one_does_without_the_channels(name, share):
    with models.policy("float64"):
        check(NETWORKS[name](), share)


def test_streams_may_stay_whole():
    with models.policy("float64"):
        check(NETWORKS["mobilenet_v2"](), 0.5, streams=False)


@pytest.mark.parametrize("name", ["MobileNetV3Small", *large("DenseNet121")])
def test_so_do_those_of_keras(name):
    with models.policy("float64"):
        check(application(name, classifier_activation=None)(), 0.5)


def test_a_layer_that_cannot_be_made_again_is_refused_in_one_line():
    wide = answered(lambda x: keras.ops.reshape(layers.Conv2D(6, 1)(x), (-1, 8, 8, 6)))()
    found = channels_of(wide)

    with pytest.raises(InputError, match="cannot be built with fewer channels") as caught:
        shrunk(wide, found, np.arange(found.count) < 3)
    assert "\n" not in str(caught.value)


def test_arrays_become_small_and_whole_again_with_zeros_where_channels_went():
    parts = {"a": {-2: np.array([True, False, True]), -1: np.array([False, True])}}
    array = np.arange(12.0).reshape(2, 3, 2)

    small = sliced({"a": array, "step": np.array(3)}, parts)
    assert small["a"].tolist() == [[[1], [5]], [[7], [11]]]
    assert small["step"] == 3
    whole = expanded(small, parts)
    assert whole["a"].tolist() == [[[0, 1], [0, 0], [0, 5]], [[0, 7], [0, 0], [0, 11]]]
    assert whole["a"].dtype == array.dtype
