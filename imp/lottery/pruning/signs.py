"""Which signs two networks share (Zhou et al. 2019, arXiv 1905.01067; Gadhikar & Burkholz 2024, arXiv 2402.19262). Pure
NumPy."""

import numpy as np

from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays


def flipped(first: Arrays, second: Arrays, mask: Bits) -> float | None:
    """The share (0 .. 1) of the weights that `mask` keeps whose sign differs in two networks. Weights that are 0 in one of them
    are left out; None where none are left."""
    differing = counted = 0
    for path, kept in mask.items():
        product = np.sign(first[path][kept]) * np.sign(second[path][kept])
        differing += int(np.count_nonzero(product < 0))
        counted += int(np.count_nonzero(product))
    return differing / counted if counted else None
