"""The network that a recipe names, before anything is trained: its variables, which of them are prunable, and its MACs."""

import dataclasses
import fnmatch
import math
from typing import TYPE_CHECKING

from lottery.engine.start import start_tensorflow
from lottery.pruning import masks
from lottery.rundir.run import Run
from lottery.stages.prepare import expected

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable of a network. `macs`: its multiply-accumulates for one example; 0 of what is added, None where that is not
    known. `excluded`: the pattern of `pruning.exclude` without which it would be prunable, if there is one."""

    path: str
    shape: tuple[int, ...]
    macs: int | None
    prunable: bool
    excluded: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def build(run: Run) -> "keras.Model":
    """The network of a run's recipe, for its records, which need not be prepared."""
    start_tensorflow()
    from lottery.engine import models
    from lottery.engine.tasks import choice

    return models.build(run.recipe.model, choice.make(run.recipe, expected(run)).signature)


def variables(run: Run) -> list[Variable]:
    """Those of the network of a run's recipe, layer by layer."""
    network, pruning = build(run), run.recipe.pruning
    from lottery.networks.topology import topology

    graph = topology(network)
    trained = {variable.path for variable in network.trainable_variables}

    def described(path: str, shape: tuple[int, ...]) -> Variable:
        is_candidate = path in trained or pruning.scope == "all"
        in_scope = is_candidate and masks.in_scope(path, shape, pruning.scope, include=pruning.include)
        patterns = [pattern for pattern in pruning.exclude if in_scope and fnmatch.fnmatchcase(path, pattern)]
        used = graph.positions.get(path, None if path in graph.kernels else 0) if graph else None
        macs = None if used is None else used * math.prod(shape)
        return Variable(path, shape, macs, in_scope and not patterns, patterns[0] if patterns else "")

    return [described(variable.path, tuple(variable.shape)) for variable in network.variables]
