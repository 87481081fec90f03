"""Masks that change while a network trains: when, and by how much. Pure NumPy; nothing here changes its inputs.

- `gmp`: gradual magnitude pruning (Zhu & Gupta 2017, "To prune, or not to prune", arXiv 1710.01878, section 3). It starts
  dense, and more and more of the smallest weights go. A pruned weight's value is put aside: it returns if others fall below.
- `rigl`: RigL (Evci et al. 2020, "Rigging the Lottery", arXiv 1911.11134, algorithm 1). In each layer some of the smallest
  weights are dropped, and as many of those with the largest gradient are grown.
- `set`: SET (Mocanu et al. 2018, "Scalable training of artificial neural networks with adaptive sparse connectivity", arXiv
  1707.04780): the same, but what is grown is chosen at random.
"""

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

import numpy as np

from lottery.pruning import masks
from lottery.pruning.costs import STEP
from lottery.pruning.criteria import Criterion, given, inverted, magnitude
from lottery.pruning.cut import Method, cut
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, State
from lottery.pruning.units import SINGLE, Units, pooled_by

Updates = Literal["none", "gmp", "rigl", "set"]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The mask changes by `method` every `every` steps: in GMP after step `begin` and up to `until`, in RigL and SET before
    `until`. `drop_fraction` is the share of a layer's kept units that RigL and SET replace at first."""

    method: Updates
    every: int
    begin: int
    until: int
    drop_fraction: float

    def steps(self, first: int = 0) -> range:
        """The steps before which the mask changes, of a training that starts at step `first`."""
        begin, end = (self.begin, self.until + 1) if self.method == "gmp" else (0, self.until)
        passed = max(0, (first - begin) // self.every)
        return range(begin + (passed + 1) * self.every, end, self.every)

    def pruned(self, step: int, finally_: int) -> int:
        """How many weights GMP has pruned after `step`, of so many in the end: Zhu & Gupta 2017, equation 1, rounded down."""
        progress = Fraction(step - self.begin, self.steps()[-1] - self.begin)
        return math.floor(finally_ * (1 - (1 - progress) ** 3))

    def replaced(self, step: int, kept: int) -> int:
        """How many of a layer's `kept` units RigL and SET replace at `step`: the cosine of Evci et al. 2020, section 3."""
        return math.floor(self.drop_fraction / 2 * (1 + math.cos(math.pi * step / self.until)) * kept)


def mean_share(method: Updates, share: float, begin: float, until: float, every: int) -> float:
    """The MACs of a training's mean step, as a share of a dense one's, where the last mask leaves `share` of the dense
    network's. It changes from the share `begin` of the training to the share `until`, in steps of `every`: GMP prunes along its
    cubic, and a look of RigL takes the gradient of all weights (Evci et al. 2020, appendix H)."""
    if method == "gmp":
        return 1 - (1 - share) * (1 - (until + 3 * begin) / 4)
    looks = until / every if method == "rigl" else 0.0
    return share + looks * (1 - share) / STEP


def gradual(method: Method, schedule: Schedule, step: int, finally_: int) -> tuple[Method, int]:
    """By which method GMP prunes at `step`, and how many weights, of so many in the end. Layers whose densities `method` fixes
    come as far on their way to these."""
    pruned = schedule.pruned(step, finally_)
    done = Fraction(pruned, max(finally_, 1))
    fixed = [(pattern, 1 - done * (1 - share)) for pattern, share in method.fixed]
    return dataclasses.replace(method, fixed=fixed), pruned


def replaced(
    weights: Arrays,
    kept: Bits,
    scores: Arrays,
    counts: Mapping[str, int],
    units: Units = SINGLE,
    within: Bits | None = None,
    by_chance: bool = False,
) -> Bits:
    """The mask after the smallest of the `kept` units of each layer are dropped, as many as `counts` says, and as many of the
    highest `scores` among all that are then not kept are grown, if they are `within` a mask (None: all are); a unit may be
    dropped and grown again. Equal ones go by position, the first first. With `by_chance` the `scores` are uniform random
    numbers below 1, and large units grow as often as small ones."""
    grown = pooled_by("wrapped", units) if by_chance else units
    within = within or masks.whole(kept)

    def without(criterion: Criterion, among: Bits, units: Units) -> Bits:
        """`among` less those of each layer that score lowest."""
        left = units.total(among)
        keep = [((path,), int(np.count_nonzero(left[path])) - counts[path]) for path in among]
        return cut(Method(criterion, units=units), State(0, weights, {}, {}), among, keep).mask

    free = {path: within[path] & ~bits for path, bits in without(magnitude, kept, units).items()}
    return {path: within[path] & ~bits for path, bits in without(inverted(given(scores)), free, grown).items()}
