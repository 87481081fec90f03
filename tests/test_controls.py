"""Controls: what each one trains against NumPy by hand; a user's own, from the recipe to a network."""

import dataclasses

import numpy as np
import pytest

from lottery.base.errors import InputError
from lottery.experiment import controls
from lottery.experiment.controls import CONTROLS, Given
from lottery.pruning.state import State
from lottery.pruning.units import SINGLE, Blocks

KEPT = np.arange(24).reshape(4, 6) % 3 == 0
WHOLE = np.broadcast_to(np.arange(6) < 2, (4, 6))
SEED = 7
DENSE = State(5, {"a/kernel": np.ones((4, 6), np.float32)}, {}, {"steps": np.int64(5)})
FRESH = State(0, {"a/kernel": np.full((4, 6), 2, np.float32)}, {}, {})
TRAINED = State(9, {"a/kernel": np.full((4, 6), -3, np.float32)}, {}, {})


def filled(step, value):
    return State(step, {"a/kernel": np.full((4, 6), value, np.float32)}, {}, {})


def given(mask=None, met=None, units=None):
    return Given(
        {"a/kernel": KEPT} if mask is None else mask,
        lambda: DENSE,
        lambda: FRESH,
        SEED,
        met or {},
        units or SINGLE,
        lambda: {"a/kernel": ~KEPT, "bn/moving_mean": KEPT},
        lambda: {"a/kernel": WHOLE, "a/bias": WHOLE[0]},
        lambda: TRAINED,
        lambda: {"a/kernel": KEPT[::-1]},
    )


def shuffled(places=None):
    """What is kept of `KEPT`, permuted over `places` by hand."""
    places = np.ones((4, 6), bool) if places is None else places
    found = KEPT.copy()
    found[places] = np.random.default_rng([SEED, 0]).permutation(KEPT[places])
    return found


TABLE = {
    # name: (its start, its mask, its state)
    "rewound": ("dense", {"a/kernel": KEPT}, DENSE),
    "reinit": ("fresh", {"a/kernel": KEPT}, FRESH),
    "shuffle": ("dense", {"a/kernel": shuffled()}, DENSE),
    "invert": ("dense", {"a/kernel": ~KEPT}, DENSE),
    "random": ("fresh", {"a/kernel": shuffled()}, FRESH),
    "signs0": ("dense", {"a/kernel": KEPT}, FRESH),  # of positive weights: by hand below
    "signs": ("fresh", {"a/kernel": KEPT}, filled(0, -2)),
    "constant": ("dense", {"a/kernel": KEPT}, filled(5, 0)),  # weights that are all alike deviate by nothing
    "supermask": ("dense", {"a/kernel": KEPT}, DENSE),
    "supermask_constant": ("dense", {"a/kernel": KEPT}, filled(5, 0)),
    "refill": ("dense", {"a/kernel": WHOLE, "a/bias": WHOLE[0]}, DENSE),
    "borrowed": ("dense", {"a/kernel": KEPT}, DENSE),  # the mask that it is given is another replicate's
    "aligned": ("dense", {"a/kernel": KEPT[::-1]}, DENSE),
    "soup": ("average", {"a/kernel": KEPT}, DENSE),
    "extended": ("own", {}, DENSE),
}


def test_every_control_is_in_the_table():
    assert TABLE.keys() == CONTROLS.keys()


@pytest.mark.parametrize("name", TABLE)
def test_a_control_trains_what_it_says(name):
    start, mask, state = TABLE[name]
    before = KEPT.copy()

    found, begun = CONTROLS[name](given())

    assert CONTROLS[name].start == start
    assert begun.step == state.step
    assert np.array_equal(begun.weights["a/kernel"], state.weights["a/kernel"])
    assert found.keys() == mask.keys()
    assert all(np.array_equal(found[path], mask[path]) for path in mask)
    assert np.array_equal(before, KEPT)


@pytest.mark.parametrize(
    ("name", "kernel"), [("signs0", [-7, 8, 9]), ("signs", [7, 8, -9]), ("constant", [-np.sqrt(6), np.sqrt(6), np.sqrt(6)])]
)
def test_signs_and_magnitudes_come_from_where_a_control_says(name, kernel):
    def state(kernel, *bias):
        return State(0, {"kernel": np.array(kernel, np.float32), "bias": np.array(bias, np.float32)}, {}, {})

    start, fresh, trained = state([-1, 5, 2], 1), state([7, -8, 9], 2), state([3, 0, -1], 3)
    source = dataclasses.replace(
        given({"kernel": np.ones(3, bool)}), start=lambda: start, fresh=lambda: fresh, trained=lambda: trained
    )

    _, begun = CONTROLS[name](source)

    assert begun.weights["kernel"] == pytest.approx(np.array(kernel), rel=1e-6)
    assert begun.weights["bias"] == (1 if name == "constant" else 2)  # no mask covers it
    assert fresh.weights["kernel"].tolist() == [7, -8, 9]  # nothing is changed in place


