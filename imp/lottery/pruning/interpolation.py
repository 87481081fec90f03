"""The straight line between two networks, and how much error it meets: their instability (Frankle et al. 2020, arXiv
1912.05671, section 2)."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from lottery.pruning.state import Arrays, State

POINTS = 30
STABLE = 0.02  # of error, below which a network counts as stable

Found = TypeVar("Found")


class Distances(NamedTuple):
    """How far two networks are apart (`between`), how far each is from where both started (Euclidean norms over all trainable
    weights), and the `angle` between the ways that they took from there, in degrees (None: one took none)."""

    between: float
    first: float
    second: float
    angle: float | None


def shares(points: int = POINTS) -> list[float]:
    """Evenly spaced shares of the second network, from 0 to 1."""
    return np.linspace(0, 1, points).tolist()


def along(one: State, other: State, evaluate: Callable[[State], Found], points: int = POINTS) -> list[Found]:
    """What `evaluate` finds at each of the `points` of the line from `one` to `other`, both as they are evaluated."""
    first, last = one.evaluated, other.evaluated
    return [evaluate(between(first, last, share)) for share in shares(points)]


def between(one: State, other: State, share: float) -> State:
    """The network (1 - `share`) x `one` + `share` x `other`, weights and statistics, without optimizer state. The ends are
    exact, and so is all of the line between two equal networks."""

    def mixed(first: Arrays, last: Arrays) -> Arrays:
        found = {}
        for path, array in first.items():
            way = last[path] - array.astype(np.float64)
            exact = array + share * way if share < 0.5 else last[path] - (1 - share) * way
            found[path] = exact.astype(array.dtype)
        return found

    return State(one.step, mixed(one.weights, other.weights), mixed(one.statistics, other.statistics), {})


def instability(errors: Sequence[float]) -> float:
    """How far the highest of the `errors` along a line is above the mean of those of its ends."""
    return max(errors) - (errors[0] + errors[-1]) / 2


def distances(start: State, one: State, other: State) -> Distances:
    """Those of two networks that both started at `start`."""

    def way(first: State, last: State) -> np.ndarray:
        ways = [last.weights[path] - array.astype(np.float64) for path, array in first.weights.items()]
        return np.concatenate([one.ravel() for one in ways])

    first, second = way(start, one.evaluated), way(start, other.evaluated)
    lengths = float(np.linalg.norm(first)), float(np.linalg.norm(second))
    cosine = float(first @ second) / math.prod(lengths) if all(lengths) else None
    angle = None if cosine is None else math.degrees(math.acos(max(-1.0, min(1.0, cosine))))
    return Distances(float(np.linalg.norm(first - second)), *lengths, angle)
