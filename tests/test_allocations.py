"""Allocations of weights to layers: exact in total and per layer, by hand and for any shapes."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lottery.base.errors import InputError
from lottery.pruning.allocation import allocate

LENET = {"fc1/kernel": (784, 300), "fc2/kernel": (300, 100), "predictions/kernel": (100, 10)}
CONV = {"Conv1/kernel": (3, 3, 3, 8), "dw/kernel": (3, 3, 8, 1), "pw/kernel": (1, 1, 8, 64), "predictions/kernel": (64, 10)}


def sizes(shapes):
    return {path: math.prod(shape) for path, shape in shapes.items()}


def counts(allocation, shapes, keep, fixed=(), left=None, network=None):
    """How much each layer keeps."""
    groups = allocate(allocation, left or sizes(shapes), keep, shapes, fixed, shapes if network is None else network)
    assert all(len(paths) == 1 for paths, _ in groups)
    assert sum(kept for _, kept in groups) == keep
    return {paths[0]: kept for paths, kept in groups}


def test_global_is_one_group():
    assert allocate("global", sizes(LENET), 1000, LENET) == [(tuple(LENET), 1000)]


def test_uniform_is_the_same_share_of_every_layer():
    assert counts("uniform", LENET, 26620) == {"fc1/kernel": 23520, "fc2/kernel": 3000, "predictions/kernel": 100}


def test_the_largest_remainders_are_rounded_up():
    thirds = {"a": (10,), "b": (10,), "c": (10,)}

    assert counts("uniform", thirds, 10) == {"a": 4, "b": 3, "c": 3}  # 3.33 each: of equal remainders the first
    assert counts("uniform", {"a": (10,), "b": (16,)}, 10) == {"a": 4, "b": 6}  # 3.85 and 6.15


def test_what_a_full_layer_cannot_take_is_divided_among_the_others():
    """Public implementations clamp the density at 1 and lose the rest."""
    found = counts("erk", CONV, 1000)

    # eps = 1000 / 180 would give dw 83 of 72: it is full, and 928 / 165 for the others gives Conv1 96 of 216, 416 and 416.
    assert found == {"Conv1/kernel": 96, "dw/kernel": 72, "pw/kernel": 416, "predictions/kernel": 416}
    # Twice: with 1300, dw is full, then 1228 / 165 makes pw 550 of 512.
    assert counts("erk", CONV, 1300) == {"Conv1/kernel": 134, "dw/kernel": 72, "pw/kernel": 512, "predictions/kernel": 582}


def resnet(widths, blocks, inputs=3):
    """The kernels of a ResNet for CIFAR, with projections on the shortcuts."""
    shapes = {"first": (3, 3, inputs, widths[0])}
    for stage, (before, width) in enumerate(pairwise([widths[0], *widths])):
        for block in range(blocks):
            shapes[f"{stage}-{block}-1"] = (3, 3, width if block else before, width)
            shapes[f"{stage}-{block}-2"] = (3, 3, width, width)
        if before != width:
            shapes[f"{stage}-projection"] = (1, 1, before, width)
    return shapes | {"last": (widths[-1], 10)}


NETWORKS = {"lenet": LENET, "resnet20": resnet([16, 32, 64], 3), "separable": CONV}


@pytest.mark.parametrize("sparsity", ["0.5", "0.9", "0.995"])
@pytest.mark.parametrize("network", NETWORKS)
def test_erk_is_that_of_jaxpruner_within_a_weight(network, sparsity):
    """Its `sparsity_distributions.erk`: a layer keeps min(1, eps (sum of its dimensions) / (their product)), with eps such that
    the total is right. Here eps is found by halving an interval."""
    shapes = NETWORKS[network]
    raw, count = ({path: ratio(shape) for path, shape in shapes.items()} for ratio in (sum, math.prod))
    keep = round((1 - Fraction(sparsity)) * sum(count.values()))
    low, high = 0.0, float(max(count.values()))
    for _ in range(200):
        eps = (low + high) / 2
        low, high = (eps, high) if sum(min(count[path], eps * raw[path]) for path in shapes) < keep else (low, eps)

    found = counts("erk", shapes, keep)
    assert all(abs(found[path] - min(count[path], eps * raw[path])) < 1 for path in shapes)


def test_uniform_plus_keeps_the_first_convolution_and_a_fifth_of_the_last_layer():
    """Gale et al. 2019, section 6."""
    found = counts("uniform+", CONV, 400)

    # 400 - 216 - 128 = 56 of the 584 weights of dw and pw: less than a fifth, so the last layer keeps 128.
    assert found == {"Conv1/kernel": 216, "dw/kernel": 7, "pw/kernel": 49, "predictions/kernel": 128}
    # 700 - 216 = 484 of 1224: more than a fifth, so the last layer shares it.
    assert counts("uniform+", CONV, 700) == {"Conv1/kernel": 216, "dw/kernel": 29, "pw/kernel": 202, "predictions/kernel": 253}


def test_uniform_plus_looks_at_the_whole_network_for_the_first_and_the_last_layer():
    prunable = {path: CONV[path] for path in ("dw/kernel", "pw/kernel")}

    assert counts("uniform+", prunable, 292, network=CONV) == {"dw/kernel": 36, "pw/kernel": 256}
    own = {"own/place": (1, 4, 8), **CONV, "own/table": (8, 8)}  # matrices that are not prunable
    assert counts("uniform+", CONV, 400, network=own)["Conv1/kernel"] == 216
    assert counts("uniform+", CONV, 400, network=own)["predictions/kernel"] == 128
    assert counts("uniform+", LENET, 26620)["predictions/kernel"] == 200  # no convolution, and a fifth of 1000


@pytest.mark.parametrize("allocation", ["uniform", "erk", "global"])
def test_named_layers_keep_what_the_recipe_says(allocation):
    fixed = [("Conv1/*", Fraction(1)), ("predictions/*", Fraction(1, 4)), ("*", Fraction(1, 2))][:2]

    groups = dict(allocate(allocation, sizes(CONV), 500, CONV, fixed))

    assert groups["Conv1/kernel",] == 216
    assert groups["predictions/kernel",] == 160
    assert sum(groups.values()) == 500


def test_a_table_of_all_layers_must_agree_with_the_density():
    table = [("fc1/*", Fraction(1, 100)), ("fc2/*", Fraction(11, 100)), ("predictions/*", Fraction(1))]

    assert counts("uniform", LENET, 6652, table) == {"fc1/kernel": 2352, "fc2/kernel": 3300, "predictions/kernel": 1000}
    assert sum(counts("uniform", LENET, 6653, table).values()) == 6653  # rounding, by a weight a layer
    with pytest.raises(InputError, match=r"the densities of all layers keep 2.4989%; prune 97.5011 per cent"):
        allocate("uniform", sizes(LENET), 7000, LENET, table)


@pytest.mark.parametrize(
    ("allocation", "keep", "fixed", "words"),
    [
        (
            "uniform",
            100,
            [("Conv1/*", Fraction(1))],
            "a density of 6.9444% cannot be reached: Conv1/kernel alone keep 15.0000%",
        ),
        ("uniform+", 300, [], "a density of 20.8333% cannot be reached: Conv1/kernel, predictions/kernel alone keep 23.8889%"),
        ("erk", 1400, [("pw/*", Fraction(1, 10))], "beside pw/kernel there are only 64.4444%; prune more"),
    ],
)
def test_a_density_that_cannot_be_reached_is_refused_in_one_line(allocation, keep, fixed, words):
    with pytest.raises(InputError, match=words) as caught:
        allocate(allocation, sizes(CONV), keep, CONV, fixed, CONV)
    assert "\n" not in str(caught.value)


def test_uniform_plus_wants_to_know_the_order_of_layers():
    with pytest.raises(InputError, match="uniform\\+ asks which layer is first"):
        allocate("uniform+", sizes(CONV), 100, CONV)


def test_in_rounds_no_layer_keeps_more_than_it_has_left():
    left = {"Conv1/kernel": 216, "dw/kernel": 20, "pw/kernel": 400, "predictions/kernel": 640}

    found = counts("erk", CONV, 1000, left=left)

    assert found["dw/kernel"] == 20
    assert all(found[path] <= left[path] for path in left)


SHAPES = st.dictionaries(
    st.sampled_from("abcdefgh"), st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6
)


@settings(max_examples=400)
@given(
    shapes=SHAPES,
    allocation=st.sampled_from(["global", "uniform", "uniform+", "erk"]),
    share=st.fractions(0, 1),
    survivors=st.fractions(0, 1),
    fixed=st.dictionaries(st.sampled_from("abcdefgh"), st.fractions(0, 1, max_denominator=20), max_size=2),
)
def test_any_allocation_keeps_exactly_as_many_and_no_layer_more_than_it_has(shapes, allocation, share, survivors, fixed):
    left = {path: math.ceil(survivors * size) for path, size in sizes(shapes).items()}
    keep = round(share * sum(left.values()))
    try:
        groups = allocate(allocation, left, keep, shapes, list(fixed.items()), shapes)
    except InputError:
        assume(False)
        raise

    assert sorted(path for paths, _ in groups for path in paths) == sorted(shapes)
    assert sum(kept for _, kept in groups) == keep
    assert all(0 <= kept <= sum(left[path] for path in paths) for paths, kept in groups)
    for paths, kept in groups:
        if allocation == "uniform" and not fixed and survivors == 1:
            assert abs(kept - share * left[paths[0]]) <= 2
