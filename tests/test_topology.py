"""Topologies of Keras networks: every kernel is in them, and they agree with the gradients of the networks themselves."""

import re
from math import prod

import keras
import numpy as np
import pytest
import tiny
from helpers import large

from lottery.engine import models, signature
from lottery.experiment import networks
from lottery.experiment.recipe import Model
from lottery.networks.topology import topology
from lottery.pruning import costs, masks
from lottery.pruning.connectivity import effective, layouts, met
from lottery.pruning.state import State
from lottery.rundir.names import Replicate

pytestmark = pytest.mark.usefixtures("tensorflow")  # set up before a test here starts it


def kernels(network):
    shapes = {variable.path: tuple(variable.shape) for variable in network.variables}
    return {path: shape for path, shape in shapes.items() if masks.in_scope(path, shape, "kernels")}


def functional(layers, *shapes):
    """The network that `layers` makes of inputs of `shapes`."""
    inputs = [keras.Input(shape) for shape in shapes]
    return keras.Model(inputs if len(inputs) > 1 else inputs[0], layers(*inputs))


def kinds(network):
    return [node.kind for node in topology(network).nodes]


def random_mask(network, density, seed=0):
    rng = np.random.default_rng(seed)
    return {path: rng.random(shape) < density for path, shape in kernels(network).items()}


def windows(mask):
    """`mask` with every kept place of a convolution's window widened to the whole window."""
    return {path: kept | kept.any(axis=tuple(range(kept.ndim - 2)), keepdims=True) for path, kept in mask.items()}


def on_a_gradients_path(network, mask, images):
    """The kept weights, bool by kernel path, on which the outputs of `network` depend under `mask`.

    Kept weights are positive and average what they read, so that all the activations see only positive numbers and stay small.
    """
    import tensorflow as tf

    variables = {variable.path: variable for variable in network.variables if variable.path in mask}
    for path, variable in variables.items():
        fan_in = max(1, mask[path].reshape(-1, mask[path].shape[-1]).sum(axis=0).max())
        variable.assign(mask[path] / fan_in / 2)
    with tf.GradientTape() as tape:
        outputs = tf.reduce_sum(network(images, training=False))
    gradients = tape.gradient(outputs, [variable.value for variable in variables.values()])
    return {path: kept & (gradient.numpy() != 0) for (path, kept), gradient in zip(mask.items(), gradients, strict=True)}


def without_filters_of_padding(network, mask):
    """`mask` without filters all of whose kept places only meet padding, which widened would be others."""
    places = met(topology(network))
    meeting = windows({path: kept & places.get(path, True) for path, kept in mask.items()})
    return {path: kept & meeting[path] for path, kept in mask.items()}


def expect_agreement(network, mask, images):
    """The topology of `network` gives the counts that its gradients do."""
    mask = without_filters_of_padding(network, mask)
    wide = windows(mask)
    numeric = on_a_gradients_path(network, wide, images)

    result = effective(topology(network), wide)
    assert result.connected == {path: np.count_nonzero(weights) for path, weights in numeric.items()}
    assert result.disconnected == (not any(weights.any() for weights in numeric.values()))
    places = effective(topology(network), mask).connected
    assert places == {path: np.count_nonzero(weights & mask[path]) for path, weights in numeric.items()}
    return result


@pytest.mark.parametrize(
    ("name", "padding"),
    [
        *((name, "same") for name in networks.OURS if "padding" not in networks.OURS[name]),
        ("resnet20", "same"),
        *(("tiny:parts", "same"), ("tiny:symmetric_parts", "symmetric")),
        *large(*((name, "same") for name, keys in networks.OURS.items() if "padding" in keys and name != "resnet20")),
        *large(*((name, "symmetric") for name, keys in networks.OURS.items() if "padding" in keys)),
    ],
)
def test_every_network_has_all_its_kernels_connected_until_it_is_pruned(name, padding, tmp_path):
    network = models.build(Model(name=name, padding=padding), signature.images(64, 10))
    graph = topology(network)

    assert graph.kernels == kernels(network)
    assert "mix" not in kinds(network)
    assert met(graph) == {}
    Replicate(tmp_path).write_topology(graph)
    assert "met" not in Replicate(tmp_path).topology.read_text()
    result = effective(graph, {path: np.ones(shape, bool) for path, shape in graph.kernels.items()})
    assert result.connected == {path: prod(shape) for path, shape in graph.kernels.items()}
    assert not result.disconnected
    assert layouts(graph).keys() == graph.kernels.keys()


