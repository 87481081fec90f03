"""Units: whole ones alone are kept, exactly as many as asked, within what was left, for any shapes; ties go by position."""

import math
import types
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from test_connectivity import linear, network

from lottery.base.errors import InputError
from lottery.pruning import criteria
from lottery.pruning import units as units_
from lottery.pruning.channels import channels
from lottery.pruning.connectivity import Node
from lottery.pruning.cut import Cutter, Method, cut
from lottery.pruning.masks import whole
from lottery.pruning.state import State
from lottery.pruning.units import SINGLE, Blocks, NofM, WholeChannels, parse

relaxed = settings(max_examples=150)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
SIZES = st.integers(1, 6)
SCORE = st.sampled_from(["mean", "norm", "sum"])
WHOLE = st.one_of(st.just(SINGLE), st.builds(Blocks, SIZES, SIZES, SCORE))
N_OF_M = st.tuples(SIZES, SIZES).map(sorted).map(lambda pair: NofM(*pair))
SCORES = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0, 2.0])  # whose sums are exact, and often equal


def scored(values, how):
    """Naively: the score of a unit with weights of these scores."""
    match how:
        case "sum":
            return sum(values)
        case "mean":
            return sum(values) / len(values)
        case "norm":
            squares = sum(value * abs(value) for value in values)
            return math.copysign(math.sqrt(abs(squares)), squares)


@st.composite
def cases(draw, units):
    """Units, a score for each weight of some layers, and what is left of these."""
    shapes = draw(st.lists(SHAPES, min_size=1, max_size=3))
    scores = {f"{path}/kernel": draw(hnp.arrays(np.float32, shape, elements=SCORES)) for path, shape in enumerate(shapes)}
    return draw(units), scores, {path: draw(hnp.arrays(bool, array.shape)) for path, array in scores.items()}


def members(units, shape):
    """Naively: the places (in C order) of the weights of each unit, in the order of units."""
    rows, columns = math.prod(shape[:-1]), (*shape, 1)[len(shape) - 1] if shape else 1
    height, width = (1, 1) if units == SINGLE else (units.rows, units.columns)
    return [
        [i * columns + j for i in range(top, min(top + height, rows)) for j in range(left, min(left + width, columns))]
        for top, left in product(range(0, rows, height), range(0, columns, width))
    ]


def cut_of(units, scores, left, keep, **method):
    given_arrays = [*scores.values(), *left.values()]
    for array in given_arrays:
        array.flags.writeable = False  # nothing here changes its inputs
    found = cut(Method(criteria.given(scores), units=units, **method), State(0, scores, {}, {}), left, [(tuple(left), keep)])
    return found.mask


@relaxed
@given(case=cases(WHOLE), data=st.data())
def test_the_whole_units_of_the_highest_scores_stay_exactly_as_many_as_asked_and_ties_go_by_position(case, data):
    units, scores, left = case
    alive = []  # (score, path, weights) of each unit that has any
    for path, array in scores.items():
        places = ([place for place in unit if left[path].flat[place]] for unit in members(units, array.shape))
        how = getattr(units, "score", "sum")
        alive += [(scored([float(array.flat[place]) for place in one], how), path, one) for one in places if one]
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
    everything = {"a": np.ones(shape, bool)}
    scores, kept = units.pool({"a": np.ones(shape, np.float32)}, everything)

    assert np.count_nonzero(kept["a"]) == units.sizes({"a": shape})["a"] if math.prod(shape) else not kept["a"].any()
    assert scores["a"].shape == kept["a"].shape
    spread = units.spread(kept, everything)["a"]
    assert spread.shape == shape
    assert spread.all() or isinstance(units, NofM)


def of_a_network(shapes):
    """The channels of two layers of these shapes, of which one reads the other."""
    (first, second), (one, other) = shapes, shapes.values()
    nodes = linear(first, "images", *one), Node("flat", "reshape", other[0], (first,)), linear(second, "flat", *other)
    topology = network(*nodes, linear("last", second, other[1], 2), images=Node("images", "input", one[-2]))
    return WholeChannels(channels(topology, shapes), frozenset(shapes))


