"""How far masks overlap: known answers on masks made by hand, and chance where they are drawn at random."""

import itertools
import math
import types

import numpy as np
import pytest
from helpers import kept

from lottery.base.errors import InputError
from lottery.pruning import overlap
from lottery.pruning.units import NofM


def overlaps(first, second):
    packed = (overlap.pack({path: np.array(kept, bool) for path, kept in mask.items()}) for mask in (first, second))
    return {path: types.SimpleNamespace(**figures) for path, figures in overlap.overlaps(*packed).items()}


def whole(first, second):
    return overlaps(first, second)[""]


@pytest.mark.parametrize(
    ("size", "first", "second", "figures"),
    [
        (10, (1, 2, 3, 9), (1, 2, 3, 9), (1, 1, 4, 0.4, 1.6 / 6.4, 2.4 / math.sqrt(4 * 4 * 6 * 6 / (10 * 10 * 9)))),
        (8, (0, 1), (5, 6, 7), (0, 0, 0, 3 / 8, 0.75 / 4.25, -0.75 / math.sqrt(2 * 3 * 6 * 5 / (8 * 8 * 7)))),
        (20, range(10), (2, 5), (1, 0.2, 2, 0.5, 1 / 11, 1 / math.sqrt(10 * 2 * 10 * 18 / (20 * 20 * 19)))),
    ],
    ids=["identical", "disjoint", "nested"],
)
def test_what_masks_share_and_by_chance(size, first, second, figures):
    found = whole({"a": kept(size, *first)}, {"a": kept(size, *second)})

    names = ("overlap", "jaccard", "shared", "overlap_by_chance", "jaccard_by_chance", "excess_sd")
    assert [getattr(found, name) for name in names] == pytest.approx(figures)
    assert (found.density_first, found.density_second) == (len(first) / size, len(second) / size)


def test_variables_are_added_up_each_with_its_own_densities():
    first = {"a": kept(4, 0, 1, 2, 3), "b": kept(9, 0)}
    second = {"b": kept(9, 0, 1, 2), "a": kept(4, 0)}
    layers = overlaps(first, second)
    found = layers[""]

    assert {path: layer.shared for path, layer in layers.items()} == {"": 2, "a": 1, "b": 1}
    assert (found.size, found.kept_first, found.kept_second, found.shared) == (13, 5, 4, 2)
    assert found.overlap == 0.5
    assert found.overlap_by_chance == pytest.approx((1 + 1 / 3) / 4)
    # The variance is that of one weight in nine; `a` leaves nothing to chance.
    assert found.excess_sd == pytest.approx((2 - (1 + 1 / 3)) / math.sqrt(1 / 3 * 2 / 3))


@pytest.mark.parametrize(("size", "first", "second"), [(1, 1, 1), (5, 2, 3), (6, 0, 4), (7, 4, 4)])
def test_chance_is_what_all_draws_have_on_average(size, first, second):
    draws = [
        len(set(one) & set(other))
        for one in itertools.combinations(range(size), first)
        for other in itertools.combinations(range(size), second)
    ]

    assert overlap.by_chance(size, first, second) == pytest.approx((np.mean(draws), np.var(draws)))


@pytest.mark.parametrize("seed", range(2))
def test_masks_drawn_at_random_overlap_as_by_chance(seed):
    rng = np.random.default_rng(seed)
    shapes = {"conv": (3, 3, 16, 33), "dense": (129, 65), "narrow": (7,)}
    first, second = ({path: rng.random(shape) < share for path, shape in shapes.items()} for share in (0.3, 0.1))

    found = whole(first, second)

    assert abs(found.excess_sd) < 3
    assert found.shared == sum(int((first[path] & second[path]).sum()) for path in shapes)
    assert found.jaccard == found.shared / sum(int((first[path] | second[path]).sum()) for path in shapes)
    assert found.jaccard == pytest.approx(found.jaccard_by_chance, rel=0.2)
    assert all(abs(layer.excess_sd) < 3 for layer in overlaps(first, second).values() if layer.excess_sd is not None)


@pytest.mark.parametrize(
    ("first", "second", "overlap", "jaccard"),
    [
        ([True], [True], 1, 1),
        ([True], [False], None, 0),
        ([], [], None, None),
        ([True] * 4, [True, False, False, False], 1, 0.25),
        ([[False] * 3] * 2, [[True] * 3] * 2, None, 0),
    ],
    ids=range(5),
)
def test_where_nothing_is_left_to_chance_there_is_no_excess(first, second, overlap, jaccard):
    found = whole({"a": first}, {"a": second})

    assert (found.overlap, found.jaccard, found.excess_sd) == (overlap, jaccard, None)
    assert found.overlap_by_chance == overlap
    assert found.jaccard_by_chance == jaccard


def test_only_variables_in_both_masks_count():
    layers = overlaps({"a": kept(4, 0), "only": kept(4, 1)}, {"a": kept(4, 0), "other": kept(9, 1)})

    assert list(layers) == ["", "a"]


def test_masks_of_different_networks_are_refused():
    with pytest.raises(InputError, match="a is 2x3 and 3x2 in the two masks"):
        overlaps({"a": np.ones((2, 3))}, {"a": np.ones((3, 2))})
    with pytest.raises(InputError, match="no variable in common"):
        overlaps({"a": np.ones(3)}, {"b": np.ones(3)})


@pytest.mark.parametrize(("n", "m", "rows"), [(1, 2, 2), (1, 3, 4), (2, 3, 5)])
def test_chance_of_n_of_m_is_over_the_n_of_each_m(n, m, rows):
    units = NofM(n, m)
    groups = [range(first, min(first + m, rows)) for first in range(0, rows, m)]
    each = (itertools.combinations(group, min(n, len(group))) for group in groups)
    masks = [kept(rows, *itertools.chain(*chosen)).reshape(rows, 1) for chosen in itertools.product(*each)]
    shared = [int((one & other).sum()) for one in masks for other in masks]
    packed = [overlap.pack({"a": mask}, {"a": units.groups("a", mask.shape)}) for mask in (masks[0], masks[-1])]

    found = overlap.overlaps(*packed)[""]

    assert found["overlap_by_chance"] == pytest.approx(np.mean(shared) / masks[0].sum())
    assert found["excess_sd"] == pytest.approx((found["shared"] - np.mean(shared)) / np.std(shared))
    assert overlap.overlaps(packed[0], overlap.pack({"a": masks[-1]}))[""]["overlap_by_chance"] == masks[0].mean()
