"""Verdicts by statistics, not by eye: does a ticket match the dense network?"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

Verdict = Literal["matching", "not matching", "undecided"]
LEAST_REPLICATES = 3


def bounds(differences: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """One-sided lower and upper Student t bounds of the mean of `differences`; infinite under two of them."""
    from scipy.special import stdtrit

    if len(differences) < 2:
        return -math.inf, math.inf
    mean, spread = float(np.mean(differences)), float(np.std(differences, ddof=1))
    margin = float(stdtrit(len(differences) - 1, confidence)) * spread / math.sqrt(len(differences))
    return mean - margin, mean + margin


def judge(differences: Sequence[float], delta: float) -> Verdict:
    """The verdict on `differences` (ticket - dense in accuracy, one a replicate).

    Matching when the one-sided 95 % lower bound of the mean is above -`delta`, not matching when the upper bound is below
    it; undecided otherwise, and under three replicates.
    """
    if len(differences) < LEAST_REPLICATES:
        return "undecided"
    low, high = bounds(differences)
    if low > -delta:
        return "matching"
    return "not matching" if high < -delta else "undecided"
