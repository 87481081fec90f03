"""Changing the mask of a network in training, between two calls of the compiled step: exact selections, made on the host."""

import dataclasses
from collections.abc import Callable

import numpy as np

from lottery.engine.checkpoints import NOTHING
from lottery.engine.loop import Trainer
from lottery.pruning import masks
from lottery.pruning.allocation import Shapes
from lottery.pruning.costs import STEP
from lottery.pruning.cut import Cutter, Method
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State
from lottery.pruning.units import SINGLE
from lottery.pruning.updates import Schedule, gradual, replaced

OVERFLOWS = 2  # the column of a step's figures that says so


@dataclasses.dataclass
class MaskUpdates:
    """The changes that `schedule` asks for in a training that starts at step `first`. GMP prunes `pruned` weights in the end by
    `method`, of a network of such `kernels` (None: unknown); `seed` is SET's; `macs` counts what a mask leaves to compute for
    one example (None: unknown). `aside` has GMP's pruned values (path -> array, zero where a weight is kept), and `spent` the
    MACs of the steps up to step `counted`, for one example in each."""

    schedule: Schedule
    first: int
    pruned: int
    method: Method
    seed: int
    macs: Callable[[Bits], int | None]
    kernels: Shapes | None = None
    aside: Arrays = dataclasses.field(default_factory=dict)
    spent: int = 0

    def __post_init__(self) -> None:
        self.counted = self.first

    @property
    def steps(self) -> range:
        return self.schedule.steps(self.first)

    @property
    def held_from(self) -> int:
        """The step after which the mask keeps as much as in the end: that of GMP's last change; RigL and SET keep it always."""
        return self.steps[-1] if self.schedule.method == "gmp" else self.first

    def saved(self, mask: Bits) -> Arrays:
        """What `resume` needs to go on under `mask`."""
        groups = {"mask": mask, "aside": self.aside}
        arrays = {f"{group}/{path}": array for group, arrays in groups.items() for path, array in arrays.items()}
        return arrays | {"counts": np.array([self.counted, self.spent])}

    def resume(self, saved: Arrays) -> Bits:
        """Go on from what was `saved`, and return the mask there."""
        self.counted, self.spent = map(int, saved["counts"])
        self.aside = {name.removeprefix("aside/"): array for name, array in saved.items() if name.startswith("aside/")}
        return {name.removeprefix("mask/"): array for name, array in saved.items() if name.startswith("mask/")}

    def trained_macs(self, mask: Bits, step: int) -> int | None:
        """The MACs of the training up to `step`, for one example in each; `mask` is that of the steps since the last change."""
        return None if (each := self.macs(mask)) is None else self.spent + STEP * each * (step - self.counted)

    def change(self, trainer: Trainer, step: int, order_seed: int) -> np.ndarray:
        """Change the mask before step `step`. Returns the figures of the steps that this took (float64, [0 or 1, 3]): RigL
        looks at the gradients of one step in place of taking it, and leaves the mask if one is not finite. Raises Diverged."""
        mask = trainer.mask()
        self.spent, self.counted = self.trained_macs(mask, step) or 0, step
        match self.schedule.method:
            case "gmp":
                self._prune(trainer, step)
            case "set":
                rng = np.random.default_rng([self.seed, step])
                self._replace(trainer, step, mask, {path: rng.random(kept.shape) for path, kept in sorted(mask.items())})
            case "rigl":
                figures, gradients = trainer.dense_gradients(step, order_seed)
                self.spent, self.counted = self.spent + self._looked(mask), step + 1
                if all(np.isfinite(gradients[path]).all() for path in mask):
                    self._replace(trainer, step, mask, {path: np.abs(gradients[path]) for path in mask})
                else:
                    figures[:, OVERFLOWS] = 1
                return figures
        return NOTHING

    def _looked(self, mask: Bits) -> int:
        """The MACs of a step in which RigL looks: forward and back through the kept weights, and the gradient of all."""
        return (STEP - 1) * (self.macs(mask) or 0) + (self.macs(masks.whole(mask)) or 0)

    def _prune(self, trainer: Trainer, step: int) -> None:
        weights = {path: array + self.aside.get(path, 0) for path, array in trainer.prunable().items()}
        mask = self.gradual_mask(weights, step)
        self.aside = masks.apply({path: ~kept for path, kept in mask.items()}, weights)
        trainer.change_mask(mask, weights)

    def check(self, weights: Arrays) -> None:
        """Raises InputError where GMP cannot keep as many of `weights` as it will have to."""
        if self.method.units != SINGLE:
            self.gradual_mask(weights, self.schedule.steps()[-1])
            return
        sizes, shapes = ({path: getattr(array, name) for path, array in weights.items()} for name in ("size", "shape"))
        for step in reversed(self.steps):
            method, pruned = gradual(self.method, self.schedule, step, self.pruned)
            method.divide(sizes, sum(sizes.values()) - pruned, shapes, self.kernels)

    def gradual_mask(self, weights: Arrays, step: int) -> Bits:
        """The mask by which GMP prunes `weights` at `step`. Raises InputError where the allocation cannot keep as many."""
        method, pruned = gradual(self.method, self.schedule, step, self.pruned)
        everything = masks.whole(weights)
        cutter = Cutter(method, State(step, weights, {}, {}), everything, kernels=self.kernels)
        return cutter.leaving(method.prunable(everything) - pruned).mask

    def _replace(self, trainer: Trainer, step: int, mask: Bits, scores: Arrays) -> None:
        weights = trainer.prunable()
        units = self.method.units
        counts = {path: self.schedule.replaced(step, int(np.count_nonzero(kept))) for path, kept in units.total(mask).items()}
        trainer.change_mask(replaced(weights, mask, scores, counts, units, by_chance=self.schedule.method == "set"), weights)
