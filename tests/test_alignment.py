"""Aligned networks: renamed units compute the same, and are found again; a mask that follows them, by hand."""

import keras
import numpy as np
import pytest
import tiny
from test_channels import channels_of
from test_compaction import answered, concatenated, depthwise, gated, nested, ours, residual, separable, sequential, shared
from test_connectivity import linear, network
from test_shrinking import folded

from lottery.base.errors import InputError
from lottery.engine import models
from lottery.engine.activations import Activations
from lottery.pruning.alignment import Alignment, Matching, interchangeable
from lottery.pruning.connectivity import Node
from lottery.pruning.slices import axes
from lottery.pruning.state import State

pytestmark = pytest.mark.usefixtures("tensorflow")
layers = keras.layers


def inverted(x):
    """A residual stream whose branch is a depthwise kernel between two others, as in MobileNetV2."""
    stream = layers.Conv2D(6, 3, padding="same")(x)
    for _ in range(2):
        inner = layers.ReLU(6.0)(layers.BatchNormalization()(layers.Conv2D(10, 1, use_bias=False)(stream)))
        inner = layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same", use_bias=False)(inner))
        stream = layers.Add()([stream, layers.Conv2D(6, 1)(layers.ReLU(6.0)(inner))])
    return stream


BODIES = (residual, inverted, depthwise, separable, concatenated, shared, nested, gated, folded)
NETWORKS = {
    **{body.__name__: answered(body) for body in BODIES},
    "lenet": ours("lenet_300_100", 8),
    "conv2": ours("conv2", 8),
    "resnet20": ours("resnet20", width=4),
    "sequential": sequential,
}


def varied(model, rng):
    """Other values, by which no unit gives the same for all images: no kernel answers to the mean of what it reads."""
    for variable in model.trainable_variables:
        values = rng.uniform(1, 2, variable.shape)
        if len(variable.shape) > 1:
            window = tuple(range(len(variable.shape) - (2 if "depthwise" in variable.path else 1)))
            values = rng.normal(size=variable.shape) * np.sqrt(2 / np.prod([variable.shape[axis] for axis in window]))
            values -= values.mean(window)
        variable.assign(values if "kernel" in variable.path or "gamma" in variable.path else values - 1)


def state_of(model):
    return State(0, {variable.path: np.array(variable) for variable in model.variables}, {}, {})


def assign(model, arrays):
    for variable in model.variables:
        variable.assign(arrays[variable.path])


def renamed(groups, rng):
    """A random order of the channels of each group."""
    order = np.concatenate(groups)
    order[np.concatenate(groups)] = np.concatenate([rng.permutation(group) for group in groups])
    return order


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_renamed_units_computes_the_same_and_its_units_are_found_again(name):
    with models.policy("float64"):
        model, rng = NETWORKS[name](), np.random.default_rng(0)
    varied(model, rng)
    images = rng.normal(size=(64, *model.input_shape[1:]))
    read, before = Activations(model, images), state_of(model)
    naming = Alignment(renamed(interchangeable(read.channels), rng), read.axes)
    other = State(0, naming.permuted(before.weights), {}, {})
    expected = model(images, training=False).numpy()

    assign(model, other.weights)
    np.testing.assert_allclose(model(images, training=False).numpy(), expected, atol=1e-9 * np.abs(expected).max())
    matching = Matching(read.channels, read.axes)
    for one, two in read.of(before, other):
        matching.add(one, two)
    found = matching.alignment()

    assert (naming.order != np.arange(read.channels.count)).mean() > 0.5
    assert np.array_equal(naming.order[found.order], np.arange(read.channels.count))
    assert found.correlation == pytest.approx(1)
    again = found.permuted(other.weights)
    assert all(np.array_equal(again[path], array) for path, array in before.weights.items())


def test_channels_of_a_stream_or_a_depthwise_kernel_are_one_group_and_those_of_other_nodes_another():
    stream = [linear("a", "images", 2, 3), linear("b", "a", 3, 4), linear("c", "b", 4, 3), Node("sum", "add", 3, ("a", "c"))]
    deep = linear("d", "sum", 3, 3, 3, 1, width=3, groups=3)
    found = channels_of(network(*stream, deep, linear("e", "d", 3, 2)))

    assert sorted(group.tolist() for group in interchangeable(found)) == [[0, 1, 2], [3, 4, 5, 6]]
    fixed = channels_of(network(linear("a", "images", 2, 3), Node("softmax", "mix", 3, ("a",)), linear("b", "softmax", 3, 2)))
    assert interchangeable(fixed) == []


def test_a_mask_follows_the_units_by_hand():
    """Two inputs, two hidden units, which are exchanged, and two classes: inputs and classes stay where they are."""
    found = channels_of(network(linear("a", "images", 2, 2), linear("b", "a", 2, 2)))
    mask = {"a": np.array([[1, 0], [1, 1]], bool), "b": np.array([[0, 1], [1, 1]], bool), "none": np.array([True])}
    read = np.array([[0.0, 3.0], [1.0, 1.0], [2.0, 5.0]])
    matching = Matching(found, axes(found))
    matching.add({"b": read}, {"b": read[:, ::-1] * [2, 0.5] + 1})

    alignment = matching.alignment()

    assert (alignment.order.tolist(), alignment.correlation) == ([1, 0], pytest.approx(1))
    permuted = alignment.permuted(mask)
    assert permuted["a"].astype(int).tolist() == [[0, 1], [1, 1]]
    assert permuted["b"].astype(int).tolist() == [[1, 1], [0, 1]]
    assert permuted["none"] is mask["none"]


def test_batches_add_up_to_pearsons_correlation_and_what_is_constant_has_none():
    found = channels_of(network(linear("a", "images", 2, 3), Node("flat", "reshape", 6, ("a",)), linear("b", "flat", 6, 2)))
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(40, 6)), rng.normal(size=(40, 6))
    one[:, [2, 5]] = 0.1  # of the third unit, at both positions
    together, apart = (Matching(found, axes(found)) for _ in range(2))
    together.add({"b": one}, {"b": other})
    for part in (slice(0, 7), slice(7, 40)):
        apart.add({"b": one[part]}, {"b": other[part]})

    expected = np.corrcoef(one.reshape(80, 3)[:, :2].T, other.reshape(80, 3).T)[:2, 2:]
    best = max((expected[0, i] + expected[1, j], i, j) for i in range(3) for j in range(3) if i != j)
    for matching in (together, apart):
        alignment = matching.alignment()
        assert alignment.order[:2].tolist() == list(best[1:])
        assert alignment.correlation == pytest.approx(best[0] / 3)


def test_of_a_network_whose_connections_are_not_known_no_units_are_matched():
    with pytest.raises(InputError, match="does not tell how its layers are connected"):
        Activations(tiny.subclassed(8, 3), np.zeros((1, 8, 8, 3)))


def test_a_network_without_hidden_units_has_no_correlation():
    assert Matching(channels_of(network(linear("a", "images", 2, 2))), {}).alignment().correlation is None
