"""The state of a network: its arrays by the path of their variable, as Keras names it."""

import dataclasses
from collections.abc import Iterator

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass
class State:
    """A network at one step of its training, with all that is needed to continue from there.

    `weights` are the trainable variables, `statistics` the others (BatchNorm's moving mean and variance), both keyed by
    Keras variable path; `optimizer` is what the optimizer keeps, its own step count included, keyed likewise.
    """

    step: int
    weights: Arrays
    statistics: Arrays
    optimizer: Arrays

    def arrays(self) -> Iterator[np.ndarray]:
        """All that it holds."""
        for group in (self.weights, self.statistics, self.optimizer):
            yield from group.values()
