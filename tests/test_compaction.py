"""Compact networks answer as the pruned ones that they are made of, by brute force, and lack the channels that do nothing."""

from functools import partial

import keras
import numpy as np
import pytest
from helpers import large
from test_topology import functional

from lottery.base.errors import InputError
from lottery.engine import models, signature
from lottery.engine.stock import not_stock, rebuild
from lottery.experiment.recipe import Model
from lottery.networks import compaction
from lottery.networks.compaction import size

pytestmark = pytest.mark.usefixtures("tensorflow")
layers = keras.layers
compact = partial(compaction.compact, stock=rebuild)


def residual(x):
    stream = layers.Conv2D(8, 3, padding="same")(x)
    for _ in range(2):
        inner = layers.BatchNormalization()(layers.Conv2D(12, 1, use_bias=False)(stream))
        stream = layers.Add()([stream, layers.Conv2D(8, 3, padding="same")(layers.ReLU()(inner))])
    return stream


def depthwise(x):
    x = layers.ReLU(6.0)(layers.BatchNormalization()(layers.Conv2D(16, 1, use_bias=False)(x)))
    x = layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(x))
    return layers.Conv2D(8, 1, use_bias=False)(layers.PReLU(shared_axes=[1, 2])(x))


def separable(x):
    x = layers.SeparableConv2D(12, 3, padding="same", activation="sigmoid")(layers.Conv2D(12, 3, activation="relu")(x))
    return layers.SeparableConv2D(8, 3, use_bias=False)(layers.Activation("softplus")(x))


def concatenated(x):
    parts = [layers.Conv2D(6, 1)(x), layers.BatchNormalization(scale=False)(layers.Conv2D(12, 3, padding="same")(x)), x]
    both = layers.Activation("tanh")(layers.Concatenate()(parts))
    return layers.Concatenate()([layers.AveragePooling2D(3, 1, padding="same")(both), layers.Conv2D(5, 1)(both)])


def shared(x):
    both, scale = layers.Conv2D(8, 1), layers.BatchNormalization()
    return scale(both(scale(both(layers.Conv2D(8, 1)(x)))))


def transposed(x):
    x = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="elu")(layers.Conv2D(12, 3, activation="relu")(x))
    return layers.Conv2DTranspose(6, 2, activation="sigmoid")(layers.UpSampling2D()(layers.MaxPooling2D()(x)))


def nested(x):
    block = keras.Sequential([layers.Conv2D(8, 3, activation="sigmoid"), layers.BatchNormalization()], name="block")
    inner = functional(lambda y: layers.Conv2D(8, 1)(block(layers.Conv2D(12, 1, activation="softplus")(y))), x.shape[1:])
    return layers.Conv2D(8, 1)(inner(x))


def gated(x):
    x = layers.Activation("sigmoid")(layers.BatchNormalization()(layers.Conv2D(12, 3)(x)))
    squeezed = layers.Reshape((1, 1, 12))(layers.GlobalAveragePooling2D()(x))
    excited = layers.Conv2D(12, 1, activation="hard_sigmoid")(layers.Conv2D(6, 1, activation="relu")(squeezed))
    return layers.Multiply()([x, excited]) * 2.0 + 1.0


def mixed(x):
    x = layers.LayerNormalization()(layers.Conv2D(6, 3)(x))
    return layers.Conv2D(8, 3, groups=2)(layers.Conv2D(4, 1, activation="softmax")(layers.Conv2D(12, 1)(x)))


def padded(x):
    x = layers.ZeroPadding2D()(layers.Conv2D(12, 3, activation="sigmoid")(x))
    return layers.Conv2D(6, 3)(layers.Cropping2D()(layers.Conv2D(12, 3, padding="same", activation="sigmoid")(x)))


def in_sequence(x):
    x = layers.Conv1D(8, 3, padding="causal", activation="sigmoid")(layers.Reshape((64, 3))(x))
    return layers.Conv1D(8, 3, strides=2, activation="sigmoid")(layers.Conv1D(8, 1, activation="sigmoid")(x))


def answered(body):
    """The network of `body`, whose channels a last layer reads at each position."""
    return lambda: functional(lambda images: layers.Dense(3)(layers.Flatten()(body(images))), (8, 8, 3))


def several_answers():
    """One of them the channels that another layer reads, of which none may go."""

    def build(images, other):
        first = layers.Conv2D(6, 3, activation="relu")(images)
        second = layers.Conv2D(12, 3, activation="sigmoid")(layers.Add()([first, layers.Conv2D(6, 3)(other)]))
        return first, layers.Dense(1)(layers.Dense(12, activation="sigmoid")(layers.GlobalMaxPooling2D()(second)))

    return functional(build, (8, 8, 3), (8, 8, 1))


def sequential():
    return keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(12, 3), layers.Flatten(), layers.Dense(9), layers.Dense(2)])