@pytest.mark.parametrize("allocation", ["global", "uniform", "erk"])
@pytest.mark.parametrize("units", [SINGLE, Blocks(2, 4), NofM(2, 4), "channels"], ids=repr)
def test_allocations_densities_and_iterations_count_units(allocation, units):
    rng, asked = np.random.default_rng(0), []
    weights = {"a": rng.normal(size=(3, 3, 4, 8)).astype(np.float32), "b": rng.normal(size=(32, 16)).astype(np.float32)}
    units = of_a_network({path: array.shape for path, array in weights.items()}) if units == "channels" else units
    sizes = units.sizes({path: array.shape for path, array in weights.items()})

    def counts(mask):
        return {path: np.count_nonzero(kept) for path, kept in units.pool(weights, mask)[1].items()}

    def noted(network, mask, probe):
        asked.append(sum(counts(mask).values()))
        return criteria.magnitude(network, mask, probe)

    def of(keep):
        method = Method(noted, allocation, [("b", Fraction(1, 2))] if allocation == "uniform" else (), 2, units)
        return cut(method, State(0, weights, {}, {}), whole(weights), [(("a", "b"), keep)]).mask

    total, keep = sum(sizes.values()), sizes["b"] // 2 + 2
    kept = counts(of(keep))

    assert sum(kept.values()) == keep
    assert asked == [total, round(total * math.sqrt(keep / total))]
    assert kept["b"] == sizes["b"] // 2 or allocation != "uniform"
    with pytest.raises(InputError, match="cannot be reached"):
        of(total + 1)


class Inputs(units_.OfEachVariable):
    """Units of a user's own: all weights of an input, wherever it goes."""

    def sizes(self, shapes):
        return {path: math.prod(shape[:-1]) for path, shape in shapes.items()}

    def total(self, arrays):
        return {path: array.sum(-1).ravel() for path, array in arrays.items()}

    def pool(self, scores, kept):
        sums = self.total({path: np.where(kept[path], array, 0) for path, array in scores.items()})
        return sums, {path: bits.any(-1).ravel() for path, bits in kept.items()}

    def spread(self, units, within):
        return {path: bits & units[path].reshape(*bits.shape[:-1], 1) for path, bits in within.items()}


@pytest.mark.parametrize("allocation", ["global", "uniform"])
def test_units_of_ones_own_are_cut_as_those_here_are(allocation):
    scores = {"a/kernel": np.array([[1.0, 1], [5, 0], [0, 3]]), "b/kernel": np.array([[2.0], [4]])}
    left = whole(scores)

    mask = cut_of(Inputs(), scores, left, 3, allocation=allocation)

    assert [path_kept.any(-1).tolist() for path_kept in mask.values()] == [[False, True, True], [False, True]]


@relaxed
@given(case=cases(st.builds(Blocks, SIZES, SIZES)), seed=st.integers(0, 9))
def test_shuffled_units_are_whole_and_layers_keep_as_many_of_each_size(case, seed):
    units, arrays, bits = case
    chosen = {path: np.random.default_rng(seed).random(total.shape) < 0.5 for path, total in units.total(arrays).items()}
    mask, met = units.spread(chosen, whole(arrays)), {path: kept[..., :1, :1] for path, kept in bits.items() if kept.ndim > 1}

    shuffled = units.shuffle(mask, seed, met)

    assert shuffled.keys() == mask.keys()
    for path, kept in mask.items():
        places = np.broadcast_to(met.get(path, True), kept.shape).ravel()
        before, after = (
            sorted((len(unit), places[unit].sum()) for unit in members(units, kept.shape) if of[path].flat[unit].any())
            for of in (mask, shuffled)
        )
        assert before == after
        assert all(len(set(shuffled[path].flat[unit])) == 1 for unit in members(units, kept.shape))
    again = units.shuffle(mask, seed, met)
    assert all(np.array_equal(shuffled[path], again[path]) for path in mask)


def test_shuffled_channels_go_with_all_that_belongs_to_them():
    topology = residual()
    units = units_.of(parse("channel"), "mean", topology.kernels | VECTORS, topology.kernels, topology, streams=True)
    everything = whole({path: np.ones(shape) for path, shape in (topology.kernels | VECTORS).items()})
    mask = units.spread({"in/kernel": kept_of(2, 0), "up/kernel": kept_of(3, 1)}, everything)
    possible = [
        units.spread({"in/kernel": kept_of(2, one), "up/kernel": kept_of(3, other)}, everything)
        for one, other in product(range(2), range(3))
    ]

    drawn = [units.shuffle(mask, seed, {}) for seed in range(60)]

    places = [[all((one[path] == other[path]).all() for path in one) for other in possible].index(True) for one in drawn]
    assert set(places) == set(range(6))


