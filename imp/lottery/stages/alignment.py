"""Aligning the dense networks of two replicates by what their units answer to training examples."""

import functools
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lottery.engine.start import start_tensorflow
from lottery.pruning.alignment import Alignment, Matching
from lottery.pruning.state import State
from lottery.rundir import store
from lottery.rundir.lineage import Lineage
from lottery.rundir.run import Run

if TYPE_CHECKING:
    from lottery.engine.activations import Activations


class Alignments:
    """How the dense networks of a run, at the end of their training, are aligned: each pair once. A process that trains has set
    TensorFlow up for `cores`."""

    def __init__(self, run: Run, cores: int | None = None):
        self.run, self.cores = run, cores
        self.of = functools.cache(self._of)

    def end(self, replicate: int) -> Path:
        """The file of the dense network of a replicate at its end."""
        return self.run.replicate(replicate).snapshot(self.run.plan().total_steps)

    def _of(self, replicate: int, other: int) -> Alignment:
        """Which units of replicate `other` do what those of `replicate` do. Raises InputError where a dense network or the
        examples are missing, or it is not known how the network is connected."""
        states = [self._state(number) for number in (replicate, other)]
        read = self._activations
        matching = Matching(read.channels, read.axes)
        for one, two in read.of(*states):
            matching.add(one, two)
        return matching.alignment()

    def _state(self, number: int) -> State:
        replicate, path = self.run.replicate(number), self.end(number)
        Lineage(replicate).check(path)
        with store.promised_by(replicate.dense.result):
            return store.load_state(path, optimizer=False)

    @cached_property
    def _activations(self) -> "Activations":
        self.run.manifest()  # without which there is nothing to start for
        start_tensorflow()
        from lottery.engine import assembly

        return assembly.make_activations(self.run, self.cores)
