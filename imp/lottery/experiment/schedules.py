"""Learning rate as a pure function of the global step, computed on the host in float64."""

from collections.abc import Callable

import numpy as np

from lottery.experiment.grids import parse_point, parse_points
from lottery.experiment.recipe import Train

Rates = Callable[[int, int], np.ndarray]  # the learning rates of so many steps from one on


def constant(rate: float) -> Rates:
    """`rate` at every step."""
    return lambda first, count: np.full(count, rate, np.float32)


def rates(train: Train, steps_per_epoch: int, first: int, count: int, length: float = 1.0) -> np.ndarray:
    """Learning rates (float32, [count]) of steps `first` .. `first + count - 1` of the schedule: linear warm-up from 0, then
    constant, linear to 0, cosine to 0 (Loshchilov & Hutter 2017, without restarts) or times `gamma` at each milestone. A ticket
    rewound to step k takes up the schedule at step k; a training that is `length` times as long has it stretched."""
    total = train.steps or train.epochs * steps_per_epoch
    warmup = parse_point(train.warmup).step(steps_per_epoch)
    steps = np.arange(first, first + count, dtype=np.float64) / length
    left = 1 - np.clip((steps - warmup) / max(total - warmup, 1), 0, 1)
    if train.schedule == "cosine":
        factor = 0.5 * (1 - np.cos(np.pi * left))
    elif train.schedule == "linear":
        factor = left
    elif train.schedule == "step":
        milestones = [point.step(steps_per_epoch) for point in parse_points(train.milestones)]
        factor = train.gamma ** np.sum([steps >= milestone for milestone in milestones], axis=0)
    else:
        factor = np.ones_like(steps)
    if warmup:
        factor = np.where(steps < warmup, (steps + 1) / warmup, factor)
    return (train.learning_rate * factor).astype(np.float32)
