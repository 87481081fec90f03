"""Smaller networks, by brute force: they compute what the large one does where all that the channels are made of is 0."""

import keras
import numpy as np
import pytest
from test_topology import functional

from lottery.base.errors import InputError
from lottery.engine import models, signature
from lottery.engine.models.shrinking import shrunk, slices
from lottery.engine.models.topology import topology
from lottery.experiment.recipe import Model
from lottery.pruning.channels import channels
from lottery.pruning.slices import expanded, sliced, with_one_each

pytestmark = pytest.mark.usefixtures("tensorflow")
layers = keras.layers


def residual(x):
    x = layers.Conv2D(6, 3, padding="same")(x)
    y = layers.BatchNormalization()(layers.Conv2D(6, 3, padding="same", activation="relu")(x))
    return layers.Add()([x, y])


def depthwise(x):
    x = layers.DepthwiseConv2D(3, depth_multiplier=2)(layers.Conv2D(4, 1)(x))
    x = layers.Conv2D(16, 3, groups=8)(layers.PReLU(shared_axes=[1])(x))
    return layers.SeparableConv2D(5, 3, depth_multiplier=2)(x)


def one_image_channel(x):
    return layers.Conv2D(4, 1)(layers.DepthwiseConv2D(3, depth_multiplier=6)(layers.Conv2D(1, 1)(x)))


def concatenated(x):
    parts = [layers.Conv2D(3, 1)(x), layers.BatchNormalization(scale=False)(layers.Conv2D(5, 1)(x)), x]
    return layers.Conv2D(4, 1)(layers.Concatenate()(parts))


def shared(x):
    both, scale = layers.Conv2D(5, 3, padding="same"), layers.BatchNormalization()
    return scale(both(scale(both(layers.Conv2D(5, 1)(x)))))


def transposed(x):
    x = layers.Conv2DTranspose(4, 3, strides=2, padding="same")(layers.Conv2D(5, 3)(x))
    return layers.MaxPooling2D()(layers.Activation("relu")(x))


def nested(x):
    block = keras.Sequential([layers.Conv2D(5, 3, padding="same"), layers.BatchNormalization(), layers.ReLU()], name="block")
    inner = functional(lambda y: layers.Conv2D(5, 1)(block(layers.Conv2D(6, 1)(y))), (8, 8, 5))
    return layers.Conv2D(3, 1)(inner(inner(layers.Conv2D(5, 1)(x))))


def gated(x):
    x = layers.Conv2D(6, 3)(x)
    squeezed = layers.Reshape((1, 1, 6))(layers.GlobalAveragePooling2D()(x))
    excited = layers.Conv2D(6, 1, activation="sigmoid")(layers.Conv2D(3, 1, activation="relu")(squeezed))
    return layers.Multiply()([x, excited])


def folded(x):
    x = layers.Reshape((-1, 4))(layers.Conv2D(4, 1)(x))
    return layers.Conv1D(5, 3)(layers.Reshape((2, -1, 4))(x)[:, 0])


def ours(name, **settings):
    return lambda: models.build(Model(name=name, **settings), signature.images(16, 3))


def application(name, size=32, **options):
    build = getattr(keras.applications, name)
    return lambda: build(weights=None, input_shape=(size, size, 3), classes=4, classifier_activation=None, **options)


def answered(body):
    return lambda: functional(lambda images: layers.Dense(2)(layers.Flatten()(body(images))), (8, 8, 3))


BODIES = (residual, depthwise, one_image_channel, concatenated, shared, transposed, nested, gated, folded)
NETWORKS = {
    **{body.__name__: answered(body) for body in BODIES},
    "lenet": ours("lenet_300_100"),
    "mobilenet_v2": ours("mobilenet_v2", alpha=0.35, batchnorm_gamma="uniform"),
    "resnet20": ours("resnet20", width=4),
    "sequential": lambda: keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(2)]),
}
LARGE = {
    "MobileNetV3Small": application("MobileNetV3Small"),
    "DenseNet121": application("DenseNet121"),
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


@pytest.mark.parametrize("name", LARGE)
def test_so_do_those_of_keras(name):
    with models.policy("float64"):
        check(LARGE[name](), 0.5)


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
