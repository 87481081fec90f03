"""Learning rate as a pure function of the global step, computed on the host in float64."""

from collections.abc import Callable

import numpy as np

from lottery.experiment.recipe import Train
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays

WARMUP = 0.1  # the share of a linear retraining in which the learning rate grows from 0, as in the code of Zimmer et al. 2023

Rates = Callable[[int, int], np.ndarray]  # the learning rates of so many steps from one on


def constant(rate: float) -> Rates:
    """`rate` at every step."""
    return lambda first, count: np.full(count, rate, np.float32)


def linear(peak: float, steps: int) -> Rates:
    """A retraining of so many steps (Zimmer et al. 2023, "How I Learned to Stop Worrying and Love Retraining", arXiv
    2111.00843, section 2.2, LLR): after a warm-up the rate falls from `peak` to 0 in a straight line."""
    grown = int(WARMUP * steps)

    def rate(first: int, count: int) -> np.ndarray:
        step = np.arange(first, first + count, dtype=np.float64)
        factor = np.where(step < grown, (step + 1) / max(grown, 1), 1 - (step - grown) / max(steps - grown, 1))
        return (peak * factor).astype(np.float32)

    return rate


def discount(weights: Arrays, mask: Bits, length: float) -> float:
    """The part of the dense training's learning rate that a retraining of `length` dense trainings begins with (ALLR, same
    section): the norm of what `mask` prunes of `weights` over that of all, over the root of the share of the weights left so
    far (not 0) that go; `length` where that is more, and 1 at most."""
    whole = np.concatenate([weights[path].reshape(-1) for path in mask] or [np.empty(0)]).astype(np.float64)
    pruned = np.concatenate([weights[path][~kept] for path, kept in mask.items()] or [np.empty(0)]).astype(np.float64)
    left, gone = np.count_nonzero(whole), np.count_nonzero(pruned)
    lost = np.linalg.norm(pruned) / np.linalg.norm(whole) / (gone / left) ** 0.5 if gone else 0.0
    return min(1.0, max(float(lost), length))


def rates(train: Train, steps_per_epoch: int, first: int, count: int, length: float = 1.0) -> np.ndarray:
    """Learning rates (float32, [count]) of steps `first` .. `first + count - 1` of the schedule: linear warm-up from 0, then
    constant, linear to 0, cosine to 0 (Loshchilov & Hutter 2017, without restarts) or times `gamma` at each milestone. A ticket
    rewound to step k takes up the schedule at step k; a training that is `length` times as long has it stretched."""
    total = train.steps or train.epochs * steps_per_epoch
    warmup = train.warmup.step(steps_per_epoch)
    steps = np.arange(first, first + count, dtype=np.float64) / length
    left = 1 - np.clip((steps - warmup) / max(total - warmup, 1), 0, 1)
    if train.schedule == "cosine":
        factor = 0.5 * (1 - np.cos(np.pi * left))
    elif train.schedule == "linear":
        factor = left
    elif train.schedule == "step":
        milestones = [point.step(steps_per_epoch) for point in train.milestones]
        factor = train.gamma ** np.sum([steps >= milestone for milestone in milestones], axis=0)
    else:
        factor = np.ones_like(steps)
    if warmup:
        factor = np.where(steps < warmup, np.minimum((steps + 1 / length) / warmup, 1), factor)
    return (train.learning_rate * factor).astype(np.float32)
