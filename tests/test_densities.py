"""What a mask leaves of a network: densities, connections, layer collapse."""

import json

import numpy as np
import pytest
from handmade import finished

from data_prep import files
from lottery import cuts, densities, recipe, store
from lottery.connectivity import Node, Topology
from lottery.jobs import Chain
from lottery.results import listing
from lottery.run import Run

LAST = 12
CHAIN = Chain(1, "weights", 0)


def resolved(collapse=0.001, rate=20.0, exclude=()):
    return recipe.resolve({"thresholds": {"exclude": list(exclude), "collapse": collapse}, "rounds": {"rate": rate}})


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


def test_the_whole_network_is_told_of_where_there_is_no_mask():
    found = densities.figures({}, NETWORK, resolved(), TOPOLOGY)

    density = {"prunable": 1.0, "trainable": 1.0, "total": 1.0, "effective": 1.0}
    assert found == {"density": density, "collapsed": [], "disconnected": False}


# Of the three places of b's window two meet only padding.
PADDED = Topology(
    (
        IMAGES,
        Node("a", "linear", 3, ("images",), kernels={"a/kernel": (1, 1, 2, 3)}),
        Node("b", "linear", 2, ("a",), kernels={"b/kernel": (1, 3, 3, 2)}, met=((True,), (False, True, False))),
    ),
    ("b",),
)


def test_of_the_dense_network_what_meets_only_padding_is_not_connected(tmp_path):
    run = Run(tmp_path / "run", resolved())
    assert densities.effective_of_dense(run.replicate(1), run.recipe) is None

    kernels = {path: np.ones(shape, np.float32) for path, shape in PADDED.kernels.items()}
    store.save_state(run.replicate(1).snapshot(0), store.State(0, kernels | {"b/bias": np.ones(2, np.float32)}, {}, {}))
    assert densities.effective_of_dense(run.replicate(1), run.recipe) is None
    files.write_json(run.replicate(1).topology, PADDED.to_json())

    assert densities.effective_of_dense(run.replicate(1), run.recipe) == (6 + 6) / (6 + 18)
    assert densities.effective_of_dense(run.replicate(1), resolved(exclude=["a/*"])) == 6 / 18
    [row] = listing.rows(run)
    assert (row["variant"], row["density"], row["density_effective"]) == ("dense", 1.0, 0.5)


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
        ({"collapsed": [], "disconnected": True, "constant": True}, "no path from input to output is left (layer collapse)"),
        ({"collapsed": [], "disconnected": False, "constant": True}, "every image the same answer (collapsed in training)"),
        ({"collapsed": [], "disconnected": False, "constant": False}, None),
    ],
)
def test_layer_collapse_is_warned_of_in_one_line(row, words):
    found = densities.warning(row)

    assert found is None if words is None else found.endswith(words)
    assert "\n" not in (found or "")


def test_a_round_of_a_network_of_known_topology_says_what_is_connected(tmp_path):
    run = Run(tmp_path / "run", resolved(rate=50.0))  # a goes as a whole
    store.save_state(run.replicate(1).snapshot(LAST), NETWORK)
    files.write_json(run.replicate(1).topology, TOPOLOGY.to_json())
    finished(run.replicate(1), LAST)

    cuts.cut(run, CHAIN, 1, LAST)

    table = files.read_json(run.replicate(1).level(CHAIN, 1).table)
    assert table["density"]["effective"] == 0
    assert table["disconnected"] is True
    assert table["collapsed"] == ["a/kernel"]
    assert densities.topology_of(run.replicate(1)) == TOPOLOGY
    assert densities.topology_of(run.replicate(2)) is None
