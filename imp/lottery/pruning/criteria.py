"""Criteria: how much each weight matters. A criterion is one function, and those with the lowest scores are pruned.

A criterion takes the network to be scored (`State`), the mask of what is left of it (path -> bool, all prunable variables) and
a function that gives gradients on training images, or None where it asks for none. It returns a score for each weight of the
mask (path -> float array of the variable's shape, finite); scores of pruned weights are not looked at. A new one is a function
here and an entry in `CRITERIA`, or a user's own, which a recipe names as `package.module:function`.
"""

from collections.abc import Callable

import numpy as np

from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State

Gradients = Callable[[], Arrays]
Criterion = Callable[[State, Bits, Gradients | None], Arrays]


def magnitude(state: State, mask: Bits, gradients: Gradients | None = None) -> Arrays:
    """|w|, as in Han et al. 2015 ("Learning both Weights and Connections for Efficient Neural Networks", section 3.1)."""
    variables = state.weights | state.statistics
    return {path: np.abs(variables[path]) for path in mask}


CRITERIA: dict[str, Criterion] = {criterion.__name__: criterion for criterion in (magnitude,)}
