"""Criteria: each function's scores against NumPy by hand; a user's own, from the recipe to the mask."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.pruning import criteria
from lottery.pruning.state import State
from lottery.rundir import lineage, store
from lottery.rundir.records import Result, write
from lottery.rundir.run import Run
from lottery.stages import cut

WEIGHTS = {"a/kernel": np.float32([[3.0, -1.0], [-0.0, 2.0]]), "b/kernel": np.float32([-5.0, 4.0])}
STATE = State(12, WEIGHTS | {"b/bias": np.float32([9.0])}, {"bn/moving_mean": np.float32([-7.0])}, {})
KERNELS = {path: np.ones(array.shape, bool) for path, array in WEIGHTS.items()}
EVERYTHING = {path: np.ones(array.shape, bool) for path, array in (STATE.weights | STATE.statistics).items()}


class Known:
    """A probe whose answers are known: gradients are the temperature, products twice their vector, flow half of |w|."""

    seed = 3

    def gradients(self, temperature=1.0):
        return {path: np.full_like(array, temperature) for path, array in STATE.weights.items()}

    def hessian_product(self, vector, temperature=1.0):
        return {path: 2 * vector.get(path, np.zeros_like(array)) for path, array in STATE.weights.items()}

    def flow(self):
        return {path: np.abs(array) / 2 for path, array in STATE.weights.items()}


def times(factor, of=lambda array: array):
    return {path: factor * of(array) for path, array in WEIGHTS.items()}


TABLE = {
    "magnitude": times(1, np.abs),
    "random": {
        path: np.random.default_rng([3, index]).random(array.shape) for index, (path, array) in enumerate(WEIGHTS.items())
    },
    "snip": times(1, np.abs),
    "grasp": times(400),  # that is, the highest of -w Hg goes
    "grasp_abs": times(400, np.abs),
    "synflow": times(0.5, np.abs),
    "lamp": {"a/kernel": np.array([[1, 1 / 14], [0, 4 / 13]]), "b/kernel": np.array([1, 16 / 41])},
}


def test_every_criterion_is_in_the_table():
    assert TABLE.keys() == criteria.CRITERIA.keys()


@pytest.mark.parametrize("name", TABLE)
def test_a_criterion_scores_each_weight_of_the_mask_and_changes_nothing(name):
    before = [array.tobytes() for array in (STATE.weights | STATE.statistics).values()]

    scores = criteria.CRITERIA[name](STATE, KERNELS, Known())

    assert scores.keys() == KERNELS.keys()
    for path, found in scores.items():
        np.testing.assert_allclose(found, TABLE[name][path], rtol=1e-6)
    assert [array.tobytes() for array in (STATE.weights | STATE.statistics).values()] == before


@pytest.mark.parametrize("name", TABLE)
def test_with_scope_all_every_variable_is_scored(name):
    scores = criteria.CRITERIA[name](STATE, EVERYTHING, Known())

    assert {path: array.shape for path, array in scores.items()} == {path: kept.shape for path, kept in EVERYTHING.items()}
    if name in ("snip", "grasp", "grasp_abs", "synflow"):  # statistics have no derivative, and are never pruned
        assert scores["bn/moving_mean"].max() == max(scores[path].max() for path in STATE.weights)


def test_the_vector_of_grasp_is_zero_where_the_mask_prunes():
    half = KERNELS | {"b/kernel": np.array([True, False])}

    scores = criteria.grasp(STATE, half, Known())

    assert scores["b/kernel"].tolist() == [400 * -5.0, 0]


@pytest.mark.parametrize(
    ("weights", "kept", "expected"),
    [
        ([2, -2, 1], [True] * 3, [4 / 8, 1, 1 / 9]),  # of equal weights the first counts as smaller
        ([3, -4, 5], [True, False, True], [9 / 34, 0, 1]),
        ([0, 0], [True, True], [0, 0]),
        ([1, 2], [False, False], [0, 0]),
        ([1e-30, 1e30], [True, True], [1e-120, 1]),
        ([], [], []),
    ],
)
def test_lamp_gives_the_largest_of_each_layer_one(weights, kept, expected):
    state, mask = State(0, {"a/kernel": np.float32(weights)}, {}, {}), {"a/kernel": np.array(kept, bool)}

    found = criteria.lamp(state, mask, Known())["a/kernel"]

    np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(weights=hnp.arrays(np.float32, hnp.array_shapes(max_dims=4, max_side=5), elements=st.floats(-100, 100, width=32)))
def test_lamp_orders_a_layer_as_magnitude_does(weights):
    found = criteria.lamp(State(0, {"a": weights}, {}, {}), {"a": np.ones(weights.shape, bool)}, Known())["a"].ravel()

    order = np.argsort(np.abs(weights.ravel()).astype(np.float64) ** 2, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    assert found.max() == (1 if weights.any() else 0)


def short(state, mask, probe):
    return {path: state.weights[path][:1] for path in mask}


def infinite(state, mask, probe):
    return {path: np.full(kept.shape, np.inf) for path, kept in mask.items()}


def undefined(state, mask, probe):
    return {path: np.full(kept.shape, np.nan) for path, kept in mask.items()}


def nothing(state, mask, probe):
    return {}


def half(state, mask, probe):
    return {"a/kernel": state.weights["a/kernel"]}


def listed(state, mask, probe):
    return [np.abs(state.weights[path]) for path in mask]


def greedy(state, mask, probe):
    for kept in mask.values():
        kept[...] = False
    return state.weights


@pytest.fixture
def cut_by(here):
    """A function that cuts a run's masks of 50 % by a criterion, and gives its replicate."""

    def cut_masks(criterion, **family):
        own = {"criterion": criterion, "quantiles": "50", "controls": [], **family}
        tables = {"train": {"epochs": 1, "warmup": "0", "snapshots": "0"}, "families": {"own": own}}
        run = Run(here / "run", reading.resolve({**tables, "pruning": {"exclude": []}}))
        replicate = run.replicate(1)
        store.save_state(replicate.snapshot(12), STATE)
        made = {"status": "done", "replicate": 1, "step": 12, "steps_per_epoch": 12, "epochs": 1.0}
        outputs = lineage.seals(replicate.folder, [replicate.snapshot(12)])
        write(replicate.dense.result, Result.model_validate({**made, "outputs": outputs}))
        cut.cut(run, run.plan().masks([1], run.recipe.families))
        return replicate

    return cut_masks


def test_what_a_users_own_criterion_does_to_its_mask_stays_its_own(cut_by):
    [made] = cut_by("test_criteria:greedy", iterations=2).masks()

    assert made.read().remaining == 3


@pytest.mark.parametrize(
    ("name", "path"),
    [*((name, "a/kernel") for name in ("short", "infinite", "undefined", "nothing", "listed")), ("half", "b/kernel")],
)
def test_scores_that_are_none_are_refused_in_one_line_and_nothing_is_written(cut_by, here, name, path):
    with pytest.raises(
        InputError, match=f"^criterion: test_criteria:{name} must give a finite score for every weight of {path}"
    ):
        cut_by(f"test_criteria:{name}")

    assert not list(here.rglob("masks/*.h5"))


@pytest.mark.parametrize(
    ("criterion", "words"),
    [("test_criteria:gone", "test_criteria has no function gone"), ("nowhere:score", "nowhere cannot be imported")],
)
def test_a_criterion_that_is_not_there_is_refused_in_one_line(cut_by, criterion, words):
    with pytest.raises(InputError, match=f"^criterion: {words}"):
        cut_by(criterion)
