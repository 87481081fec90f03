"""Criteria: how much each weight matters. A criterion is one function, and those with the lowest scores are pruned.

A criterion takes the network to be scored (`State`), the mask of what is left of it (path -> bool, all prunable variables) and
a `Probe`, which gives derivatives of the network under that mask. It returns a score for each weight of the mask (path -> float
array of the variable's shape, finite); scores of pruned weights are not looked at. A new one is a function here and an entry in
`CRITERIA`, or a user's own, which a recipe names as `package.module:function`."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from lottery.base import plugins
from lottery.base.errors import InputError
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State

GRASP_TEMPERATURE = 200.0  # of the authors' code: nearly uniform answers, as at the start of training


class Probe(Protocol):
    """What a criterion may ask about the network that it scores, at its weights under the mask. Arrays are by the path of every
    trainable variable, in the variable's shape; the same call gives the same bits. The images are training images, not varied,
    as many as the recipe says; L is their mean cross-entropy, without decay or label smoothing. Raises InputError where there
    are no images. `seed` is the replicate's own."""

    seed: int

    def gradients(self, temperature: float = 1.0) -> Arrays:
        """dL/dw, with logits divided by `temperature`."""

    def hessian_product(self, vector: Arrays, temperature: float = 1.0) -> Arrays:
        """H v: the Hessian of L with respect to the variables of `vector` (path -> array), times that; others are constant."""

    def flow(self) -> Arrays:
        """|w| dR/d|w| in float64, where R is the sum of the outputs for an image of ones when every weight has its absolute
        value and activations pass on what they get: the sum over all paths through the weight of the products of the weights
        along them. It needs no images."""


Criterion = Callable[[State, Bits, Probe], Arrays]


def checked(criterion: Criterion, name: str) -> Criterion:
    """The `criterion` called `name`, which may be a user's own: it gets a mask that it may change, and its scores come in the
    order of their paths. It raises InputError unless they are a finite number for each weight that the mask keeps."""

    def score(state: State, mask: Bits, probe: Probe) -> Arrays:
        scores: Any = criterion(state, {path: kept.copy() for path, kept in mask.items()}, probe)
        for path, kept in mask.items():
            array = np.asarray(scores[path]) if isinstance(scores, Mapping) and path in scores else np.empty(0)
            if array.shape != kept.shape or not _is_finite(array, kept):
                raise InputError(f"{name} must give a finite score for every weight of {path}")
        return {path: np.asarray(scores[path]) for path in sorted(mask)}

    return score


def inverted(criterion: Criterion) -> Criterion:
    """What keeps the weights of the lowest scores."""
    return lambda *asked: {path: -scores for path, scores in criterion(*asked).items()}


def given(scores: Arrays) -> Criterion:
    """What gives these scores, whatever it is asked."""
    return lambda *_: scores


def _is_finite(scores: np.ndarray, kept: np.ndarray) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):  # a sum is quicker to look at, but may overflow
        return bool(np.isfinite(np.sum(scores)) or np.isfinite(scores[kept]).all())


def magnitude(state: State, mask: Bits, probe: Probe) -> Arrays:
    """|w| (Han et al. 2015, "Learning both Weights and Connections for Efficient Neural Networks", section 3.1)."""
    return {path: np.abs(array) for path, array in _of(mask, state).items()}


def random(state: State, mask: Bits, probe: Probe) -> Arrays:
    """Uniform random numbers: masks that differ in nothing but how many weights each layer keeps. Densities share the draw."""
    draws = (np.random.default_rng([probe.seed, index]) for index in range(len(mask)))
    return {path: rng.random(mask[path].shape) for path, rng in zip(sorted(mask), draws, strict=True)}


def snip(state: State, mask: Bits, probe: Probe) -> Arrays:
    """|g w|: by how much the loss would change at first without the weight (Lee et al. 2019, "SNIP: Single-shot Network Pruning
    based on Connection Sensitivity", equation 6). In several iterations: Iterative SNIP (de Jorge et al. 2021)."""
    products = _times(state, probe.gradients(), mask)
    return _with_statistics(mask, {path: np.abs(array) for path, array in products.items()})