def ours(name, size=16, **settings):
    return lambda: models.build(Model(name=name, **settings), signature.images(size, 3))


def application(name, shape=32, **options):
    return lambda: getattr(keras.applications, name)(weights=None, input_shape=(shape, shape, 3), classes=5, **options)


BODIES = (residual, depthwise, separable, concatenated, shared, transposed, nested, gated, mixed, padded, in_sequence)
NETWORKS = {
    **{body.__name__: answered(body) for body in BODIES},
    "several_answers": several_answers,
    "sequential": sequential,
    "lenet_300_100": ours("lenet_300_100"),
    "conv2": ours("conv2"),
    "resnet9": ours("resnet9", width=8),
    "resnet20": ours("resnet20", width=4),
    "mobilenet_v2": ours("mobilenet_v2", padding="symmetric"),
}
LARGE = {
    "mobilenet": application("MobileNet"),
    "mobilenet_v3": application("MobileNetV3Small"),
    "efficientnet": application("EfficientNetV2B0"),
    "densenet": application("DenseNet121"),
    "resnet_v2": application("ResNet50V2"),
    "inception_resnet": application("InceptionResNetV2", 75),
    "xception": application("Xception", 71),
    "nasnet": application("NASNetMobile", 32),
    "convnext": application("ConvNeXtTiny"),
    "vgg16": application("VGG16"),
}


def pruned(network, density, seed=0):
    """`network` with other values, in which only this share of each kernel is not 0, and half of the factors are."""
    rng = np.random.default_rng(seed)
    for variable in network.variables:
        if variable.path.endswith("kernel"):
            values = rng.normal(size=variable.shape) * np.sqrt(3 / density / np.prod(variable.shape[:-1]))
            variable.assign(values * (rng.random(variable.shape) < density))
        elif variable.path.endswith(("gamma", "variance")):
            variable.assign(rng.uniform(0.5, 2, variable.shape))
        elif keras.backend.is_float_dtype(variable.dtype):
            variable.assign(rng.normal(0, 0.5, size=variable.shape))
    return network


def answers(network, seed=1):
    rng = np.random.default_rng(seed)
    images = [rng.normal(size=(3, *(size or 24 for size in one.shape[1:]))) for one in network.inputs]
    return [np.asarray(each) for each in keras.tree.flatten(network(images if len(images) > 1 else images[0], training=False))]


def names(network):
    return [network.name, *(each.name for each in network._flatten_layers(False) if not isinstance(each, layers.InputLayer))]


def error(network, small):
    """How far the answers of `small` are off those of `network`, in shares of the largest."""
    pairs = zip(answers(small), answers(network), strict=True)
    return max(np.abs(one - other).max() / np.abs(other).max() for one, other in pairs)


@pytest.mark.parametrize("density", [0.5, 0.2, 0.05])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_compact_network_answers_as_the_pruned_one(name, density):
    with models.policy("float64"):
        network = pruned(NETWORKS[name](), density)
        small = compact(network)

        assert error(network, small) <= 1e-12
    assert names(small) == names(network)
    assert size(small).parameters <= size(network).parameters + 100  # biases that were not there
    assert not not_stock(small)


@pytest.mark.parametrize("name", large(*LARGE))
def test_so_do_networks_of_keras(name):
    with models.policy("float64"):
        network = pruned(LARGE[name](), 0.1)

        assert error(network, compact(network)) <= 1e-12


def test_in_float32_answers_are_as_near_as_its_digits_allow():
    network = pruned(NETWORKS["mobilenet_v2"](), 0.3)

    assert error(network, compact(network)) <= 1e-5


def test_the_network_itself_stays_as_it_was():
    network = pruned(sequential(), 0.1)
    before = [variable.numpy() for variable in network.variables]

    compact(network)

    assert all(np.array_equal(one, variable) for one, variable in zip(before, network.variables, strict=True))
    assert all(layer.output.shape for layer in network.layers)  # which is not known of a layer that is called twice


def small(layers_of, *shapes, **values):
    """A network with all weights 1 but for `values` of a layer's kernel, or of the variable NAME_VARIABLE, and what is left of
    it: the sizes of its layers by name."""
    network = functional(layers_of, *shapes)
    for variable in network.variables:
        layer, _, kind = variable.path.rpartition("/")
        given = values.get(f"{layer}_{kind}", values.get(layer) if kind == "kernel" else None)
        if given is not None or kind == "kernel":
            variable.assign(np.broadcast_to(1 if given is None else given, variable.shape))
    result = compact(network)
    assert error(network, result) <= 1e-6
    return {layer.name: layer.kernel.shape[-1] for layer in result.layers if hasattr(layer, "kernel")}, result


def dense(name, units, **options):
    return layers.Dense(units, name=name, **options)


