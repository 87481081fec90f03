"""What two masks have in common whatever the hidden units are called: the same after any relabelling, and as by chance where
masks are drawn at random."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from lottery.base.errors import InputError
from lottery.pruning import invariants, overlap
from lottery.pruning.connectivity import Node, Topology
from lottery.pruning.invariants import Profile, likenesses, profiles

# LeNet on 5x5 images of two channels.
LENET = Topology(
    (
        Node("images", "input", 2),
        Node("flat", "reshape", 50, ("images",)),
        Node("a", "linear", 30, ("flat",), {"a": (50, 30)}),
        Node("b", "linear", 10, ("a",), {"b": (30, 10)}),
        Node("out", "linear", 3, ("b",), {"out": (10, 3)}),
    ),
    ("out",),
)
# A residual block of a pointwise, a depthwise, a grouped and a transposed convolution; maps of 2x2 are flattened.
CONV = Topology(
    (
        Node("images", "input", 3),
        Node("stem", "linear", 8, ("images",), {"stem": (3, 3, 3, 8)}),
        Node("norm", "scale", 8, ("stem",), gamma="norm/gamma"),
        Node("wide", "linear", 12, ("norm",), {"wide": (1, 1, 8, 12)}),
        Node("depth", "linear", 24, ("wide",), {"depth": (3, 3, 12, 2)}, groups=12),
        Node("group", "linear", 6, ("depth",), {"group": (3, 3, 12, 6)}, groups=2),
        Node("up", "linear", 8, ("group",), {"up": (3, 3, 8, 6)}, transposed=True),
        Node("sum", "add", 8, ("norm", "up")),
        Node("flat", "reshape", 32, ("sum",)),
        Node("out", "linear", 4, ("flat",), {"out": (32, 4)}),
    ),
    ("out",),
)
NETWORKS = [LENET, CONV]


def relabelled(topology, mask, seed):
    """`mask` with the hidden units of one of the two networks permuted, consistently."""
    rng = np.random.default_rng(seed)
    if topology is LENET:
        a, b = rng.permutation(30), rng.permutation(10)
        return {"a": mask["a"][:, a], "b": mask["b"][np.ix_(a, b)], "out": mask["out"][b]}
    stream, halves = rng.permutation(8), rng.permutation(2)
    twins = np.stack([rng.permutation(2) for _ in range(12)])  # of each wide channel its two depthwise ones
    # The grouped convolution reads the depthwise channels in two halves: wide channels move within and with their half.
    wide = np.concatenate([rng.permutation(6) + 6 * half for half in halves])
    within = [rng.permutation(3) for _ in halves]
    depth = np.take_along_axis(mask["depth"], twins[None, None], axis=3)[:, :, wide]
    group = mask["group"].reshape(3, 3, 12, 2, 3)
    inputs = [np.concatenate([2 * (place % 6) + twins[place] for place in wide[6 * k : 6 * k + 6]]) for k in range(2)]
    group = np.concatenate([group[:, :, inputs[k], half][..., within[k]] for k, half in enumerate(halves)], axis=-1)
    narrow = np.concatenate([3 * half + within[k] for k, half in enumerate(halves)])
    return {
        "stem": mask["stem"][..., stream],
        "norm/gamma": mask["norm/gamma"][stream],
        "wide": mask["wide"][:, :, stream][..., wide],
        "depth": depth,
        "group": group,
        "up": mask["up"][:, :, stream][..., narrow],
        "out": mask["out"].reshape(4, 8, 4)[:, stream].reshape(32, 4),
    }


def uneven(topology, seed):
    """A mask of 40 % of the weights, of which some units, places and layers keep more than others."""
    rng = np.random.default_rng(seed)
    shapes = topology.kernels | {node.gamma: (node.width,) for node in topology.nodes if node.gamma}
    scores = {}
    for path, shape in shapes.items():
        by_axis = [rng.random([size if axis == place else 1 for place, size in enumerate(shape)]) for axis in range(len(shape))]
        scores[path] = rng.random() / 3 + math.prod(by_axis) ** (1 / len(shape)) + rng.random(shape)
    cut = np.quantile(np.concatenate([score.ravel() for score in scores.values()]), 0.6)
    return {path: score > cut for path, score in scores.items()}


def compared(topology, first, second):
    known = invariants.layouts(topology)
    return likenesses(profiles(first, known), profiles(second, known))


@pytest.mark.parametrize("topology", NETWORKS, ids=["lenet", "conv"])
@pytest.mark.parametrize("seed", range(2))
def test_relabelling_leaves_every_figure_exactly_as_it_is(topology, seed):
    first, second = uneven(topology, seed), uneven(topology, 100 + seed)
    expected = compared(topology, first, second)

    assert compared(topology, relabelled(topology, first, seed), second) == expected
    assert compared(topology, first, relabelled(topology, second, seed)) == expected
    assert compared(topology, relabelled(topology, first, seed), relabelled(topology, second, 50 + seed)) == expected


@pytest.mark.parametrize("topology", NETWORKS, ids=["lenet", "conv"])
@pytest.mark.parametrize("seed", range(2))
def test_a_mask_agrees_fully_with_itself_relabelled_where_its_overlap_is_that_of_chance(topology, seed):
    mask = uneven(topology, seed)
    other = relabelled(topology, mask, seed)
    found = compared(topology, mask, other)[""]

    assert found["layers_alike"] == found["units_alike"] == 1
    correlations = [found[f"{side}_correlation"] for side in ("input", "classes", "kernel")]
    assert correlations == [pytest.approx(1), pytest.approx(1), None if topology is LENET else pytest.approx(1)]
    assert overlap.overlaps(overlap.pack(mask), overlap.pack(other))[""]["overlap"] < 0.95


def test_the_figures_of_small_masks_are_those_worked_out_by_hand():
    first = {"a": [[1, 1, 0], [1, 0, 0], [0, 0, 0]], "out": [[1, 1], [1, 0], [0, 0]]}
    second = {"a": [[0, 1, 1], [0, 1, 0], [0, 1, 0]], "out": [[1, 0], [0, 0], [0, 0]]}
    topology = Topology(
        (
            Node("images", "input", 3),
            Node("a", "linear", 3, ("images",), {"a": (3, 3)}),
            Node("out", "linear", 2, ("a",), {"out": (3, 2)}),
        ),
        ("out",),
    )
    layers = compared(topology, *({path: np.array(kept, bool) for path, kept in mask.items()} for mask in (first, second)))
    found = layers[""]

    assert (found["size"], found["kept_first"], found["kept_second"]) == (15, 6, 5)
    assert found["layers_alike"] == pytest.approx(1 - (1 + 2) / 11)  # 3 and 3, against 4 and 1
    assert layers["a"]["input_correlation"] == pytest.approx(np.corrcoef([2, 1, 0], [2, 1, 1])[0, 1])
    assert layers["a"]["input_correlation_sd"] == pytest.approx(1 / math.sqrt(2))
    assert layers["out"]["classes_correlation"] == pytest.approx(1)  # 2 and 1 of the classes, against 1 and 0
    assert layers["a"]["units_alike"] == pytest.approx(1 - (0 + 0 + 1) / 7)  # of its units 0, 1, 2 weights, against 0, 1, 3
    assert layers["out"]["units_alike"] == pytest.approx(1 - (0 + 1 + 1) / 4)  # 0, 1, 2 of the inputs, against 0, 0, 1


def correlation(pairs):
    """That of lists of kept counts, pooled, and its standard deviation by chance."""
    masks = [
        {str(place): Profile((9,), 9, "input", one) for place, one in enumerate(lists)} for lists in zip(*pairs, strict=True)
    ]
    found = likenesses(*masks)[""]
    return found["input_correlation"], found["input_correlation_sd"]


def test_chance_of_a_correlation_is_that_of_all_permutations():
    first, second = np.array([0, 3, 1, 7, 2]), np.array([1, 1, 4, 0, 9])

    drawn = [np.corrcoef(first, order)[0, 1] for order in itertools.permutations(second)]

    assert np.mean(drawn) == pytest.approx(0)
    assert np.std(drawn) == pytest.approx(correlation([(first, second)])[1]) == pytest.approx(1 / 2)


def test_pooled_correlations_have_the_spread_of_independent_permutations():
    rng = np.random.default_rng(0)
    lists = [(rng.integers(0, 9, size), rng.integers(0, 99, size)) for size in (9, 9, 25)]
    _, deviation = correlation(lists)

    drawn = [correlation([(one, rng.permutation(other)) for one, other in lists])[0] for _ in range(2000)]

    assert abs(np.mean(drawn)) < 4 * deviation / math.sqrt(2000)
    assert np.std(drawn) == pytest.approx(deviation, rel=0.06)


def drawn(mask, rng):
    """A mask of as many weights in each layer, at random."""
    return {path: rng.permutation(kept.ravel()).reshape(kept.shape) for path, kept in mask.items()}


def drawn_from_all(mask, rng):
    """A mask of as many weights, at random from all layers."""
    kept = rng.permutation(np.concatenate([kept.ravel() for kept in mask.values()]))
    parts = np.split(kept, np.cumsum([kept.size for kept in mask.values()])[:-1])
    return {path: part.reshape(mask[path].shape) for path, part in zip(mask, parts, strict=True)}


@pytest.mark.parametrize("topology", NETWORKS, ids=["lenet", "conv"])
def test_chance_is_what_masks_drawn_at_random_have(topology):
    rng, draws = np.random.default_rng(0), 100
    first, second = uneven(topology, 3), uneven(topology, 4)
    found = compared(topology, first, second)[""]
    for name, draw in (("layers_alike", drawn_from_all), ("units_alike", drawn)):
        deviation = found[f"{name}_sd"]
        pairs = [
            [(first, draw(second, rng)) for _ in range(draws)],
            [(draw(first, rng), second) for _ in range(draws)],
        ]
        by_choice = [[compared(topology, *pair)[""][name] for pair in choice] for choice in pairs]

        assert abs(np.mean(by_choice) - found[f"{name}_by_chance"]) < 5 * deviation / math.sqrt(invariants.DRAWS)
        assert np.sqrt(np.var(by_choice, axis=1).mean()) == pytest.approx(deviation, rel=0.35)

    correlations = [compared(topology, first, drawn(second, rng))[""] for _ in range(draws)]
    for side in ("input", "classes") if topology is LENET else invariants.SIDES:
        in_sd = [figures[f"{side}_correlation"] / figures[f"{side}_correlation_sd"] for figures in correlations]
        assert abs(np.mean(in_sd)) < 4 / math.sqrt(draws)
        assert np.std(in_sd) == pytest.approx(1, abs=0.3)


def test_what_the_axes_of_each_kernel_are_follows_from_the_topology():
    known = {
        path: (reads_input, gives_classes, node.arranged(np.ones(node.kernels[path]), incoming).shape)
        for path, (node, incoming, reads_input, gives_classes) in invariants.layouts(CONV).items()
    }

    assert known == {
        "stem": (True, False, (9, 3, 1, 8)),
        "wide": (False, False, (1, 8, 1, 12)),
        "depth": (False, False, (9, 1, 12, 2)),
        "group": (False, False, (9, 12, 2, 3)),
        "up": (False, False, (9, 6, 1, 8)),
        "out": (False, True, (1, 32, 1, 4)),
    }
    lenet = invariants.layouts(LENET)
    assert [lenet[path].reads_input for path in ("a", "b", "out")] == [True, False, False]
    assert [lenet[path].gives_classes for path in ("a", "b", "out")] == [False, False, True]


def test_of_a_single_layer_every_weight_has_a_place():
    topology = Topology((Node("images", "input", 4), Node("out", "linear", 3, ("images",), {"out": (4, 3)})), ("out",))
    mask = np.arange(12).reshape(4, 3) % 5 < 2
    found = compared(topology, {"out": mask}, {"out": mask[::-1]})[""]

    assert found["units_alike"] is None
    assert found["input_correlation"] == pytest.approx(np.corrcoef(mask.ravel(), mask[::-1].ravel())[0, 1])


def test_without_a_topology_and_in_layers_that_mix_only_counts_are_compared():
    first, second = uneven(LENET, 1), uneven(LENET, 2)
    mixing = Topology((*LENET.nodes[:2], dataclasses.replace(LENET.nodes[2], kind="mix"), *LENET.nodes[3:]), ("out",))

    by_count = {name for name in compared(LENET, first, second)[""] if name.startswith(("size", "kept", "density", "layers"))}
    found = compared(None, first, second)[""]
    layers = compared(mixing, first, second)

    assert {name for name, value in found.items() if value is not None} == by_count
    assert {name: found[name] for name in by_count} == {name: compared(LENET, first, second)[""][name] for name in by_count}
    assert {layers["a"][name] for name in found.keys() - by_count} == {None}
    assert layers["b"]["units_alike"] is not None


@pytest.mark.parametrize("value", [False, True], ids=["nothing", "all"])
def test_masks_that_keep_nothing_or_all_have_no_figures_that_mean_nothing(value):
    mask = {path: np.full(shape, value) for path, shape in CONV.kernels.items()}
    found = compared(CONV, mask, mask)[""]

    assert {found[f"{side}_correlation"] for side in invariants.SIDES} == {None}
    expected = (1, 1, 0) if value else (None, None, None)
    assert tuple(found[name] for name in ("units_alike", "units_alike_by_chance", "units_alike_sd")) == expected


def test_masks_of_different_networks_are_refused():
    mask = uneven(LENET, 0)
    with pytest.raises(InputError, match="the mask of a has shape"):
        profiles({"a": mask["a"].T}, invariants.layouts(LENET))
