"""Controls: networks beside a ticket that differ from it in one thing, to which a difference in results is due. A control is
one function, from what its ticket is made of to a mask and a state to start from. Its docstring explains it in recipe and
report. A new one is a function here, or a user's own, which a recipe names as `package.module:function`."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from lottery.base import plugins
from lottery.base.errors import InputError
from lottery.pruning.masks import Bits
from lottery.pruning.state import State
from lottery.pruning.units import Units

Start = Literal["dense", "fresh", "own", "average"]


@dataclasses.dataclass(frozen=True)
class Given:
    """What a control is made from: the ticket's `mask` over trainable variables; `start()`, the state that its `Start` names;
    `fresh()`, newly drawn weights; a `seed` for anything else; `met`, the places of kernels that can have an effect, where some
    cannot (`connectivity.met`); the `units` that its masks are made of; `inverted()`, the mask that keeps the other end of the
    scores; `refilled()`, that of whole channels (`refill.refill`); and `trained()`, the network that the mask was scored on.
    All but `start()` is the same at every rewind point, and in every family with such a mask. Of those of `BORROWED`, `mask` is
    that of the same ticket in another replicate, and `aligned()` the same for the hidden units of this one."""

    mask: Bits
    start: Callable[[], State]
    fresh: Callable[[], State]
    seed: int
    met: Mapping[str, np.ndarray]
    units: Units
    inverted: Callable[[], Bits]
    refilled: Callable[[], Bits]
    trained: Callable[[], State]
    aligned: Callable[[], Bits]

    @property
    def shuffled(self) -> Bits:
        """The mask with its units permuted within each layer."""
        return self.units.shuffle(self.mask, self.seed, self.met)

    def signed(self, magnitudes: State, signs: State) -> State:
        """`magnitudes` with the signs of another state, in all that the mask covers."""
        weights = {path: np.copysign(magnitudes.weights[path], signs.weights[path]) for path in self.mask}
        return dataclasses.replace(magnitudes, weights=magnitudes.weights | weights)


Make = Callable[[Given], tuple[Bits, State]]


@dataclasses.dataclass(frozen=True)
class Control:
    """A control: its `name` in files, tables and legends, its `sentence`, its `dash` in charts (pixels on and off), and its
    `start`. `dense`: the dense network, at the ticket's rewind point, or where it was scored if tickets go on from one another.
    `fresh`: new weights; one serves all rewind points. `own`: the end of the same control in the round before; it has no mask.
    `average`: the mean of the ticket and its retrainings, which is not trained."""

    name: str
    sentence: str
    start: Start
    make: Make
    dash: tuple[int, ...] = (4, 2)

    def __call__(self, given: Given) -> tuple[Bits, State]:
        """Its mask may cover more than the ticket's, as that of whole channels does. Raises InputError where a user's own
        function returns anything else."""
        match self.make(given):
            case (dict() as mask, State() as state) if (
                self.start == "own" or _shapes(mask).items() >= _shapes(given.mask).items()
            ):
                return mask, state
        raise InputError(f"control {self.name} must return a mask of the ticket's variables and shapes, and a state")


def _shapes(mask: Bits) -> dict[str, tuple[int, ...]]:
    return {path: np.shape(kept) for path, kept in mask.items()}


def control(start: Start = "dense", dash: tuple[int, ...] = (4, 2)) -> Callable[[Make], Control]:
    """Turn a function into a control."""

    def described(make: Make) -> Control:
        return Control(make.__name__, " ".join((make.__doc__ or "").split()).rstrip("."), start, make, dash)

    return described


@control(start="fresh", dash=(7, 3))
def reinit(given: Given) -> tuple[Bits, State]:
    """the ticket's mask with fresh weights"""
    return given.mask, given.fresh()


@control(start="dense", dash=(2, 2))
def shuffle(given: Given) -> tuple[Bits, State]:
    """the ticket's weights under its mask shuffled within each layer"""
    return given.shuffled, given.start()


@control(start="dense", dash=(5, 2, 2, 2))
def rewound(given: Given) -> tuple[Bits, State]:
    """a ticket of the mask that gmp, rigl or set ended with: rewound, and trained under it from there"""
    return given.mask, given.start()


@control(start="dense", dash=(10, 2, 2, 2))
def invert(given: Given) -> tuple[Bits, State]:
    """the ticket's weights under the mask of the lowest scores"""
    inverted = given.inverted()
    return {path: inverted[path] for path in given.mask}, given.start()


@control(start="fresh", dash=(7, 2, 2, 2))
def random(given: Given) -> tuple[Bits, State]:
    """fresh weights under the shuffled mask"""
    return given.shuffled, given.fresh()


