"""How alike two masks are, whatever the hidden units are called. Pure NumPy.

Hidden units of networks with different starts are exchangeable: relabelling them (permuting the outputs of a layer, and the
inputs of the next alike) leaves the function as it is and moves the mask (Entezari et al. 2022, Ainsworth et al. 2023 "Git
Re-Basin"). So a position in one mask has no counterpart in the other. Compared is only what no relabelling changes:

- layers: how many weights each keeps;
- places that have a meaning of their own: how many weights are kept at each. These are places of the input (pixels, colours)
  in layers that read it, the output's classes in layers that give them, and the places of a convolution's kernel;
- hidden units: how many weights each keeps, on its way in and on its way out, as sorted counts.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import numpy as np

from data_prep.errors import InputError
from lottery.pruning.connectivity import Topology
from lottery.pruning.masks import Mask
from lottery.pruning.overlap import Counts, share, total

Side = Literal["input", "kernel", "classes"]

SIDES: tuple[Side, ...] = get_args(Side)
SHARES = (
    *("density_first", "density_second", "layers_alike", "layers_alike_by_chance", "layers_alike_sd"),
    *(f"{side}_{figure}" for side in SIDES for figure in ("correlation", "correlation_sd")),
    *("units_alike", "units_alike_by_chance", "units_alike_sd"),
)
DRAWS = 50  # at random, for the expectation and the spread of what has no formula


@dataclasses.dataclass(frozen=True)
class Alike:
    """Two lists of kept counts a and b, or several such pairs of lists summed.

    `kept` is sum(a + b), `apart` sum |a - b|; `expected` and `variance` are those of `apart` by chance, which draws one of the
    two masks at random from as many weights; the mean of both choices.
    """

    kept: int
    apart: int
    expected: float
    variance: float

    @property
    def alike(self) -> float | None:
        """1 - sum |a - b| / sum(a + b): the share of the kept weights that have a counterpart (Bray & Curtis 1957)."""
        return share(self.kept - self.apart, self.kept)

    @property
    def by_chance(self) -> float | None:
        return share(self.kept - self.expected, self.kept)

    @property
    def sd(self) -> float | None:
        return share(math.sqrt(self.variance), self.kept)


@dataclasses.dataclass(frozen=True)
class Covariance:
    """Two lists of kept counts less their means, or several such pairs summed: the sum of their products, of the squares of
    each, and the variance of `products` when the places of one list are permuted (its expectation is 0)."""

    products: float
    squares_first: float
    squares_second: float
    variance: float

    @property
    def correlation(self) -> float | None:
        """Pearson's; None where a mask keeps as many everywhere. By chance it is 0."""
        return share(self.products, math.sqrt(self.squares_first * self.squares_second))

    @property
    def sd(self) -> float | None:
        """By chance, exact (Pitman 1937): 1 / sqrt(n - 1) for one list of n places. Masks drawn at random with the same count
        have it, as all places of a list have equally many weights."""
        return share(math.sqrt(self.variance), math.sqrt(self.squares_first * self.squares_second))


@dataclasses.dataclass(frozen=True)
class Likeness(Counts):
    """How alike two masks are, in one variable or (then with `layers`) as a whole. What a network lacks, or what is not known
    of it, is None or left out."""

    layers: Alike | None
    places: Mapping[Side, Covariance]
    units: Alike | None

    SHARES: ClassVar = SHARES

    def figures(self) -> dict[str, float | None]:
        """Counts and `SHARES` by name."""
        values = [self.density_first, self.density_second, *_alike_figures(self.layers)]
        for side in SIDES:
            found = self.places.get(side)
            values += [found.correlation, found.sd] if found else [None, None]
        counts = {"size": self.size, "kept_first": self.kept_first, "kept_second": self.kept_second}
        return counts | dict(zip(SHARES, [*values, *_alike_figures(self.units)], strict=True))