def kept_of(count, index):
    return np.arange(count) == index


def test_shuffled_n_of_m_are_drawn_anew_n_of_each_m_and_each_as_often():
    units, arrays = NofM(2, 4), {"a": np.ones((10, 3)), "b": np.ones((4, 2))}

    drawn = [units.shuffle(whole(arrays), seed, {}) for seed in range(400)]

    for mask in drawn:
        assert (mask["a"][:4].sum(0) == 2).all()
        assert (mask["a"][4:8].sum(0) == 2).all()
        assert mask["a"][8:].all()
        assert (mask["b"].sum(0) == 2).all()
    assert np.mean([mask["b"] for mask in drawn], 0) == pytest.approx(0.5, abs=0.1)


def residual():
    """A stream of two channels, to which a branch of three adds: by a depthwise kernel, whose layer normalises."""
    return network(
        linear("in/kernel", "images", 3, 3, 2, 2),
        linear("up/kernel", "in/kernel", 1, 1, 2, 3),
        linear("deep/kernel", "up/kernel", 3, 3, 3, 1, width=3, groups=3),
        Node("norm", "scale", 3, ("deep/kernel",), gamma="norm/gamma"),
        linear("down/kernel", "norm", 1, 1, 3, 2),
        Node("sum", "add", 2, ("in/kernel", "down/kernel")),
        linear("out/kernel", "sum", 2, 4),
    )


VECTORS = {"in/bias": (2,), "norm/gamma": (3,), "norm/beta": (3,), "out/bias": (4,)}


def weights_of(topology, vectors=VECTORS):
    rng = np.random.default_rng(0)
    return {path: rng.normal(size=shape) for path, shape in (topology.kernels | vectors).items()}


@pytest.mark.parametrize("how", ["mean", "norm", "sum"])
def test_whole_channels_go_with_all_that_belongs_to_them_and_are_scored_by_prunable_weights(how):
    topology, weights = residual(), weights_of(residual())
    scope = [path for path in topology.kernels if path != "out/kernel"]
    units = units_.of(parse("channel"), how, topology.kernels | VECTORS, scope, topology, streams=True)
    whole_mask = {path: np.ones(weights[path].shape, bool) for path in sorted(units.covered(scope))}

    assert whole_mask.keys() == {*topology.kernels, "in/bias", "norm/gamma", "norm/beta"}
    assert units.sizes({}) == {"in/kernel": 2, "up/kernel": 3}
    masks = {
        (layer, index): units.spread({layer: np.arange(size) != index}, whole_mask)
        for layer, size in units.sizes({}).items()
        for index in range(size)
    }
    gone = {path: int(np.count_nonzero(~bits)) for path, bits in masks["up/kernel", 1].items() if not bits.all()}
    assert gone == {"up/kernel": 2, "deep/kernel": 9, "norm/gamma": 1, "norm/beta": 1, "down/kernel": 2}
    gone = {path: int(np.count_nonzero(~bits)) for path, bits in masks["in/kernel", 0].items() if not bits.all()}
    assert gone == {"in/kernel": 18, "in/bias": 1, "up/kernel": 3, "down/kernel": 3, "out/kernel": 4}

    scores, left = units.pool({path: np.abs(weights[path]) for path in scope}, units.ranked(whole_mask))
    for (layer, index), mask in masks.items():
        values = [value for path in scope for value in np.abs(weights[path][~mask[path]])]
        assert scores[layer][index] == pytest.approx(scored(values, how))
        assert left[layer].all()


def test_channels_of_kernels_that_are_not_prunable_and_those_of_streams_stay():
    topology = residual()

    def layers(scope, streams=True):
        return units_.of(parse("channel"), "mean", topology.kernels, scope, topology, streams).sizes({})

    assert layers(topology.kernels, streams=False) == {"up/kernel": 3}
    assert layers(topology.kernels.keys() - {"down/kernel"}) == {"up/kernel": 3}, "as it makes a part of the stream"
    assert layers(topology.kernels.keys() - {"deep/kernel"}) == {"in/kernel": 2, "up/kernel": 3}, "as it makes no channel"
    with pytest.raises(InputError, match="all channels of this network stay"):
        layers(["out/kernel"])