@control(start="dense", dash=(3, 3, 10, 3))
def refill(given: Given) -> tuple[Bits, State]:
    """the ticket's weights under whole channels that keep as many"""
    return given.refilled(), given.start()


@control(start="dense", dash=(1, 3, 7, 3))
def signs0(given: Given) -> tuple[Bits, State]:
    """the ticket's mask with fresh weights that have the signs of its start"""
    return given.mask, given.signed(given.fresh(), given.start())


@control(start="fresh", dash=(1, 3, 12, 3))
def signs(given: Given) -> tuple[Bits, State]:
    """the ticket's mask with fresh weights that have the signs of the network that it was scored on"""
    return given.mask, given.signed(given.fresh(), given.trained())


@control(start="dense", dash=(1, 2))
def constant(given: Given) -> tuple[Bits, State]:
    """the ticket's start with all weights of a layer at their standard deviation, and their signs"""
    start = given.start()
    levels = {path: np.full_like(start.weights[path], start.weights[path].std()) for path in given.mask}
    return given.mask, given.signed(dataclasses.replace(start, weights=start.weights | levels), start)


@control(start="dense", dash=(1, 4))
def supermask(given: Given) -> tuple[Bits, State]:
    """the ticket's start under its mask, not trained"""
    return given.mask, given.start()


@control(start="dense", dash=(1, 6))
def supermask_constant(given: Given) -> tuple[Bits, State]:
    """the start of constant, not trained"""
    return constant.make(given)


@control(start="dense", dash=(8, 2, 1, 2))
def borrowed(given: Given) -> tuple[Bits, State]:
    """the ticket's start under the mask of another replicate"""
    return given.mask, given.start()


@control(start="dense", dash=(8, 2, 1, 2, 1, 2))
def aligned(given: Given) -> tuple[Bits, State]:
    """the ticket's start under the mask of another replicate, whose hidden units are put in the order of this one's"""
    return given.aligned(), given.start()


@control(start="average", dash=(2, 5))
def soup(given: Given) -> tuple[Bits, State]:
    """the average of so many trainings (soup3: of 3) of the ticket's mask, each with the images in another order"""
    return given.mask, given.start()


@control(start="own", dash=(12, 4))
def extended(given: Given) -> tuple[Bits, State]:
    """the dense network given the same extra training, in every round of lr and finetune"""
    return {}, given.start()


_ALL = (
    *(rewound, reinit, shuffle, invert, random, signs0, signs, constant, supermask, supermask_constant),
    *(refill, borrowed, aligned, soup, extended),
)
CONTROLS: dict[str, Control] = {one.name: one for one in _ALL}
UNTRAINED = (supermask.name, supermask_constant.name)
BORROWED = (borrowed.name, aligned.name)  # those with the mask of another replicate
_NUMBERED = re.compile(r"(soup|again)([1-9][0-9]?)")


def check_name(name: str) -> None:
    """Raise InputError unless a recipe can ask for the control `name`: one of ours, or a user's own with another name."""
    if averaged(name) < 2:
        known = [one.name for one in CONTROLS.values() if one.start not in ("own", "average")]
        plugins.check(name, [*known, "soup3"], "control")
    called, reserved = variant(name), (*CONTROLS, "ticket", "dense")
    if plugins.is_own(name) and (called in reserved or _NUMBERED.fullmatch(called)):
        raise InputError(f"a control cannot be called {called!r}: give the function {name} another name")


def of(name: str) -> Control:
    """The control that a recipe names. Raises InputError if it is a user's own and does not exist."""
    if averaged(name):
        return dataclasses.replace(soup, name=name)
    if not plugins.is_own(name):
        return CONTROLS[name]
    function = plugins.function(name, "controls")
    own = function if isinstance(function, Control) else control()(function)
    return dataclasses.replace(own, name=variant(name))


def averaged(name: str) -> int:
    """Of how many networks the control that a recipe names is the average: `soup3` of 3, another one of none."""
    match = _NUMBERED.fullmatch(name)
    return int(match[2]) if match and match[1] == soup.name else 0


def soup_of(count: int) -> str:
    """The control that is the average of so many networks: `soup3`."""
    return f"{soup.name}{count}"


def again(number: int) -> str:
    """The variant of a network that is trained like its ticket, with the examples in another order: `again2`, `again3`, ..."""
    return f"again{number}"


def is_again(variant: str) -> bool:
    match = _NUMBERED.fullmatch(variant)
    return match is not None and match[1] == "again"


def variant(name: str) -> str:
    """The name in files and tables of the control that a recipe names: for a user's own, the name of its function."""
    return name.rpartition(":")[2]


def sentences() -> str:
    """Every control that a recipe may name, explained."""
    return "; ".join(f"{one.name}: {one.sentence}" for one in CONTROLS.values() if one.start != "own")