@pytest.mark.parametrize(
    ("name", "first", "others"),
    [
        ("mobilenet_v2", "block_13_depthwise", ["block_14_depthwise", "block_15_depthwise", "block_16_depthwise"]),
        *large(("resnet50", "stage4_block1_conv2", ["stage4_block2_conv2", "stage4_block3_conv2"])),
    ],
)
@pytest.mark.parametrize(
    ("padding", "corner"),  # a map of 2x2, in steps of two
    [
        ("same", [[True, True, False], [True, True, False], [False] * 3]),
        ("symmetric", [[False] * 3, [False, True, True], [False, True, True]]),
    ],
)
def test_on_small_images_the_rims_of_the_last_kernels_meet_only_padding(name, first, others, padding, corner, tmp_path):
    network = models.build(Model(name=name, alpha=0.35, padding=padding), signature.images(32, 10))
    Replicate(tmp_path).write_topology(topology(network))
    graph = Replicate(tmp_path).read_topology()

    centre = [[False] * 3, [False, True, False], [False] * 3]  # maps of one pixel
    found = met(graph)
    assert {path: places.shape for path, places in found.items()} == dict.fromkeys(found, (3, 3, 1, 1))
    assert {path: places[..., 0, 0].tolist() for path, places in found.items()} == {
        f"{first}/kernel": corner,
        **{f"{other}/kernel": centre for other in others},
    }
    shares = {f"{first}/kernel": 4 / 9, **{f"{other}/kernel": 1 / 9 for other in others}}
    connected = {path: round(prod(shape) * shares.get(path, 1)) for path, shape in graph.kernels.items()}
    assert effective(graph, {}).connected == connected


@pytest.mark.parametrize("name", ["MobileNetV3Small", *large("EfficientNetV2B0", "ConvNeXtTiny", "InceptionResNetV2")])
def test_so_have_those_of_keras_applications(name):
    network = getattr(keras.applications, name)(weights=None, classifier_activation=None)
    graph = topology(network)

    assert graph.kernels == kernels(network)
    result = effective(graph, {})
    assert result.connected == {path: prod(shape) for path, shape in graph.kernels.items()}
    assert all("norm" in node.name for node in graph.nodes if node.kind == "mix")  # ConvNeXt's, over all channels


@pytest.mark.parametrize(
    ("name", "density"), [("tiny:parts", 0.1), ("resnet20", 0.005), ("conv2", 0.01), *large(("resnext29_32x4d", 0.02))]
)
@pytest.mark.parametrize("policy", ["float64"], indirect=True)
@pytest.mark.usefixtures("policy")
def test_connected_are_the_weights_that_have_a_gradient(name, density):
    network = models.build(Model(name=name), signature.images(16, 10))
    mask = random_mask(network, density)

    result = expect_agreement(network, mask, np.ones((1, 16, 16, 3)))
    kept = sum(np.count_nonzero(weights) for weights in windows(mask).values())
    assert 0 < sum(result.connected.values()) < kept


@pytest.mark.parametrize("policy", ["float64"], indirect=True)
@pytest.mark.usefixtures("policy")
def test_gates_separable_and_transposed_convolutions_and_nested_networks_agree_with_their_gradients():
    layers = keras.layers
    inner = keras.Sequential([keras.Input((8, 8, 6)), layers.Conv2D(6, 3, padding="same"), layers.ReLU()], name="inner")

    def graph(images):
        x = layers.SeparableConv2D(6, 3, depth_multiplier=2, padding="same", use_bias=False)(images)
        x = layers.Add()([x, inner(x)])
        squeezed = layers.Dense(3, "relu", use_bias=False)(layers.GlobalAveragePooling2D()(x))
        gate = layers.Dense(6, "sigmoid", use_bias=False)(squeezed)
        x = layers.Multiply()([x, layers.Reshape((1, 1, 6))(gate)])
        x = inner(layers.Conv2DTranspose(6, 3, padding="same", use_bias=False)(x))
        x = keras.ops.relu(layers.Concatenate()([x, images]))
        return layers.Dense(2, use_bias=False)(layers.Flatten()(x))

    network = functional(graph, (8, 8, 3))
    assert "mix" not in kinds(network)
    for seed in range(20):
        expect_agreement(network, random_mask(network, 0.15, seed), np.ones((1, 8, 8, 3)))