@pytest.mark.parametrize("name", ["shuffle", "random"])
def test_a_shuffled_mask_leaves_alone_what_meets_only_padding(name):
    places = np.zeros((4, 6), bool)
    places[1:3] = True

    found, _ = CONTROLS[name](given(met={"a/kernel": places}))

    assert np.array_equal(found["a/kernel"], shuffled(places))
    assert found["a/kernel"].sum() == KEPT.sum()


@pytest.mark.parametrize("name", ["shuffle", "random"])
def test_a_shuffled_mask_of_units_has_whole_ones(name):
    blocks = Blocks(2, 3)
    mask = {
        "a/kernel": blocks.spread({"a/kernel": np.array([[True, False], [False, False]])}, {"a/kernel": KEPT | True})[
            "a/kernel"
        ]
    }

    found, _ = CONTROLS[name](given(mask, units=blocks))

    assert sorted(blocks.total(found)["a/kernel"].flat) == [0, 0, 0, 6]


def test_every_control_has_a_sentence_and_a_dash_of_its_own():
    assert all(control.sentence and not control.sentence.endswith(".") for control in CONTROLS.values())
    assert len({control.dash for control in CONTROLS.values()}) == len(CONTROLS)
    for name, control in CONTROLS.items():
        assert (f"{name}: {control.sentence}" in controls.sentences()) == (control.start != "own")


OWN = '''
import functools
from lottery.experiment.controls import control

def negative(given):
    """the ticket's complement.

    With the dense weights."""
    return {path: ~kept for path, kept in given.mask.items()}, given.start()

@control(start="fresh", dash=(1, 1))
def apart(given):
    """fresh weights elsewhere"""
    return {path: ~kept for path, kept in given.mask.items()}, given.fresh()

def maskless(given):
    """no mask"""
    return given.start()

def partial(given):
    """a layer is missing"""
    return dict(list(given.mask.items())[1:]), given.start()

alias = negative
value = 3
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "owncontrols.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("name", "start", "sentence", "state"),
    [
        ("negative", "dense", "the ticket's complement. With the dense weights", DENSE),
        ("apart", "fresh", "fresh weights elsewhere", FRESH),
        ("alias", "dense", "the ticket's complement. With the dense weights", DENSE),
    ],
)
def test_a_function_of_ones_own_is_a_control(own, name, start, sentence, state):
    found = controls.of(f"owncontrols:{name}")

    assert (found.name, found.start, found.sentence) == (name, start, sentence)
    assert controls.variant(f"owncontrols:{name}") == name
    mask, begun = found(given())
    assert begun is state
    assert np.array_equal(mask["a/kernel"], ~KEPT)


@pytest.mark.parametrize("name", ["maskless", "partial"])
def test_a_function_that_returns_something_else_is_refused_in_one_line(own, name):
    with pytest.raises(
        InputError, match=f"^control {name} must return a mask of the ticket's variables and shapes, and a state"
    ):
        controls.of(f"owncontrols:{name}")(given())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("owncontrols:gone", "controls: owncontrols has no function gone"),
        ("owncontrols:value", "controls: owncontrols has no function value"),
        ("nowhere:one", "controls: nowhere cannot be imported"),
    ],
)
def test_a_control_that_is_not_there_is_refused_in_one_line(own, name, words):
    controls.check_name(name)
    with pytest.raises(InputError, match=f"^{words}"):
        controls.of(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("renit", "unknown control 'renit'; did you mean 'reinit'?"),
        ("extended", "unknown control 'extended'"),
        ("own:", "'own:' does not name a function: write package.module:function"),
        *((f"own:{name}", f"a control cannot be called {name!r}") for name in ("ticket", "dense", *CONTROLS)),
    ],
)
def test_a_name_that_no_control_can_have_is_refused(name, words):
    with pytest.raises(InputError, match=words.replace("?", r"\?")):
        controls.check_name(name)
