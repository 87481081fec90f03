"""What a mask leaves of a network: densities, connections, layer collapse."""

import json

import numpy as np
import pytest

from lottery import cuts, densities, recipe, store
from lottery.connectivity import Node, Topology
from lottery.jobs import Chain
from lottery.run import Run

LAST = 12
CHAIN = Chain(1, "weights", 0)


def resolved(collapse=0.001, rate=20.0):
    return recipe.resolve({"thresholds": {"exclude": [], "collapse": collapse}, "rounds": {"rate": rate}})


IMAGES = Node("images", "input", 2)
TOPOLOGY = Topology(
    (
        IMAGES,
        Node("a", "linear", 3, ("images",), kernels={"a/kernel": (2, 3)}),
        Node("b", "linear", 2, ("a",), kernels={"b/kernel": (3, 2)}),
    ),
    ("b",),
)
NETWORK = store.State(
    LAST,
    {
        "a/bias": np.zeros(3, np.float32),
        "a/kernel": np.arange(1, 7, dtype=np.float32).reshape(2, 3),
        "b/kernel": np.arange(7, 13, dtype=np.float32).reshape(3, 2),
    },
    {"bn/moving_mean": np.zeros(5, np.float32)},
    {},
)
A, B = np.array([[1, 0, 1], [1, 0, 0]], bool), np.array([[0, 0], [1, 1], [1, 0]], bool)  # 1 and 1 of them are connected


def test_what_is_left_is_told_over_prunable_trainable_total_and_connected_weights():
    found = densities.figures({"a/kernel": A, "b/kernel": B}, NETWORK, resolved(), TOPOLOGY)

    assert found == {
        "density": {"prunable": 1 - 6 / 12, "trainable": 1 - 6 / 15, "total": 1 - 6 / 20, "effective": 2 / 12},
        "collapsed": [],
        "disconnected": False,
    }


def test_without_a_topology_connections_are_not_known():
    found = densities.figures({"a/kernel": A, "b/kernel": B}, NETWORK, resolved(), None)

    assert (found["density"]["effective"], found["disconnected"]) == (None, None)
    assert found["density"]["prunable"] == 0.5


def test_only_prunable_kernels_count_as_connected():
    found = densities.figures({"a/kernel": A}, NETWORK, resolved(), TOPOLOGY)  # channels 0 and 2 receive something

    assert found["density"]["effective"] == 3 / 6


def test_of_variables_that_are_no_kernels_what_is_kept_counts_as_connected():
    mask = {"a/bias": np.array([True, False, True]), "a/kernel": A, "b/kernel": B, "bn/moving_mean": np.zeros(5, bool)}

    found = densities.figures(mask, NETWORK, resolved(), TOPOLOGY)

    assert found["density"]["effective"] == (2 + 1 + 1) / 15
    assert found["density"]["prunable"] == pytest.approx(8 / 15)
    assert found["collapsed"] == []
    json.dumps(found)


def test_a_mask_that_cuts_the_network_in_two_is_told():
    found = densities.figures({"a/bias": np.ones(3, bool), "a/kernel": np.zeros((2, 3), bool)}, NETWORK, resolved(), TOPOLOGY)

    assert found["disconnected"] is True
    assert found["density"]["effective"] == 3 / 9
    assert found["collapsed"] == ["a/kernel"]


def test_a_layer_that_keeps_less_than_the_recipes_share_has_collapsed():
    mask = {"a/kernel": A, "b/kernel": np.array([[1, 0], [0, 0], [0, 0]], bool)}

    assert densities.figures(mask, NETWORK, resolved(collapse=0.16), TOPOLOGY)["collapsed"] == []
    assert densities.figures(mask, NETWORK, resolved(collapse=0.17), TOPOLOGY)["collapsed"] == ["b/kernel"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"collapsed": [], "disconnected": False}, None),
        ({"collapsed": [], "disconnected": None}, None),
        ({}, None),
        ({"collapsed": ["a/kernel", "b/kernel"], "disconnected": None}, "a/kernel, b/kernel (layer collapse)"),
        ({"collapsed": ["a/kernel"], "disconnected": True}, "no path from input to output is left (layer collapse)"),
        ({"collapsed": [], "disconnected": True}, "no path from input to output is left (layer collapse)"),
    ],
)
def test_layer_collapse_is_warned_of_in_one_line(row, words):
    found = densities.warning(row)

    assert found is None if words is None else found.endswith(words)
    assert "\n" not in (found or "")


def test_a_round_of_a_network_of_known_topology_says_what_is_connected(tmp_path):
    run = Run(tmp_path / "run", resolved(rate=50.0))  # a goes as a whole
    store.save_state(run.replicate(1).snapshot(LAST), NETWORK)
    run.replicate(1).topology.write_text(json.dumps(TOPOLOGY.to_json()))

    cuts.cut(run, CHAIN, 1, LAST)

    table = json.loads(run.replicate(1).level(CHAIN, 1).table.read_text())
    assert table["density"]["effective"] == 0
    assert table["disconnected"] is True
    assert table["collapsed"] == ["a/kernel"]
    assert densities.topology_of(run.replicate(1)) == TOPOLOGY
    assert densities.topology_of(run.replicate(2)) is None
