"""How alike two masks are, whatever the hidden units are called. Pure NumPy.

Hidden units of networks with different starts are exchangeable: relabelling them (permuting the outputs of a layer, and the
inputs of the next alike) leaves the function as it is and moves the mask (Entezari et al. 2022, Ainsworth et al. 2023 "Git
Re-Basin"). So a position in one mask has no counterpart in the other. Compared is only what no relabelling changes:

- layers: how many weights each keeps;
- places that have a meaning of their own: how many weights are kept at each. These are places of the input (pixels, colours)
  in layers that read it, the output's classes in layers that give them, and the places of a convolution's kernel;
- hidden units: how many weights each keeps, on its way in and on its way out, as sorted counts.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import numpy as np

from lottery.base.errors import InputError
from lottery.pruning.connectivity import Node, Topology
from lottery.pruning.masks import Bits
from lottery.pruning.overlap import Figures, added, common, share

Side = Literal["input", "kernel", "classes"]

SIDES: tuple[Side, ...] = get_args(Side)
DRAWS = 50  # at random, for the expectation and the spread of what has no formula


class Layout(NamedTuple):
    """What the axes of the kernel of `node`, of so many `incoming` channels, are. `reads_input`: its inputs are places of the
    network's; `gives_classes`: its outputs are the network's. Other inputs and outputs are hidden units."""

    node: Node
    incoming: int
    reads_input: bool
    gives_classes: bool


def layouts(topology: Topology | None) -> dict[str, Layout]:
    """The layout of each kernel by its path, as far as it is known: of none without a topology, nor in layers of kind `mix`."""
    found = {}
    widths: dict[str, int] = {}
    fixed: dict[str, bool] = {}  # by node: whether its channels are the input's, in their order
    for node in topology.nodes if topology else ():
        if topology and node.kind == "linear":
            ((source,), (path,)) = node.inputs, node.kernels
            found[path] = Layout(node, widths[source], fixed[source], node.name in topology.outputs)
        passes_on = node.kind not in ("linear", "mix") and all(fixed[name] for name in node.inputs)
        fixed[node.name], widths[node.name] = node.kind == "input" or passes_on, node.width
    return found


class Profile(NamedTuple):
    """What no relabelling changes in a variable's mask. `places`: weights kept at each place (int [places]) of a `side`, None
    where there is but one. `units`: for the outputs, then for the inputs, where these are hidden units: weights kept of each,
    ascending (int [units]), and the same of masks drawn at random with as many weights (int [DRAWS, units])."""

    shape: tuple[int, ...]
    kept: int
    side: Side = "kernel"
    places: np.ndarray | None = None
    units: tuple[tuple[np.ndarray, np.ndarray], ...] = ()


def profiles(mask: Bits, known: Mapping[str, Layout]) -> dict[str, Profile]:
    """The profile of each variable of `mask` (path -> bool array), of those that are not `known` with its count alone. Raises
    InputError when an array has not the shape that its layout says."""
    rng = np.random.default_rng(0)
    return {path: _profile(path, kept, known.get(path), rng) for path, kept in sorted(mask.items())}


def _profile(path: str, kept: np.ndarray, layout: Layout | None, rng: np.random.Generator) -> Profile:
    count = int(np.count_nonzero(kept))
    if layout is None:
        return Profile(kept.shape, count)
    kernel = layout.node.kernels[path]
    if kept.shape != kernel:
        raise InputError(f"the mask of {path} has shape {kept.shape}, its kernel {kernel}: they are of two networks")
    arranged = layout.node.arranged(kept, layout.incoming)
    side: Side = "input" if layout.reads_input else "classes" if layout.gives_classes else "kernel"
    hidden = [axis for axis, named in ((3, layout.gives_classes), (1, layout.reads_input)) if not named]
    places = arranged.sum((1, 2, 3) if len(hidden) == 2 else tuple(hidden), dtype=np.int64).ravel()
    units = []
    for axis in hidden:
        counts = arranged.sum((0, 4 - axis), dtype=np.int64).ravel()
        drawn = _drawn(np.full(counts.size, kept.size // counts.size), int(counts.sum()), rng)
        units.append((np.sort(counts), np.sort(drawn)))
    return Profile(kept.shape, count, side, places if places.size > 1 else None, tuple(units))


def _drawn(sizes: np.ndarray, kept: int, rng: np.random.Generator) -> np.ndarray:
    """How many of `kept` weights fall among those of each of `sizes` (int [parts]) at random: int32 [DRAWS, parts]."""
    return rng.multivariate_hypergeometric(sizes, kept, DRAWS, method="marginals").astype(np.int32)


def likenesses(first: Mapping[str, Profile], second: Mapping[str, Profile]) -> dict[str, Figures]:
    """How alike two masks are in each variable that both have and, by the path `""`, as a whole.

    Of `size` weights they keep `kept_first` and `kept_second`. The figures of `layers` (as a whole), of the places of each of
    `SIDES` and of hidden `units` are those of `_alike` and `_correlation`; what a network lacks, or what is not known of it, is
    None. Raises InputError when there is no common variable, or one has other shapes."""
    sums = {path: _sums(first[path], second[path]) for path in common(first, second)}
    whole = {name: added(one[name] for one in sums.values() if name in one) for name in ("kept", *SIDES, "units")}
    sizes, one, other = np.array([found["kept"] for found in sums.values()]).T
    rng = np.random.default_rng(0)
    whole["layers"] = _apart(one, _drawn(sizes, int(one.sum()), rng), other, _drawn(sizes, int(other.sum()), rng))
    return {path: _figures(found) for path, found in {"": whole, **sums}.items()}


def _sums(first: Profile, second: Profile) -> dict[str, tuple[float, ...]]:
    """What of two profiles can be added up over variables."""
    found: dict[str, tuple[float, ...]] = {"kept": (math.prod(first.shape), first.kept, second.kept)}
    if first.places is not None and second.places is not None:
        found[first.side] = _products(first.places, second.places)
    units = [_apart(*one, *other) for one, other in zip(first.units, second.units, strict=False)]
    return found | ({"units": added(units)} if units else {})


def _figures(sums: Mapping[str, tuple[float, ...]]) -> Figures:
    size, first, second = sums["kept"]
    figures: Figures = {"size": size, "kept_first": first, "kept_second": second}
    figures |= {"density_first": share(first, size), "density_second": share(second, size)}
    figures |= _alike("layers", *sums.get("layers", ()))
    for side in SIDES:
        figures |= _correlation(side, *sums.get(side, ()))
    return figures | _alike("units", *sums.get("units", ()))


def _apart(first: np.ndarray, drawn_first: np.ndarray, second: np.ndarray, drawn_second: np.ndarray) -> tuple[float, ...]:
    """Of two lists of kept counts a and b: sum(a + b), sum |a - b|, and the expectation and variance of the latter by chance,
    which draws one of the two masks at random from as many weights; the mean of both choices."""
    by_chance = np.stack([np.abs(drawn_second - first).sum(axis=1), np.abs(drawn_first - second).sum(axis=1)])
    variance = float(by_chance.var(axis=1, ddof=1).mean())
    return int((first + second).sum()), int(np.abs(first - second).sum()), float(by_chance.mean()), variance


def _alike(name: str, kept: float = 0, apart: float = 0, expected: float = 0, variance: float = 0) -> Figures:
    """1 - sum |a - b| / sum(a + b): the share of the kept weights that have a counterpart (Bray & Curtis 1957)."""
    return {
        f"{name}_alike": share(kept - apart, kept),
        f"{name}_alike_by_chance": share(kept - expected, kept),
        f"{name}_alike_sd": share(math.sqrt(variance), kept),
    }


def _products(first: np.ndarray, second: np.ndarray) -> tuple[float, ...]:
    """Of two lists of kept counts less their means: the sum of their products, of the squares of each, and the variance of the
    first when the places of one list are permuted (its expectation is 0)."""
    one, other = first - first.mean(), second - second.mean()
    squares = float(one @ one), float(other @ other)
    return float(one @ other), *squares, math.prod(squares) / (first.size - 1)


def _correlation(side: str, products: float = 0, first: float = 0, second: float = 0, variance: float = 0) -> Figures:
    """Pearson's, None where a mask keeps as many everywhere. By chance it is 0, with an exact standard deviation (Pitman 1937):
    1 / sqrt(n - 1) for one list of n places. Masks drawn at random with the same count have it."""
    scale = math.sqrt(first * second)
    return {f"{side}_correlation": share(products, scale), f"{side}_correlation_sd": share(math.sqrt(variance), scale)}