def test_a_network_within_a_network_is_read_where_it_is_called():
    dense = keras.layers.Dense
    inner = keras.Sequential([keras.Input((4,)), dense(4, name="first"), dense(4, name="second")], name="inner")
    network = functional(lambda x: dense(2)(inner(inner(x))), (4,))

    names = [node.name for node in topology(network).nodes]
    assert names[1:5] == ["inner/first", "inner/second", "inner/first:2", "inner/second:2"]
    assert topology(network).kernels == kernels(network)


def test_what_may_do_anything_mixes_all_channels():
    class Own(keras.layers.Dense):
        pass

    dense, attention = keras.layers.Dense, keras.layers.MultiHeadAttention(2, 4)

    assert kinds(functional(lambda x: dense(2)(Own(3)(x)), (4,))) == ["input", "mix", "linear"]
    assert kinds(functional(lambda x: dense(2)(keras.layers.Lambda(abs)(x)), (4,))) == ["input", "mix", "linear"]
    assert kinds(functional(lambda x: dense(2)(dense(3, "softmax")(x)), (4,))) == ["input", "linear", "mix", "linear"]
    assert kinds(functional(keras.layers.EinsumDense("bi,ij->bj", 4), (4,))) == ["input", "mix"]
    assert kinds(functional(keras.layers.Permute((2, 1)), (4, 2))) == ["input", "mix"]
    assert kinds(functional(keras.layers.MaxPooling2D(data_format="channels_first"), (3, 4, 4))) == ["input", "mix"]
    network = functional(lambda x: dense(2)(attention(x, x)), (5, 4))
    assert kinds(network) == ["input", "mix", "linear"]
    assert topology(network).kernels == kernels(network)
    assert kinds(functional(lambda x: keras.ops.split(x, 2, axis=-1), (4,))) == ["input", "mix", "mix"]


def test_a_number_that_is_added_makes_a_gate():
    def graph(x):
        return keras.layers.Multiply()([x, 1 + keras.layers.Dense(4)(x)])

    assert topology(functional(graph, (4,))).nodes[-1].gates == (1,)


def test_concatenating_positions_merges_channels():
    network = functional(lambda a, b: keras.layers.Concatenate(axis=1)([a, b]), (2, 2, 3), (4, 2, 3))

    assert kinds(network) == ["input", "input", "add"]


def test_a_network_whose_graph_cannot_be_read_has_no_topology():
    network = tiny.subclassed(8, 3)
    network(np.ones((1, 8, 8, 3)))

    assert topology(network) is None
    assert topology(keras.Sequential([keras.layers.Dense(2)])) is None


@pytest.mark.parametrize(
    ("model", "size", "classes", "macs"),
    [
        (Model(name="lenet_300_100"), 28, 10, 28 * 28 * 3 * 300 + 300 * 100 + 100 * 10),
        (Model(name="mobilenet_v2", alpha=1.0), 224, 1000, pytest.approx(300e6, rel=0.01)),  # those of its paper
        (Model(name="resnet20"), 32, 10, pytest.approx(41e6, rel=0.02)),
        (Model(name="wrn_22_2"), 32, 10, 157_730_048),
    ],
)
def test_positions_are_how_often_each_weight_is_multiplied(model, size, classes, macs):
    graph = topology(models.build(model, signature.images(size, classes)))

    assert sum(prod(shape) * graph.positions[path] for path, shape in graph.kernels.items()) == macs


