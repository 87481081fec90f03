"""What a mask leaves of a network: densities, connections, layer collapse."""

import numpy as np
import pytest

from lottery.pruning import densities, masks
from lottery.pruning.connectivity import Node, Topology
from lottery.pruning.densities import Density, Kept, Layer
from lottery.pruning.state import State

TOPOLOGY = Topology(
    (
        Node("images", "input", 2),
        Node("a", "linear", 3, ("images",), kernels={"a/kernel": (2, 3)}),
        Node("b", "linear", 2, ("a",), kernels={"b/kernel": (3, 2)}),
    ),
    ("b",),
)
NETWORK = State(
    12,
    {
        "a/bias": np.zeros(3, np.float32),
        "a/kernel": np.arange(1, 7, dtype=np.float32).reshape(2, 3),
        "b/kernel": np.arange(7, 13, dtype=np.float32).reshape(3, 2),
    },
    {"bn/moving_mean": np.zeros(5, np.float32)},
    {},
)
A, B = np.array([[1, 0, 1], [1, 0, 0]], bool), np.array([[0, 0], [1, 1], [1, 0]], bool)  # 1 and 1 of them are connected


def kept(mask, topology=TOPOLOGY):
    return densities.kept(mask, NETWORK, topology)


def test_what_is_left_is_told_over_prunable_trainable_total_and_connected_weights():
    assert kept({"a/kernel": A, "b/kernel": B}) == Kept(
        density=Density(prunable=1 - 6 / 12, trainable=1 - 6 / 15, total=1 - 6 / 20, effective=2 / 12),
        layers={"a/kernel": Layer(6, 3), "b/kernel": Layer(6, 3)},
        disconnected=False,
    )


def test_of_the_whole_network_everything_is_left():
    found = kept(masks.whole(masks.prunable(NETWORK, "kernels")))

    assert (found.density, found.disconnected) == (Density(1.0, 1.0, 1.0, 1.0), False)


def test_without_a_topology_connections_are_not_known():
    found = kept({"a/kernel": A, "b/kernel": B}, None)

    assert (found.density.effective, found.disconnected) == (None, None)
    assert found.density.prunable == 0.5


def test_only_prunable_kernels_count_as_connected():
    assert kept({"a/kernel": A}).density.effective == 3 / 6  # channels 0 and 2 receive something


def test_statistics_count_nowhere_and_of_what_is_no_kernel_all_that_is_kept_is_connected():
    found = kept({"a/bias": np.array([True, False, True]), "a/kernel": A, "b/kernel": B, "bn/moving_mean": np.zeros(5, bool)})

    assert [*found.layers] == ["a/bias", "a/kernel", "b/kernel"]
    assert found.density.effective == (2 + 1 + 1) / 15
    assert found.density.prunable == pytest.approx(8 / 15)
    assert found.density.total == pytest.approx(1 - 7 / 20)


def test_a_mask_that_cuts_the_network_in_two_is_told():
    found = kept({"a/bias": np.ones(3, bool), "a/kernel": np.zeros((2, 3), bool)})

    assert found.disconnected is True
    assert found.density.effective == 3 / 9
    assert found.collapsed(0.001) == ["a/kernel"]


def test_a_scale_outside_the_scope_cuts_the_network_and_does_not_count():
    scale = Node("bn", "scale", 3, ("a",), gamma="bn/gamma")
    last = Node("b", "linear", 2, ("bn",), kernels={"b/kernel": (3, 2)})
    scaled = Topology((*TOPOLOGY.nodes[:2], scale, last), ("b",))
    network = State(0, NETWORK.weights | {"bn/gamma": np.ones(3, np.float32)}, {}, {})
    mask = {"a/kernel": A, "b/kernel": B, "bn/gamma": np.zeros(3, bool)}

    found = densities.kept(mask, network, scaled, prunable_paths={"a/kernel", "b/kernel"})

    assert list(found.layers) == ["a/kernel", "b/kernel"]
    assert (found.density.prunable, found.density.effective) == (6 / 12, 0)
    assert found.disconnected


LAYERS = {"a/kernel": Layer(4, 0), "b/kernel": Layer(10, 1), "c/kernel": Layer(4, 2), "dw/depthwise_kernel": Layer(2, 2)}


@pytest.mark.parametrize(("least", "named"), [(0.0, "a"), (0.1, "a"), (0.11, "ab"), (0.5, "ab"), (0.51, "abc"), (1.0, "abc")])
def test_a_kernel_of_which_nothing_or_less_than_a_share_is_left_has_collapsed(least, named):
    found = Kept(Density(1, 1, 1, None), LAYERS, None)

    assert found.collapsed(least) == [f"{name}/kernel" for name in named]


def test_what_is_no_kernel_or_empty_could_not_collapse():
    others = dict.fromkeys(("a/bias", "bn/gamma"), Layer(3, 0)) | {"e/kernel": Layer(0, 0), "dw/depthwise_kernel": Layer(3, 0)}

    assert Kept(Density(1, 1, 1, None), others, None).collapsed(1.0) == ["dw/depthwise_kernel"]


@pytest.mark.parametrize(
    ("layers", "disconnected", "words"),
    [
        ({}, False, None),
        ({}, None, None),
        (LAYERS, None, "hardly anything is left of a/kernel, b/kernel (layer collapse)"),
        (LAYERS, True, "no path from input to output is left (layer collapse)"),
        ({}, True, "no path from input to output is left (layer collapse)"),
    ],
)
def test_layer_collapse_is_warned_of_in_one_line(layers, disconnected, words):
    assert Kept(Density(1, 1, 1, None), layers, disconnected).warning(0.2) == words
