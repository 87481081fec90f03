"""Criteria: each function's scores against NumPy by hand; a user's own, from the recipe to the mask."""

import numpy as np
import pytest

from data_prep import files
from data_prep.errors import InputError
from lottery.experiment import reading
from lottery.pruning import criteria
from lottery.pruning.state import State
from lottery.rundir import identity, lineage, store
from lottery.rundir.records import MaskRecord, Result, write
from lottery.rundir.run import Run
from lottery.stages import cut

WEIGHTS = {"a/kernel": np.float32([[3.0, -1.0], [-0.0, 2.0]]), "b/kernel": np.float32([-5.0, 4.0])}
STATE = State(12, WEIGHTS | {"b/bias": np.float32([9.0])}, {"bn/moving_mean": np.float32([-7.0])}, {})
EVERYTHING = {path: np.ones(array.shape, bool) for path, array in (STATE.weights | STATE.statistics).items()}

TABLE = {"magnitude": {path: np.abs(array) for path, array in (STATE.weights | STATE.statistics).items()}}


def test_every_criterion_is_in_the_table():
    assert TABLE.keys() == criteria.CRITERIA.keys()


@pytest.mark.parametrize("name", TABLE)
def test_a_criterion_scores_each_weight_of_the_mask_and_changes_nothing(name):
    before = [array.tobytes() for array in (STATE.weights | STATE.statistics).values()]

    for mask in (EVERYTHING, {"b/kernel": np.array([True, False])}):
        scores = criteria.CRITERIA[name](STATE, mask, None)

        assert scores.keys() == mask.keys()
        for path, found in scores.items():
            assert (found.dtype, found.tobytes()) == (np.float32, TABLE[name][path].tobytes())
    assert [array.tobytes() for array in (STATE.weights | STATE.statistics).values()] == before


OWN = """
import numpy as np

def largest(state, mask, gradients):
    return {path: -np.abs(state.weights[path]) for path in mask}

def short(state, mask, gradients):
    return {path: state.weights[path][:1] for path in mask}

def infinite(state, mask, gradients):
    return {path: np.full(kept.shape, np.inf) for path, kept in mask.items()}

def nothing(state, mask, gradients):
    return {}

def listed(state, mask, gradients):
    return [np.abs(state.weights[path]) for path in mask]
"""


@pytest.fixture
def cut_by(here, monkeypatch):
    """A function that cuts a run's masks of 50 % by a criterion, and gives its replicate."""
    (here / "mycriteria.py").write_text(OWN)
    monkeypatch.syspath_prepend(here)

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


def test_the_lowest_scores_of_a_users_own_criterion_go(cut_by):
    replicate = cut_by("mycriteria:largest")

    [made] = replicate.masks()
    mask = store.load_mask(made.mask)
    assert {path: kept.astype(int).tolist() for path, kept in mask.items()} == {
        "a/kernel": [[0, 1], [1, 1]],
        "b/kernel": [0, 0],
    }
    record = made.read()
    assert isinstance(record, MaskRecord)
    assert (record.scores.min, record.scores.max, record.scores.count) == (-5, 0, 6)
    assert (record.pruned, record.remaining, record.threshold) == (3, 3, -2.5)
    made_with = files.read_json(made.folder / identity.FILE)
    assert made_with["values"]["families.own.criterion"] == "mycriteria:largest"


@pytest.mark.parametrize("name", ["short", "infinite", "nothing", "listed"])
def test_scores_that_are_none_are_refused_in_one_line(cut_by, name):
    with pytest.raises(
        InputError, match=f"^criterion: mycriteria:{name} must give a finite score for every weight of a/kernel"
    ):
        cut_by(f"mycriteria:{name}")


@pytest.mark.parametrize(
    ("criterion", "words"),
    [("mycriteria:gone", "mycriteria has no function gone"), ("nowhere:score", "nowhere cannot be imported")],
)
def test_a_criterion_that_is_not_there_is_refused_in_one_line(cut_by, criterion, words):
    with pytest.raises(InputError, match=f"^criterion: {words}"):
        cut_by(criterion)


def test_each_layer_is_ranked_by_itself_where_the_family_says_so(cut_by):
    [made] = cut_by("magnitude", allocation="layerwise").masks()

    mask = store.load_mask(made.mask)  # k = ceil(0.5 * 3) = 2, and ceil(0.5) = 1
    assert {path: kept.astype(int).tolist() for path, kept in mask.items()} == {
        "a/kernel": [[1, 0], [0, 1]],
        "b/kernel": [1, 0],
    }
    record = made.read()
    assert record.threshold is None
    assert {path: (one.rate, one.threshold, one.weights, one.kept) for path, one in record.layers.items()} == {
        "a/kernel": (50, 1.5, 4, 2),
        "b/kernel": (50, 4.5, 2, 1),
    }
