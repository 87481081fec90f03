"""The state of a network: its arrays by the path of their variable, as Keras names it."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

Arrays = dict[str, np.ndarray]


def is_float(array: np.ndarray) -> bool:
    """Whether it is of one of Keras's float types, of which NumPy itself has no bfloat16 and no float8."""
    return array.dtype.name.startswith(("float", "bfloat"))


def widened(array: np.ndarray) -> np.ndarray:
    """An array that NumPy and HDF5 know: bfloat16 and float8 as float32, which has all of their values."""
    return array.astype(np.float32) if is_float(array) and array.dtype not in (np.float16, np.float32, np.float64) else array


@dataclasses.dataclass
class State:
    """A network at one step of its training, with all that is needed to continue from there. `weights` are the trainable
    variables, `statistics` the others (BatchNorm's moving mean and variance), both keyed by Keras variable path; `optimizer` is
    what the optimizer keeps, its own step count included, keyed likewise."""

    step: int
    weights: Arrays
    statistics: Arrays
    optimizer: Arrays

    def arrays(self) -> Iterator[np.ndarray]:
        """All that it holds."""
        for group in (self.weights, self.statistics, self.optimizer):
            yield from group.values()

    @property
    def evaluated(self) -> "State":
        """The state with the running averages of weights and statistics in their place, where the optimizer keeps any."""

        def averaged(arrays: Arrays) -> Arrays:
            return {path: self.optimizer.get(f"ema/{path}", array) for path, array in arrays.items()}

        return dataclasses.replace(self, weights=averaged(self.weights), statistics=averaged(self.statistics))


def mean(states: Sequence[State]) -> State:
    """The mean of networks, as each is evaluated, without optimizer state."""

    def means(groups: Sequence[Arrays]) -> Arrays:
        return {
            path: np.mean([group[path] for group in groups], axis=0, dtype=np.float64).astype(array.dtype)
            for path, array in groups[0].items()
        }

    found = [state.evaluated for state in states]
    weights, statistics = ([getattr(state, group) for state in found] for group in ("weights", "statistics"))
    return State(states[0].step, means(weights), means(statistics), {})
