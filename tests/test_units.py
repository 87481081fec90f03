"""Units: whole ones alone are kept, exactly as many as asked, within what was left, for any shapes; ties go by position."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lottery.base.errors import InputError
from lottery.pruning import criteria
from lottery.pruning.cut import Method, cut
from lottery.pruning.state import State
from lottery.pruning.units import SINGLE, Blocks, Channels, NofM

relaxed = settings(deadline=None, max_examples=150)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
SIZES = st.integers(1, 6)
WHOLE = st.one_of(st.just(SINGLE), st.just(Channels()), st.builds(Blocks, SIZES, SIZES))
N_OF_M = st.tuples(SIZES, SIZES).map(sorted).map(lambda pair: NofM(*pair))
SCORES = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0, 2.0])  # whose sums are exact, and often equal


@st.composite
def cases(draw, units):
    """Units, a score for each weight of some layers, and what is left of these."""
    shapes = draw(st.lists(SHAPES, min_size=1, max_size=3))
    scores = {f"{path}/kernel": draw(hnp.arrays(np.float32, shape, elements=SCORES)) for path, shape in enumerate(shapes)}
    return draw(units), scores, {path: draw(hnp.arrays(bool, array.shape)) for path, array in scores.items()}


def members(units, shape):
    """Naively: the places (in C order) of the weights of each unit, in the order of units."""
    rows, columns = math.prod(shape[:-1]), (*shape, 1)[len(shape) - 1] if shape else 1
    height, width = {SINGLE: (1, 1), Channels(): (max(rows, 1), 1)}.get(units) or (units.rows, units.columns)
    corners = (
        product(range(0, rows, height), range(0, columns, width)) if units != Channels() else ((0, j) for j in range(columns))
    )
    return [
        [i * columns + j for i in range(top, min(top + height, rows)) for j in range(left, min(left + width, columns))]
        for top, left in corners
    ]


def cut_of(units, scores, left, keep, **method):
    given_arrays = [*scores.values(), *left.values()]
    for array in given_arrays:
        array.flags.writeable = False  # nothing here changes its inputs
    found = cut(Method(criteria.given(scores), units=units, **method), State(0, scores, {}, {}), left, [(tuple(left), keep)])
    return found.mask


@relaxed
@given(case=cases(WHOLE), data=st.data())
def test_the_whole_units_of_the_highest_sums_stay_exactly_as_many_as_asked_and_ties_go_by_position(case, data):
    units, scores, left = case
    alive = []  # (score, path, weights) of each unit that has any
    for path, array in scores.items():
        places = ([place for place in unit if left[path].flat[place]] for unit in members(units, array.shape))
        alive += [(sum(array.flat[place] for place in one), path, one) for one in places if one]
    keep = data.draw(st.integers(0, len(alive)))

    mask = cut_of(units, scores, left, keep)

    expected = {path: np.zeros(array.size, bool) for path, array in scores.items()}
    for _, path, places in sorted(alive, key=lambda one: one[0])[len(alive) - keep :]:
        expected[path][places] = True
    assert {path: kept.ravel().tolist() for path, kept in mask.items()} == {p: one.tolist() for p, one in expected.items()}
    assert all(kept.shape == scores[path].shape and kept.dtype == bool for path, kept in mask.items())


@relaxed
@given(case=cases(N_OF_M), data=st.data())
def test_n_of_m_keeps_the_n_highest_of_each_m_inputs_and_no_more_of_a_last_short_group(case, data):
    units, scores, left = case
    highest = {}
    for path, array in scores.items():
        matrix, kept = (
            one.reshape(math.prod(array.shape[:-1]), array.shape[-1] if array.shape else 1) for one in (array, left[path])
        )
        highest[path] = np.zeros(matrix.shape, bool)
        for column, first in product(range(matrix.shape[1]), range(0, len(matrix), units.m)):
            places = [row for row in range(first, min(first + units.m, len(matrix))) if kept[row, column]]
            highest[path][sorted(places, key=lambda row: matrix[row, column])[-units.n :], column] = True
    most = sum(int(one.sum()) for one in highest.values())

    mask = cut_of(units, scores, left, most)
    fewer = cut_of(units, scores, left, keep := data.draw(st.integers(0, most)))

    assert all((mask[path] == one.reshape(mask[path].shape)).all() for path, one in highest.items())
    assert sum(int(kept.sum()) for kept in fewer.values()) == keep
    assert not any((kept & ~mask[path]).any() for path, kept in fewer.items())


@relaxed
@given(units=st.one_of(WHOLE, N_OF_M), shape=SHAPES)
@example(units=NofM(1, 3), shape=(5, 2))
@example(units=Blocks(2, 3), shape=(3, 4))
def test_the_size_is_how_many_units_can_be_kept_and_these_are_everything_but_for_n_of_m(units, shape):
    scores, kept = units.pool(np.ones(shape, np.float32), np.ones(shape, bool))

    assert np.count_nonzero(kept) == units.size(shape) if math.prod(shape) else not kept.any()
    assert scores.shape == kept.shape
    everything = units.spread(kept, shape)
    assert everything.shape == shape
    assert everything.all() or isinstance(units, NofM)


@pytest.mark.parametrize("allocation", ["global", "uniform", "erk"])
@pytest.mark.parametrize("units", [SINGLE, Channels(), Blocks(2, 4), NofM(2, 4)], ids=repr)
def test_allocations_densities_and_iterations_count_units(allocation, units):
    rng, asked = np.random.default_rng(0), []
    weights = {"a": rng.normal(size=(3, 3, 4, 8)).astype(np.float32), "b": rng.normal(size=(32, 16)).astype(np.float32)}
    sizes = {path: units.size(array.shape) for path, array in weights.items()}

    def counts(mask):
        return {path: np.count_nonzero(units.pool(weights[path], kept)[1]) for path, kept in mask.items()}

    def noted(network, mask, probe):
        asked.append(sum(counts(mask).values()))
        return criteria.magnitude(network, mask, probe)

    def of(keep):
        method = Method(noted, allocation, [("b", Fraction(1, 2))] if allocation == "uniform" else (), 2, units)
        whole = {path: np.ones(array.shape, bool) for path, array in weights.items()}
        return cut(method, State(0, weights, {}, {}), whole, [(("a", "b"), keep)]).mask

    total, keep = sum(sizes.values()), sizes["b"] // 2 + 2
    kept = counts(of(keep))

    assert sum(kept.values()) == keep
    assert asked == [total, round(total * math.sqrt(keep / total))]
    assert kept["b"] == sizes["b"] // 2 or allocation != "uniform"
    with pytest.raises(InputError, match="cannot be reached"):
        of(total + 1)


@pytest.mark.parametrize("make", [lambda: Blocks(0, 4), lambda: NofM(5, 4), lambda: NofM(0, 2)])
def test_units_of_nothing_are_refused(make):
    with pytest.raises(InputError):
        make()


class Inputs:
    """Units of a user's own: all weights of an input, wherever it goes."""

    def size(self, shape):
        return math.prod(shape[:-1])

    def pool(self, scores, kept):
        return np.where(kept, scores, 0).sum(-1).ravel(), kept.any(-1).ravel()

    def spread(self, kept, shape):
        return np.broadcast_to(kept.reshape(*shape[:-1], 1), shape)


@pytest.mark.parametrize("allocation", ["global", "uniform"])
def test_units_of_ones_own_are_cut_as_those_here_are(allocation):
    scores = {"a/kernel": np.array([[1.0, 1], [5, 0], [0, 3]]), "b/kernel": np.array([[2.0], [4]])}
    left = {path: np.ones(array.shape, bool) for path, array in scores.items()}

    mask = cut_of(Inputs(), scores, left, 3, allocation=allocation)

    assert [path_kept.any(-1).tolist() for path_kept in mask.values()] == [[False, True, True], [False, True]]