def grasp(state: State, mask: Bits, probe: Probe) -> Arrays:
    """w (H g): by how much the gradient's norm would fall at first without the weight (Wang et al. 2020, "Picking Winning
    Tickets Before Training by Preserving Gradient Flow", equation 8, whose sign is the other one). Logits are divided by 200,
    as in the authors' code."""
    gradients = probe.gradients(GRASP_TEMPERATURE)
    kept = {path: np.where(mask[path], array, 0) for path, array in gradients.items() if path in mask}
    return _with_statistics(mask, _times(state, probe.hessian_product(kept, GRASP_TEMPERATURE), mask))


def grasp_abs(state: State, mask: Bits, probe: Probe) -> Arrays:
    """|w (H g)|: GraSP by size alone (Frankle et al. 2021, "Pruning Neural Networks at Initialization: Why Are We Missing the
    Mark?")."""
    return {path: np.abs(scores) for path, scores in grasp(state, mask, probe).items()}


def synflow(state: State, mask: Bits, probe: Probe) -> Arrays:
    """|w| dR/d|w|: the share of all paths, by the product of their weights, that lead through the weight (Tanaka et al. 2020,
    "Pruning neural networks without any data by iteratively conserving synaptic flow", algorithm 1, of 100 iterations)."""
    return _with_statistics(mask, probe.flow())


def _times(state: State, derivatives: Arrays, mask: Bits) -> Arrays:
    return {path: state.weights[path] * derivatives[path] for path in mask if path in derivatives}


def _with_statistics(mask: Bits, found: Arrays) -> Arrays:
    """What was `found` of the variables of `mask`. BatchNorm's statistics (scope `all`), which have no derivatives and which no
    training prunes, score as high as the highest weight."""
    scores = {path: found[path] for path in mask if path in found}
    if len(scores) == len(mask):
        return scores
    most = max((float(array.max()) for array in scores.values() if array.size), default=0.0)
    return {path: scores[path] if path in scores else np.full(kept.shape, most) for path, kept in mask.items()}


def lamp(state: State, mask: Bits, probe: Probe) -> Arrays:
    """w^2 over the sum of the squares of those in its layer that are no smaller (Lee et al. 2021, "Layer-adaptive Sparsity for
    the Magnitude-based Pruning", equation 3): the largest of each layer scores 1. Of equal weights the first counts as smaller.
    """
    return {path: _lamp(array, mask[path]) for path, array in _of(mask, state).items()}


def _lamp(array: np.ndarray, kept: np.ndarray) -> np.ndarray:
    squares = np.square(array[kept], dtype=np.float64)
    order = np.argsort(squares, kind="stable")
    ascending = squares[order]
    sums = np.cumsum(ascending[::-1])[::-1]
    scores = np.zeros(array.shape)
    ranked = np.empty_like(squares)
    ranked[order] = np.divide(ascending, sums, out=np.zeros_like(sums), where=sums > 0)
    scores[kept] = ranked
    return scores


def _of(mask: Bits, state: State) -> Arrays:
    variables = state.weights | state.statistics
    return {path: variables[path] for path in mask}


CRITERIA: dict[str, Criterion] = {one.__name__: one for one in (magnitude, random, snip, grasp, grasp_abs, synflow, lamp)}
_PASSES = {snip.__name__: 3, grasp.__name__: 9, grasp_abs.__name__: 9, synflow.__name__: 3}
OF_WEIGHTS = (magnitude.__name__, lamp.__name__)  # which look at nothing else
WITH_IMAGES = (snip.__name__, grasp.__name__, grasp_abs.__name__)
ITERATIONS = {synflow.__name__: 100}


def by_name(name: str) -> Criterion:
    """The criterion that a family of a recipe names. Raises InputError if it is a user's own and does not exist."""
    return CRITERIA.get(name) or plugins.function(name, "criterion")


def passes(name: str, criterion: Criterion) -> float | None:
    """How often each image goes through the network in a scoring, each pass as dear as the forward one. A user's own criterion
    says that by its attribute `passes`; None where it has none. Raises InputError where that is not a number of 0 or more."""
    if name in CRITERIA:
        return _PASSES.get(name, 0)
    told = getattr(criterion, "passes", None)
    if told is not None and not (isinstance(told, int | float) and told >= 0):
        raise InputError(f"criterion: {name}.passes is {told!r}: let it be how often images pass the network, such as 3")
    return told
