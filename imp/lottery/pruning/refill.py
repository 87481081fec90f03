"""Refilled tickets: a mask of single weights turned into one of whole channels that keeps as many. Pure NumPy. Chen et al.
2022, "Coarsening the Granularity: Towards Structurally Sparse Lottery Tickets" (arXiv 2202.04736), refill the filters of each
layer by itself. Here a channel is all that goes together."""

from bisect import bisect_right

import numpy as np

from lottery.base.errors import InputError
from lottery.pruning import masks
from lottery.pruning.masks import Bits
from lottery.pruning.state import Arrays, widened
from lottery.pruning.units import WholeChannels


def refill(ticket: Bits, weights: Arrays, units: WholeChannels) -> Bits:
    """The mask of whole channels that keeps no more prunable weights than `ticket`, and hardly fewer. Of each layer those
    channels stay of which the `ticket` keeps the most `weights`, by their L1 norm. Layers keep channels in proportion to the
    share of their weights that it keeps, and one at least. Raises InputError where that is more."""
    ticket = units.ranked(ticket)
    whole = masks.whole({path: weights[path] for path in sorted(units.covered(ticket)) if path in weights})
    norms = units.total({path: np.abs(widened(weights[path])) * kept for path, kept in ticket.items()})
    kept, sizes = units.total(ticket), units.total({path: whole[path] for path in ticket})
    turns = [_turns(norm, kept[path].sum() / sizes[path].sum()) for path, norm in norms.items()]
    order = np.argsort(np.concatenate(turns), kind="stable")

    def of_channels(count: int) -> Bits:
        stay = np.isin(np.arange(order.size), order[:count])
        parts = np.split(stay, np.cumsum([turn.size for turn in turns])[:-1])
        return units.spread(dict(zip(norms, parts, strict=True)), whole)

    most = _count(ticket)
    fitting = bisect_right(range(order.size + 1), most, key=lambda count: _count(units.ranked(of_channels(count)))) - 1
    if fitting < len(norms):
        raise InputError(f"control refill: one channel a layer, and what stays, has more than the ticket's {most:,} weights")
    return of_channels(fitting)


def _turns(norms: np.ndarray, share: float) -> np.ndarray:
    """When each channel of a layer stays: the largest first and at once, the others at a pace in proportion to `share`."""
    ranks = np.empty(norms.size)
    ranks[np.argsort(-norms, kind="stable")] = np.arange(norms.size)
    return ranks / (norms.size * max(share, np.finfo(float).tiny))


def _count(mask: Bits) -> int:
    return sum(int(np.count_nonzero(bits)) for bits in mask.values())