def chain(x):
    return dense("c", 1)(dense("b", 2)(dense("a", 3)(x)))


def test_a_channel_goes_that_nobody_reads_and_so_does_what_only_that_reads():
    assert small(chain, (2,), a=np.eye(2, 3), b=[[1, 1], [0, 1], [1, 1]], c=[[1], [0]])[0] == {"a": 1, "b": 1, "c": 1}


def test_a_channel_of_a_stream_goes_that_only_blocks_read_which_write_no_other():
    def body(x):
        stream = dense("stream", 2)(x)
        return dense("out", 1)(layers.Add()([stream, dense("back", 2)(dense("inner", 2)(stream))]))

    assert set(small(body, (2,), inner=np.eye(2), back=np.eye(2), out=[[1], [0]])[0].values()) == {1}


@pytest.mark.parametrize(
    ("padding", "size", "bias", "kept"), [("same", 3, 0, 1), ("same", 3, 1, 2), ("valid", 3, 1, 1), ("same", 1, 1, 1)]
)
def test_what_is_the_same_for_every_image_goes_into_a_bias_unless_padding_is_read_beside_it(padding, size, bias, kept):
    def body(x):
        x = layers.Conv2D(2, 1, activation="relu", name="a")(x)
        return layers.Conv2D(1, size, padding=padding, use_bias=False, name="b")(x)

    sizes, network = small(body, (4, 4, 1), a=[[[[1, 0]]]], a_bias=[0, bias])

    assert sizes == {"a": kept, "b": 1}
    assert network.get_layer("b").use_bias == (bias == 1 and kept == 1)


@pytest.mark.parametrize(("offset", "kept"), [(0, 1), (1, 2)])
def test_a_gate_goes_where_the_other_factor_is_0_and_stays_where_it_is_another_constant(offset, kept):
    def body(x):
        factor = layers.BatchNormalization(name="bn")(dense("a", 2)(x))
        return dense("out", 1)(layers.Multiply()([factor, dense("gate", 2, activation="sigmoid")(x)]))

    assert small(body, (2,), bn_gamma=[1, 0], bn_beta=[0, offset])[0] == {"a": kept, "gate": kept, "out": 1}


@pytest.mark.parametrize(("second", "kept"), [(2, 1), (3, 2)])
def test_a_layer_that_is_called_twice_takes_a_constant_only_where_it_is_the_same_both_times(second, kept):
    def body(x):
        both = dense("both", 1)
        return layers.Add()([both(dense("a", 2)(x)), both(dense("b", 2)(x))])

    sizes, _ = small(body, (2,), a=np.eye(2) * [1, 0], b=np.eye(2) * [1, 0], a_bias=[0, 2], b_bias=[0, second])

    assert sizes == {"a": kept, "b": kept, "both": 1}


def test_where_no_path_is_left_each_layer_keeps_one_channel_which_nobody_reads():
    sizes, network = small(chain, (2,), a_bias=[1, 2, 3], b=0, b_bias=[4, 5])

    assert sizes == {"a": 1, "b": 1, "c": 1}
    assert network.get_layer("c").bias.numpy().tolist() == [9]
    assert not network.get_layer("c").kernel.numpy().any()


def test_layers_may_keep_a_multiple_of_channels_of_which_nobody_reads_those_that_make_it_up():
    rng, images = np.random.default_rng(0), np.random.default_rng(1).normal(size=(4, 6)).astype("float32")
    wide = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(12, "sigmoid"), keras.layers.Dense(9), keras.layers.Dense(2)]
    )
    for layer, gone in zip(wide.layers, (7, 6, 0), strict=True):
        kernel, bias = (rng.normal(size=variable.shape) for variable in layer.weights)
        kernel[:, :gone] = 0
        layer.set_weights([kernel, bias])

    small = compact(wide, multiple=4)

    assert [kernel.shape for kernel in small.weights[::2]] == [(6, 8), (8, 3), (3, 2)]
    np.testing.assert_allclose(small(images), wide(images), rtol=1e-5, atol=1e-6)


def test_without_the_sizes_of_images_only_what_nobody_reads_goes():
    def body(x):
        return layers.Conv2D(1, 1, name="b")(layers.Conv2D(3, 1, name="a")(x))

    assert small(body, (None, None, 2), a=[[[[1, 0, 1]] * 2]], b=[[[[1], [1], [0]]]])[0] == {"a": 2, "b": 1}


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


def quantised():
    network = sequential()
    network.quantize("int8")
    return network


@pytest.mark.parametrize(
    ("build", "message"),
    [(Subclassed, "not a built functional or Sequential"), (keras.Sequential, "not a built"), (quantised, "is quantised")],
)
def test_what_cannot_be_followed_is_refused(build, message):
    with pytest.raises(InputError, match=message):
        compact(build())
