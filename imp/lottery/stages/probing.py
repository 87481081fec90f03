"""What criteria may ask: derivatives of a run's network on training examples. TensorFlow starts when the first one asks."""

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from data_prep import records
from lottery.base.errors import InputError
from lottery.engine.start import start_tensorflow
from lottery.experiment import seeds
from lottery.experiment.family import Family
from lottery.pruning import masks
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State
from lottery.rundir.run import Run

if TYPE_CHECKING:
    from lottery.engine.derivatives import Derivatives


@dataclasses.dataclass
class Probes:
    """The networks of a run, compiled once for all its masks. A process that trains has set TensorFlow up for `cores`."""

    run: Run
    cores: int | None = None

    @cached_property
    def derivatives(self) -> "Derivatives":
        self.run.manifest()  # without which there is nothing to start for
        start_tensorflow()
        from lottery.engine import assembly

        return assembly.make_derivatives(self.run, self.cores)

    def of(self, replicate: int, family: Family) -> "Sample":
        return Sample(self, replicate, family)


@dataclasses.dataclass
class Sample:
    """The training examples on which a family scores the networks of a replicate."""

    probes: Probes
    replicate: int
    family: Family

    @cached_property
    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        """Examples and labels, in random order, drawn without replacement. Raises InputError where there are too few."""
        run = self.probes.run
        manifest, (count, each) = run.manifest(), self.family.scored_on
        rng = np.random.default_rng([self.seed("images"), self.family.scored_seed])
        blocks = records.blocks(run.records(), manifest, "train")
        total = manifest.count("train")
        pools = [np.arange(total)]
        if each and not manifest.classes:
            raise InputError(f"scored_on = {self.family.scored_on}, but examples have no classes: write a number, such as 100")
        if each:
            labels = records.read_labels(blocks)
            pools = [np.flatnonzero(labels == label) for label in range(len(manifest.classes))]
        if (fewest := min(map(len, pools))) < count:
            of = f"a class has only {fewest}" if each else f"there are only {fewest}"
            raise InputError(f"scored_on = {self.family.scored_on}, but {of} training examples: lower it")
        drawn = [rng.choice(pool, count, replace=False) for pool in pools]
        return records.read_examples(blocks, manifest.shape, rng.permutation(np.concatenate(drawn)))

    def seed(self, purpose: str) -> int:
        return seeds.derive(self.probes.run.recipe.seed, self.replicate, f"criterion {purpose}")

    def at(self, state: State, mask: Bits) -> "NetworkProbe":
        """What can be asked about the network `state` under `mask`."""
        return NetworkProbe(self, state, mask, self.seed("scores"))


@dataclasses.dataclass
class NetworkProbe:
    """A network under a mask; see `criteria.Probe`."""

    sample: Sample
    state: State
    mask: Bits
    seed: int

    @cached_property
    def pruned(self) -> State:
        """The network with zeros where the mask prunes."""
        return dataclasses.replace(self.state, weights=masks.apply(self.mask, self.state.weights))

    def gradients(self, temperature: float = 1.0) -> Arrays:
        examples, labels = self.sample.examples
        return self.sample.probes.derivatives.gradients(self.pruned, examples, labels, temperature, self._by_batch)

    def hessian_product(self, vector: Arrays, temperature: float = 1.0) -> Arrays:
        examples, labels = self.sample.examples
        derivatives = self.sample.probes.derivatives
        return derivatives.gradients(self.pruned, examples, labels, temperature, self._by_batch, vector)

    def flow(self) -> Arrays:
        return self.sample.probes.derivatives.flow(self.state, self.mask)

    @property
    def _by_batch(self) -> bool:
        return self.sample.family.scored_norm == "batch"
