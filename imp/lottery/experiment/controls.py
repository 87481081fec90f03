"""Controls: networks trained beside a ticket. A control differs from its ticket in one thing, so a difference in accuracy is
due to that thing.

A control is one function. It gets what its ticket is made of, and returns a mask and a state to start from. Its docstring is
the sentence that explains it in the recipe and in the report. A new one is a function here, or a user's own, which a recipe
names as `package.module:function`.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from data_prep.errors import InputError
from lottery.experiment import named
from lottery.pruning import masks
from lottery.pruning.masks import Mask
from lottery.pruning.state import State

Start = Literal["dense", "fresh", "own"]
ACCOMPANIED = "ticket", "dense"  # the other networks of a run


@dataclasses.dataclass(frozen=True)
class Given:
    """What a control is made from: the ticket's `mask` over trainable variables; `start()`, the state that its `Start`
    names; `fresh()`, newly drawn weights; and a `seed` for anything else that is drawn. `met` says which places of a kernel
    can have an effect, if some cannot (`connectivity.met`). All of this is the same at every rewind point, and in every
    family with such a mask."""

    mask: Mask
    start: Callable[[], State]
    fresh: Callable[[], State]
    seed: int
    met: Mapping[str, np.ndarray]


Make = Callable[[Given], tuple[Mask, State]]


@dataclasses.dataclass(frozen=True)
class Control:
    """A control: its `name` in files, tables and legends, its `sentence`, its `dash` in charts (pixels on and off), and what
    it starts from. `dense`: the dense network, at the ticket's rewind point, or at its end if tickets continue from one
    another. `fresh`: newly drawn weights; one such control serves all rewind points. `own`: the end of the same control in
    the round before; it has no mask."""

    name: str
    sentence: str
    start: Start
    make: Make
    dash: tuple[int, ...] = (4, 2)

    def __call__(self, given: Given) -> tuple[Mask, State]:
        return self.make(given)


def control(start: Start = "dense", dash: tuple[int, ...] = (4, 2)) -> Callable[[Make], Control]:
    """Turn a function into a control."""

    def described(make: Make) -> Control:
        return Control(make.__name__, " ".join((make.__doc__ or "").split()).rstrip("."), start, make, dash)

    return described


@control(start="fresh", dash=(7, 3))
def reinit(given: Given) -> tuple[Mask, State]:
    """the ticket's mask with fresh weights"""
    return given.mask, given.fresh()


@control(start="dense", dash=(2, 2))
def shuffle(given: Given) -> tuple[Mask, State]:
    """the ticket's weights under its mask shuffled within each layer"""
    return masks.shuffle(given.mask, given.seed, given.met), given.start()


@control(start="fresh", dash=(7, 2, 2, 2))
def random(given: Given) -> tuple[Mask, State]:
    """fresh weights under the shuffled mask"""
    return masks.shuffle(given.mask, given.seed, given.met), given.fresh()


@control(start="own", dash=(12, 4))
def extended(given: Given) -> tuple[Mask, State]:
    """the dense network given the same extra training, in every round of lr and finetune"""
    return {}, given.start()


CONTROLS: dict[str, Control] = {one.name: one for one in (reinit, shuffle, random, extended)}


def check_name(name: str) -> None:
    """Raise InputError unless a recipe can ask for the control `name`. A user's own must not be called as one of ours is, or as
    what it accompanies."""
    named.check(name, [one.name for one in CONTROLS.values() if one.start != "own"], "control")
    if named.is_own(name) and variant(name) in (*CONTROLS, *ACCOMPANIED):
        raise InputError(f"a control cannot be called {variant(name)!r}: give the function {name} another name")


def check_names(names: Sequence[str]) -> None:
    """Raise InputError where two of the controls that a recipe names are called alike."""
    for name, other in itertools.combinations(dict.fromkeys(names), 2):
        if variant(name) == variant(other):
            raise InputError(f"{name} and {other} are called alike: give one of the functions another name")


def of(name: str) -> Control:
    """The control that a recipe names. Raises InputError if it is a user's own and does not exist."""
    if not named.is_own(name):
        return CONTROLS[name]
    function = named.function(name, "controls")
    own = function if isinstance(function, Control) else control()(function)
    return dataclasses.replace(own, name=variant(name))


def variant(name: str) -> str:
    """The name in files and tables of the control that a recipe names: for a user's own, the name of its function."""
    return name.rpartition(":")[2]


def sentences() -> str:
    """Every control that a recipe may name, explained."""
    return "; ".join(f"{one.name}: {one.sentence}" for one in CONTROLS.values() if one.start != "own")