def test_positions_of_strided_transposed_and_shared_kernels():
    shared = keras.layers.Dense(3, name="shared")

    def layers(x):
        x = keras.layers.Conv2D(4, 3, 2, padding="same", name="strided")(x)  # 8 x 8 to 4 x 4
        x = keras.layers.Conv2DTranspose(3, 3, 2, padding="same", name="transposed")(x)  # 4 x 4 to 8 x 8
        return shared(shared(x))

    assert topology(functional(layers, (8, 8, 2))).positions == {
        "strided/kernel": 16,
        "transposed/kernel": 16,
        "shared/kernel": 2 * 64,
    }


SEQUENCE = (16, 6)  # steps, features


@pytest.mark.parametrize(
    ("layers", "shapes", "macs"),
    [
        (lambda x, y: keras.layers.MultiHeadAttention(2, 4)(x, y), [(5, 6), (9, 6)], 2 * (5 + 9) * 6 * 8),
        (lambda x, y: keras.layers.GroupQueryAttention(4, 4, 2)(x, y), [(5, 6), (9, 6)], 6 * (2 * 5 * 16 + 2 * 9 * 8)),
        (lambda x: keras.layers.Conv2D(4, 3, data_format="channels_first")(x), [(6, 8, 9)], 6 * 7 * 9 * 6 * 4),
        (lambda x: keras.layers.Embedding(30, 4)(x), [(5,)], 0),
        (lambda x: OwnMatrix()(x), [SEQUENCE], None),
        (lambda x: OwnBlock()(x), [SEQUENCE], None),
        (lambda x: keras.layers.LSTM(5)(x), [SEQUENCE], None),
        (lambda x: keras.layers.GlobalAveragePooling1D()(keras.layers.Dense(5)(x)), [(None, 6)], None),
        (lambda x: OwnScale()(x), [SEQUENCE], 0),
    ],
)
def test_multiplications_of_what_mixes_channels_are_counted_where_that_can_be_done(layers, shapes, macs):
    graph = topology(
        functional(lambda *given: keras.layers.Dense(2, name="head")(keras.layers.Flatten()(layers(*given))), *shapes)
    )

    head = prod(graph.kernels["head/kernel"])
    found = costs.costs({}, zeros(graph), graph).dense_macs
    assert found == (None if macs is None else macs + head)
    assert bool(graph.uncounted) == (macs is None)
    assert not any(path.startswith("head") for path in graph.uncounted)


def zeros(graph):
    return State(0, {path: np.zeros(shape, np.float32) for path, shape in graph.kernels.items()}, {}, {})


class OwnMatrix(keras.layers.Layer):
    def build(self, shape):
        self.w = self.add_weight((shape[-1], 4), name="w")

    def call(self, x):
        return x @ self.w


class OwnDense(keras.layers.Dense):
    pass


class OwnBlock(keras.layers.Layer):
    def build(self, shape):
        self.dense, self.attention = keras.layers.Dense(4), keras.layers.MultiHeadAttention(2, 3)
        self.dense.build(shape)
        self.attention.build(shape, shape)
        self.place = self.add_weight(shape[1:], name="place")

    def call(self, x):
        return self.dense(x + self.place + self.attention(x, x))


class OwnScale(keras.layers.Layer):
    def build(self, shape):
        self.gain = self.add_weight((shape[-1],), name="gain")

    def call(self, x):
        return x * self.gain


def test_kernels_of_layers_of_ones_own_are_their_matrices_of_whatever_name():
    def names(layer):
        graph = topology(functional(layer, SEQUENCE))
        return [path.partition("/")[2] for path in graph.kernels]

    assert names(OwnMatrix()) == ["w"]
    assert names(OwnScale()) == []
    assert names(OwnDense(4)) == ["kernel"]
    attention = [f"multi_head_attention/{part}/kernel" for part in ("query", "key", "value", "attention_output")]
    found = [path[path.find("multi_head") :] if "multi_head" in path else path for path in names(OwnBlock())]
    assert sorted(re.sub(r"_\d+", "", path) for path in found) == sorted(["place", "dense/kernel", *attention])
