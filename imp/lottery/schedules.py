"""Learning rate as a pure function of the global step, computed on the host in float64."""

import math
from fractions import Fraction

import numpy as np

from lottery.grids import parse_point
from lottery.recipe import Train


def rates(train: Train, steps_per_epoch: int, first: int, count: int) -> np.ndarray:
    """Learning rates (float32, [count]) of steps `first` .. `first + count - 1` of the whole schedule.

    Linear warm-up from 0, then constant, cosine to 0 (Loshchilov & Hutter 2017, without restarts) or multiplied by
    `gamma` at each milestone. A ticket rewound to step k takes up the schedule at step k.
    """
    total = train.epochs * steps_per_epoch
    warmup = parse_point(train.warmup).step(steps_per_epoch)
    steps = np.arange(first, first + count, dtype=np.float64)
    if train.schedule == "cosine":
        progress = (steps - warmup) / max(total - warmup, 1)
        factor = 0.5 * (1 + np.cos(np.pi * np.clip(progress, 0, 1)))
    elif train.schedule == "step":
        passed = np.sum([steps >= math.ceil(Fraction(str(milestone)) * total) for milestone in train.milestones], axis=0)
        factor = train.gamma ** (passed * np.ones_like(steps))
    else:
        factor = np.ones_like(steps)
    if warmup:
        factor = np.where(steps < warmup, (steps + 1) / warmup, factor)
    return (train.learning_rate * factor).astype(np.float32)