def _alike_figures(found: Alike | None) -> list[float | None]:
    return [found.alike, found.by_chance, found.sd] if found else [None, None, None]


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the axes of a kernel of shape `kernel` are: it is arranged as `shape` = [places, inputs / groups, groups,
    outputs / groups], after its last two axes are swapped where it is `transposed`. `reads_input`: its inputs are places of
    the network's; `gives_classes`: its outputs are the network's. Other inputs and outputs are hidden units."""

    kernel: tuple[int, ...]
    shape: tuple[int, int, int, int]
    transposed: bool
    reads_input: bool
    gives_classes: bool

    @property
    def side(self) -> Side:
        """What the places of the kernel are called."""
        return "input" if self.reads_input else "classes" if self.gives_classes else "kernel"


def layouts(topology: Topology | None) -> dict[str, Layout]:
    """The layout of each kernel by its path, as far as it is known: of none without a topology, nor in layers of kind `mix`."""
    if topology is None:
        return {}
    found = {}
    widths = {node.name: node.width for node in topology.nodes}
    fixed: dict[str, bool] = {}  # by node: whether its channels are the input's, in their order
    for node in topology.nodes:
        if node.kind == "linear":
            ((path, kernel),) = node.kernels.items()
            channels = (widths[node.inputs[0]] // node.groups, node.groups, node.width // node.groups)
            shape = (math.prod(kernel) // math.prod(channels), *channels)
            found[path] = Layout(kernel, shape, node.transposed, fixed[node.inputs[0]], node.name in topology.outputs)
        passes_on = node.kind not in ("linear", "mix") and all(fixed[name] for name in node.inputs)
        fixed[node.name] = node.kind == "input" or passes_on
    return found


@dataclasses.dataclass(frozen=True)
class Profile:
    """What no relabelling changes in a variable's mask.

    `places`: weights kept at each place (int [places]), None where there is but one. `units`: for the outputs, then for the
    inputs, where these are hidden units: weights kept of each, ascending (int [units]), and the same of masks drawn at random
    with as many weights (int [DRAWS, units]).
    """

    shape: tuple[int, ...]
    kept: int
    side: Side
    places: np.ndarray | None
    units: tuple[tuple[np.ndarray, np.ndarray], ...]


def profiles(mask: Mask, known: Mapping[str, Layout]) -> dict[str, Profile]:
    """The profile of each variable of `mask` (path -> bool array), of those that are not `known` with its count alone.

    Raises InputError when an array has not the shape that its layout says.
    """
    rng = np.random.default_rng(0)
    return {path: _profile(path, kept, known.get(path), rng) for path, kept in sorted(mask.items())}


def _profile(path: str, kept: np.ndarray, layout: Layout | None, rng: np.random.Generator) -> Profile:
    count = int(np.count_nonzero(kept))
    if layout is None:
        return Profile(kept.shape, count, "kernel", None, ())
    if kept.shape != layout.kernel:
        raise InputError(f"the mask of {path} has shape {kept.shape}, its kernel {layout.kernel}: they are of two networks")
    arranged = (kept.swapaxes(-1, -2) if layout.transposed else kept).reshape(layout.shape)
    hidden = [axis for axis, named in ((3, layout.gives_classes), (1, layout.reads_input)) if not named]
    places = arranged.sum((1, 2, 3) if len(hidden) == 2 else tuple(hidden), dtype=np.int64).ravel()
    units = tuple(_units(arranged.sum((0, 4 - axis), dtype=np.int64).ravel(), kept.size, rng) for axis in hidden)
    return Profile(kept.shape, count, layout.side, places if places.size > 1 else None, units)


def _units(kept: np.ndarray, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Of a kernel of `size` weights, of which each unit keeps as many as `kept` says, what `Profile.units` holds."""
    drawn = _drawn(np.full(kept.size, size // kept.size), int(kept.sum()), rng)
    return np.sort(kept), np.sort(drawn)


def _drawn(sizes: np.ndarray, kept: int, rng: np.random.Generator) -> np.ndarray:
    """How many of `kept` weights fall among those of each of `sizes` (int [parts]) at random: int32 [DRAWS, parts]."""
    return rng.multivariate_hypergeometric(sizes, kept, DRAWS, method="marginals").astype(np.int32)


def likenesses(first: Mapping[str, Profile], second: Mapping[str, Profile]) -> dict[str, Likeness]:
    """How alike each variable is that both masks have. Raises InputError when there is none, or one has other shapes."""
    common = [path for path in first if path in second]
    if not common:
        raise InputError("the masks have no variable in common: compare masks of one network and one scope")
    return {path: _likeness(path, first[path], second[path]) for path in common}


def _likeness(path: str, first: Profile, second: Profile) -> Likeness:
    if first.shape != second.shape:
        shapes = " and ".join("x".join(map(str, profile.shape)) for profile in (first, second))
        raise InputError(f"{path} is {shapes} in the two masks: compare masks of one network")
    places = {}
    if first.places is not None and second.places is not None:
        places[first.side] = _covariance(first.places, second.places)
    units = [_alike(*one, *other) for one, other in zip(first.units, second.units, strict=False)]
    return Likeness(math.prod(first.shape), first.kept, second.kept, None, places, total(units) if units else None)


def whole(layers: Mapping[str, Likeness]) -> Likeness:
    """All of `layers` together, and how alike their counts are."""
    parts = list(layers.values())
    sizes, first, second = np.array([(part.size, part.kept_first, part.kept_second) for part in parts]).T
    rng = np.random.default_rng(0)
    by_layer = _alike(first, _drawn(sizes, int(first.sum()), rng), second, _drawn(sizes, int(second.sum()), rng))
    by_side = {side: [part.places[side] for part in parts if side in part.places] for side in SIDES}
    places = {side: total(found) for side, found in by_side.items() if found}
    units = [part.units for part in parts if part.units]
    size, kept_first, kept_second = (int(each.sum()) for each in (sizes, first, second))
    return Likeness(size, kept_first, kept_second, by_layer, places, total(units) if units else None)


def _alike(first: np.ndarray, drawn_first: np.ndarray, second: np.ndarray, drawn_second: np.ndarray) -> Alike:
    by_chance = np.stack([np.abs(drawn_second - first).sum(axis=1), np.abs(drawn_first - second).sum(axis=1)])
    variance = float(by_chance.var(axis=1, ddof=1).mean())
    return Alike(int((first + second).sum()), int(np.abs(first - second).sum()), float(by_chance.mean()), variance)


def _covariance(first: np.ndarray, second: np.ndarray) -> Covariance:
    one, other = first - first.mean(), second - second.mean()
    squares = float(one @ one), float(other @ other)
    return Covariance(float(one @ other), *squares, math.prod(squares) / (first.size - 1))
