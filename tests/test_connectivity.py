"""Effective density: small networks of which the answer is known, and random ones against their numbers."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lottery.base.errors import InputError
from lottery.pruning.connectivity import Node, Topology, effective, layouts, met
from lottery.rundir.names import Replicate

IMAGES = Node("images", "input", 2)


def linear(name, source, *shape, width=None, **options):
    return Node(name, "linear", width or shape[-1], (source,), kernels={name: shape}, **options)


def network(*nodes, images=IMAGES):
    """The topology of `nodes` on two input channels; the last is the output."""
    return Topology((images, *nodes), (nodes[-1].name,))


def ones(topology, **masks):
    """A mask that keeps all but what `masks` (name -> nested lists of 0 and 1) prune."""
    kept = {path: np.ones(shape, bool) for path, shape in topology.kernels.items()}
    return kept | {path: np.array(mask, bool).reshape(topology.kernels[path]) for path, mask in masks.items()}


def connected(topology, **masks):
    return effective(topology, ones(topology, **masks)).connected


def test_kernels_without_a_mask_are_wholly_kept():
    chain = network(linear("a", "images", 2, 3), linear("b", "a", 3, 2))

    assert effective(chain, {}) == effective(chain, ones(chain))
    assert effective(chain, {"a": np.eye(2, 3, dtype=bool)}).connected == {"a": 2, "b": 4}


def test_the_places_that_are_met_are_told_by_kernel():
    half = linear("a", "images", 2, 3, 2, 2, met=((True, False), (True, True, False)))
    whole = linear("b", "a", 3, 3, 2, 2)

    found = met(network(half, whole))

    assert found.keys() == {"a"}
    assert found["a"].tolist() == [[[[True]], [[True]], [[False]]], [[[False]]] * 3]


def test_a_kernel_that_two_nodes_share_meets_what_either_does():
    first = linear("a", "images", 1, 3, 2, 2, met=((True,), (True, False, False)))
    second = Node("a:2", "linear", 2, ("a",), kernels={"a": (1, 3, 2, 2)}, met=((True,), (False, True, False)))
    twice = network(first, second)

    assert met(twice)["a"].ravel().tolist() == [True, True, False]
    assert connected(twice) == {"a": 8}
    assert connected(twice, a=[[[1, 0], [0, 0]], [[1, 1], [0, 0]], [[1, 1], [1, 1]]]) == {"a": 3}
    assert met(network(first, Node("a:3", "linear", 2, ("a",), kernels={"a": (1, 3, 2, 2)}))) == {}


def test_a_transposed_kernel_has_places_that_are_not_met_too():
    transposed = network(
        Node("t", "linear", 3, ("images",), kernels={"t": (1, 2, 3, 2)}, transposed=True, met=((True,), (False, True)))
    )

    assert connected(transposed) == {"t": 6}
    assert connected(transposed, t=[[[1, 1]] * 3, [[1, 0], [0, 0], [0, 0]]]) == {"t": 1}


def test_a_transposed_convolution_has_its_outputs_first():
    transposed = network(
        Node("t", "linear", 3, ("images",), kernels={"t": (1, 1, 3, 2)}, transposed=True), linear("b", "t", 3, 1)
    )

    assert connected(transposed, t=[[1, 0], [1, 1], [0, 0]], b=[0, 1, 1]) == {"t": 2, "b": 1}


def test_what_the_axes_of_each_kernel_are_follows_from_the_topology():
    nodes = (
        linear("wide", "images", 1, 1, 2, 12),
        linear("depth", "wide", 3, 3, 12, 2, width=24, groups=12),
        linear("group", "depth", 3, 3, 12, 6, groups=2),
        Node("up", "linear", 8, ("group",), kernels={"up": (3, 3, 8, 6)}, transposed=True),
        Node("any", "mix", 8, ("up",), kernels={"any": (8, 8)}),
        Node("flat", "reshape", 32, ("any",)),
        linear("out", "flat", 32, 4),
    )

    known = layouts(network(*nodes))

    arranged = {path: node.arranged(np.ones(node.kernels[path]), incoming) for path, (node, incoming) in known.items()}
    assert {path: array.shape for path, array in arranged.items()} == {
        "wide": (1, 2, 1, 12),
        "depth": (9, 1, 12, 2),
        "group": (9, 12, 2, 3),
        "up": (9, 6, 1, 8),
        "out": (1, 32, 1, 4),
    }
    assert layouts(None) == {}


def test_a_pruned_gamma_cuts_its_channel_and_pruned_biases_do_nothing():
    normalised = network(linear("a", "images", 2, 2), Node("bn", "scale", 2, ("a",), gamma="bn/gamma"), linear("b", "bn", 2, 1))
    mask = ones(normalised)

    assert effective(normalised, {**mask, "bn/gamma": np.array([True, False])}).connected == {"a": 2, "b": 1}
    assert effective(normalised, {**mask, "bn/beta": np.zeros(2, bool)}) == effective(normalised, mask)


def test_an_unknown_layer_passes_everything_if_anything():
    nodes = linear("a", "images", 2, 2), Node("any", "mix", 4, ("a",), kernels={"any": (2, 2)}), linear("b", "any", 4, 2)
    unknown = network(*nodes)

    assert connected(unknown, a=[[1, 0], [0, 0]], any=[[1, 1], [1, 0]]) == {"a": 1, "any": 3, "b": 8}
    assert connected(unknown, b=[[0, 0], [0, 0], [0, 0], [1, 0]]) == {"a": 4, "any": 4, "b": 1}
    assert connected(unknown, a=[[0, 0], [0, 0]]) == {"a": 0, "any": 0, "b": 0}


def test_a_weight_that_two_nodes_share_is_connected_if_it_is_in_either():
    first, second = linear("a", "images", 2, 2), dataclasses.replace(linear("a", "a", 2, 2), name="a:2")
    shared = network(first, second)

    # The first use connects both weights of the first input; the output is the second channel.
    assert connected(shared, a=[[0, 1], [0, 1]]) == {"a": 2}
    assert connected(shared, a=[[0, 1], [0, 0]]) == {"a": 0}
    assert effective(shared, {}).connected == {"a": 4}


def test_a_mask_of_another_network_is_refused():
    with pytest.raises(InputError, match=r"the mask of a has shape \(2, 3\), its kernel \(2, 2\)"):
        effective(network(linear("a", "images", 2, 2)), {"a": np.ones((2, 3), bool)})


def test_large_kernels_are_looked_at_piece_by_piece():
    kernel = np.ones((2000, 3000), bool)
    kernel[:, 1:] = False
    tracemalloc.start()
    result = effective(network(linear("a", "images", 2000, 3000), images=Node("images", "input", 2000)), {"a": kernel})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert result.connected == {"a": 2000}
    assert peak < kernel.nbytes / 4


@st.composite
def networks(draw):
    """A random network on images of four pixels, and a random mask of it."""
    nodes = [Node("images", "input", draw(st.integers(1, 3)))]
    for number in range(draw(st.integers(1, 6))):
        nodes.append(_layer(draw, nodes, f"n{number}"))
    assume(_tells_its_gates(nodes))
    flat = Node("flat", "reshape", 4 * nodes[-1].width, (nodes[-1].name,))
    outputs = linear("output", "flat", flat.width, draw(st.integers(1, 2)))
    topology = Topology((*nodes, flat, outputs), ("output",))
    rng, density = np.random.default_rng(draw(st.integers(0, 2**32))), draw(st.sampled_from([0.3, 0.6, 0.9]))
    return topology, {path: rng.random(shape) < density for path, shape in topology.kernels.items()}


def _tells_its_gates(nodes):
    """Whether each factor that is not zero without input, as a product of gates is, counts as a gate: a topology that was read
    from a network says so."""
    constant = set()
    for node in nodes:
        factors = enumerate(node.inputs) if node.kind == "multiply" else ()
        if any(name in constant and place not in node.gates for place, name in factors):
            return False
        if node.gates == (0, 1) or constant & set(node.inputs):
            constant.add(node.name)
    return True


def _layer(draw, nodes, name):
    source = draw(st.sampled_from(nodes))
    alike = [node.name for node in nodes if node.width in (1, source.width)]
    kind = draw(st.sampled_from(["convolution", "pointwise", "grouped", "depthwise", "add", "multiply", "concatenate"]))
    width = draw(st.integers(1, 3))
    match kind:
        case "convolution":
            places = draw(st.sampled_from([(), ((True,), (True, False)), ((True,), (False, True)), ((False,), (True, True))]))
            return linear(name, source.name, 1, 2, source.width, width, met=places)
        case "pointwise":
            return linear(name, source.name, 1, 1, source.width, width)
        case "grouped":
            groups = draw(st.sampled_from([count for count in range(1, 7) if source.width % count == 0]))
            return linear(name, source.name, 1, 1, source.width // groups, width * groups, groups=groups)
        case "depthwise":
            return linear(name, source.name, 1, 2, source.width, 2, width=2 * source.width, groups=source.width)
        case "concatenate":
            other = draw(st.sampled_from(nodes))
            return Node(name, "concatenate", source.width + other.width, (source.name, other.name))
        case "add":
            return Node(name, kind, source.width, (source.name, draw(st.sampled_from(alike))))
        case "multiply":
            gates = draw(st.sampled_from([(), (0,), (1,), (0, 1)]))
            return Node(name, kind, source.width, (source.name, draw(st.sampled_from(alike))), gates=gates)


def dependence(topology, weights):
    """How much the sum of the output changes when the images go from zeros to ones, in exact integers.

    Images have two by two pixels and convolutions wrap around, so that every place of a kernel meets a pixel but those that
    are not to; a gate adds one to its factor.
    """
    images = topology.nodes[0]
    total = 0
    for value in (1, 0):
        values = {images.name: np.full((4, images.width), value, object)}
        for node in topology.nodes[1:]:
            values[node.name] = computed(node, [values[name] for name in node.inputs], weights)
        total += values["output"].sum() if value else -values["output"].sum()
    return total


def computed(node, inputs, weights):
    """The output, int [pixels, channels], of one node."""
    match node.kind:
        case "linear":
            kernel = weights[node.name] * (node.window[..., None, None] if node.met else 1)
            kernel = kernel.reshape(-1, inputs[0].shape[-1] // node.groups, node.width)
            parts, kernels = (np.split(array, node.groups, axis=-1) for array in (inputs[0], kernel))
            return np.hstack(
                [
                    sum(np.roll(part, place, axis=0) @ weight for place, weight in enumerate(own))
                    for part, own in zip(parts, kernels, strict=True)
                ]
            )
        case "add":
            return inputs[0] + inputs[1]
        case "multiply":
            first, second = (value + (place in node.gates) for place, value in enumerate(inputs))
            return first * second
        case "concatenate":
            return np.hstack(inputs)
        case "reshape":
            return inputs[0].reshape(1, -1)


@settings(max_examples=150)
@given(networks())
def test_exactly_those_weights_are_connected_without_which_the_output_depends_less_on_the_input(drawn):
    topology, mask = drawn
    weights = {path: kept.astype(int).astype(object) for path, kept in mask.items()}
    whole = dependence(topology, weights)

    counts = dict.fromkeys(mask, 0)
    for path, kept in mask.items():
        for place in np.argwhere(kept):
            without = weights[path].copy()
            without[tuple(place)] = 0
            counts[path] += dependence(topology, {**weights, path: without}) < whole
    result = effective(topology, mask)
    assert result.connected == counts
    assert result.disconnected == (whole == 0)


@given(networks())
def test_a_topology_survives_its_file(tmp_path_factory, drawn):
    topology, _ = drawn
    replicate = Replicate(tmp_path_factory.mktemp("replicate"))

    replicate.write_topology(topology)

    assert replicate.read_topology() == topology
