"""Channels: what goes together, in small networks of which it is known, and by brute force in networks of Keras."""

import dataclasses

import numpy as np
import pytest
from test_compaction import answered, gated, ours, shared, transposed
from test_connectivity import linear, network

from lottery.networks.topology import topology
from lottery.pruning.channels import STAYS, channels
from lottery.pruning.connectivity import Node

pytestmark = pytest.mark.usefixtures("tensorflow")


def numbers(found):
    return {
        path: array.ravel().tolist() for path, array in (found.inputs | {f"{p}:": o for p, o in found.outputs.items()}).items()
    }


def channels_of(topology, **options):
    return channels(topology, {}, **options)


def test_a_channel_is_the_outputs_of_one_kernel_and_the_inputs_of_the_next_but_for_images_and_answers():
    found = channels_of(network(linear("a", "images", 2, 3), linear("b", "a", 3, 2)))

    assert found.count == 3
    assert numbers(found) == {"a": [STAYS] * 2, "a:": [0, 1, 2], "b": [0, 1, 2], "b:": [STAYS] * 2}


def test_a_depthwise_filter_goes_with_its_channel_and_with_a_multiplier_all_that_read_it():
    depthwise = linear("d", "a", 3, 3, 2, 2, width=4, groups=2)
    found = channels_of(network(linear("a", "images", 2, 2), depthwise, linear("b", "d", 4, 2)))

    assert numbers(found)["d:"] == numbers(found)["b"] == [0, 0, 1, 1]


def test_a_residual_stream_is_one_channel_over_all_blocks_or_stays():
    branch = [linear("a", "images", 2, 2), linear("b", "a", 2, 3), linear("c", "b", 3, 2), Node("sum", "add", 2, ("a", "c"))]
    residual = network(*branch, linear("d", "sum", 2, 2))

    assert numbers(channels_of(residual))["c:"] == numbers(channels_of(residual))["d"] == [0, 1]
    left = numbers(channels_of(residual, streams=False))
    assert left["a:"] == left["c:"] == left["d"] == [STAYS] * 2
    assert left["b:"] == [0, 1, 2]


def test_flattened_channels_are_read_at_every_position_and_concatenated_ones_in_sequence():
    flat = network(linear("a", "images", 2, 2), Node("flat", "reshape", 6, ("a",)), linear("b", "flat", 6, 2))
    joined = Node("both", "concatenate", 4, ("a", "c"))
    beside = network(linear("a", "images", 2, 2), linear("c", "images", 2, 2), joined, linear("b", "both", 4, 2))

    assert numbers(channels_of(flat))["b"] == [0, 1, 0, 1, 0, 1]
    assert numbers(channels_of(beside))["b"] == [0, 1, 2, 3]


def test_kernels_of_several_groups_and_what_mixes_channels_stay():
    grouped = linear("g", "a", 3, 3, 2, 4, width=4, groups=2)
    mixed = Node("softmax", "mix", 3, ("a",))

    assert channels_of(network(linear("a", "images", 2, 4), grouped, linear("b", "g", 4, 2))).count == 0
    assert channels_of(network(linear("a", "images", 2, 3), mixed, linear("b", "softmax", 3, 2))).count == 0


def test_a_layer_that_is_called_twice_has_the_same_channels_each_time():
    twice = [linear("a", "images", 2, 3), linear("s", "a", 3, 3), Node("s:2", "linear", 3, ("s",), kernels={"s": (3, 3)})]
    found = channels_of(network(*twice, linear("b", "s:2", 3, 2)))

    assert numbers(found) == {
        "a": [STAYS] * 2,
        "a:": [0, 1, 2],
        "s": [0, 1, 2],
        "s:": [0, 1, 2],
        "b": [0, 1, 2],
        "b:": [STAYS] * 2,
    }


NETWORKS = {
    "mobilenet_v2": ours("mobilenet_v2", 8, alpha=0.1),
    "resnet20": ours("resnet20", 8, width=3),
    "lenet": ours("lenet_300_100", 8),
    **{body.__name__: answered(body) for body in (shared, transposed, gated)},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_without_the_inputs_of_what_reads_a_channel_nothing_else_of_it_matters(name):
    """By brute force, some channels one after the other."""
    model, rng = NETWORKS[name](), np.random.default_rng(0)
    found = channels(topology(model), {one.path: one.shape for one in model.variables})
    read = dataclasses.replace(found, outputs={path: np.full_like(at, STAYS) for path, at in found.outputs.items()}, vectors={})
    scales = {one.path: 1 / max(1, np.prod(one.shape[:-1])) for one in model.variables}  # so that no activation saturates
    values = {one.path: rng.uniform(0.2, 1, one.shape) * scales[one.path] for one in model.variables}
    images = rng.uniform(size=(2, 8, 8, 3)).astype("float32")
    assert found.count

    def answers(seed, gone):
        """With other values of all that the channel is made of."""
        noise, whole, rows = np.random.default_rng(seed), found.spread(~gone), read.spread(~gone)
        for variable in model.variables:
            kept, read_by = (mask.get(variable.path, np.True_) for mask in (whole, rows))
            made = np.where(kept, values[variable.path], noise.uniform(0.2, 1, variable.shape) * scales[variable.path])
            variable.assign(np.where(read_by, made, 0))
        return model(images, training=False).numpy()

    for number in rng.choice(found.count, min(found.count, 6), replace=False):
        gone = np.arange(found.count) == number
        assert not all(kept.all() for kept in read.spread(~gone).values())
        np.testing.assert_array_equal(answers(1, gone), answers(2, gone))


def test_the_total_of_a_channel_is_over_all_its_weights_each_of_them_once():
    depthwise = linear("d/kernel", "a/kernel", 3, 3, 2, 1, width=2, groups=2)
    shapes = {"a/bias": (2,), "d/beta": (2,), "d/alpha": (2, 1), "b/bias": (3,)}
    net = network(linear("a/kernel", "images", 2, 2), depthwise, linear("b/kernel", "d/kernel", 2, 3))
    found = channels(net, shapes)

    totals = {path: found.total(path, np.ones(shape)).tolist() for path, shape in (net.kernels | shapes).items()}

    assert totals == {
        "a/kernel": [2, 2, 4],
        "a/bias": [1, 1, 0],
        "d/kernel": [9, 9, 0],
        "d/beta": [1, 1, 0],
        "d/alpha": [0, 0, 0],
        "b/kernel": [3, 3, 6],
        "b/bias": [0, 0, 3],
    }


@pytest.mark.parametrize("name", NETWORKS)
def test_what_a_channel_totals_is_what_goes_with_it(name):
    model = NETWORKS[name]()
    found = channels(topology(model), {one.path: one.shape for one in model.variables})
    ones = {one.path: np.ones(one.shape) for one in model.variables}

    totals = sum(found.total(path, array) for path, array in ones.items())

    for number in range(found.count):
        gone = found.spread(np.arange(found.count) != number)
        assert sum(np.count_nonzero(~kept) for kept in gone.values()) == totals[number]