@pytest.mark.parametrize("units", ["weight", "4x1", "channel"])
@pytest.mark.parametrize("per_mac", [False, True])
def test_the_most_units_are_kept_that_cost_no_more_than_is_asked(units, per_mac):
    topology = residual()
    used = {path: 1 + index for index, path in enumerate(topology.kernels)}
    scope = [path for path, shape in topology.kernels.items() if math.prod(shape[:-1]) >= 4 or units != "4x1"]
    made_of = units_.of(parse(units), "mean", topology.kernels | VECTORS, scope, topology, streams=True)
    weights = weights_of(topology)
    within = {path: np.ones(weights[path].shape, bool) for path in sorted(made_of.covered(scope))}
    method = Method(criteria.magnitude, units=made_of, each=used if per_mac else None)
    cutter = Cutter(method, State(0, weights, {}, {}), within)

    def cost(mask):
        return sum(np.count_nonzero(bits) * used.get(path, 0) for path, bits in mask.items())

    count = sum(map(np.count_nonzero, cutter.units.values()))
    costs = [cost(cutter.to([(tuple(cutter.units), keep)]).mask) for keep in range(1, count + 1)]
    for most in {costs[0], costs[count // 2], costs[count // 2] - 1, costs[-1]}:
        assert cost(cutter.fitting(most, cost).mask) == max(each for each in costs if each <= most)
    with pytest.raises(InputError, match=f"no more than {1 - costs[0] / costs[-1]:.2%} can be pruned"):
        cutter.fitting(costs[0] - 1, cost)


def test_what_layers_keep_in_any_case_is_not_taken_for_too_much():
    weights = {"a": np.arange(1.0, 11), "b": np.arange(1.0, 11)}
    cutter = Cutter(Method(criteria.magnitude, fixed=[("b", Fraction(4, 5))]), State(0, weights, {}, {}), whole(weights))

    assert [
        np.count_nonzero(bits) for bits in cutter.fitting(11, lambda mask: sum(map(np.sum, mask.values()))).mask.values()
    ] == [
        3,
        8,
    ]
    with pytest.raises(InputError, match="cannot be reached"):
        cutter.fitting(7, lambda mask: sum(map(np.sum, mask.values())))


def test_random_channels_are_drawn_alike_however_many_weights_they_have():
    topology, kept = residual(), []
    weights = weights_of(topology)
    units = units_.of(parse("channel"), "wrapped", topology.kernels | VECTORS, topology.kernels, topology, True)
    within = {path: np.ones(weights[path].shape, bool) for path in sorted(units.covered(topology.kernels))}
    for seed in range(300):
        probe = types.SimpleNamespace(seed=seed)
        cutter = Cutter(Method(criteria.random, units=units), State(0, weights, {}, {}), within, lambda mask, one=probe: one)
        masks = cutter.to([(tuple(cutter.units), 2)]).mask
        kept.append([masks["in/bias"].sum(), masks["norm/gamma"].sum()])

    np.testing.assert_allclose(np.mean(kept, axis=0), [2 * 2 / 5, 2 * 3 / 5], atol=0.1)


def test_the_inputs_of_a_depthwise_kernel_are_the_places_of_its_window():
    topology = network(linear("d", "images", 3, 3, 2, 1, width=2, groups=2))
    scores = {"d": np.arange(18.0).reshape(3, 3, 2, 1)}

    mask = units_.of(parse("2:4"), "mean", topology.kernels, ["d"], topology, True).pool(scores, whole(scores))[1]["d"]

    filters = mask.reshape(9, 2)
    assert filters.T.tolist() == [[False, False, True, True, False, False, True, True, True]] * 2


@pytest.mark.parametrize("text", ["channels", "4", "0x1", "4:4", "4:2", "2:", "x", "1.5x2", ""])
def test_what_are_no_units_is_said_in_one_line(text):
    with pytest.raises(InputError) as error:
        parse(text)
    assert "\n" not in str(error.value)


def test_a_network_that_cannot_be_followed_has_no_channels_and_blocks_fit_into_kernels():
    with pytest.raises(InputError, match="cannot be followed"):
        units_.of(parse("channel"), "mean", {"a": (4, 4)}, ["a"], None, True)
    with pytest.raises(InputError, match="a block is larger than a, 4 inputs x 4 outputs"):
        units_.of(parse("8x1"), "mean", {"a": (4, 4)}, ["a"], None, True)
