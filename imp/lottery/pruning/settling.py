"""When the mask of a training is settled: how far masks are apart that are cut at successive points of it (You et al. 2020,
"Drawing Early-Bird Tickets", arXiv 1909.11957, section 3). Pure NumPy."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lottery.pruning.overlap import Packed, overlaps

LIMIT = 0.1  # of You et al. 2020


class Distance(NamedTuple):
    """How far two masks are apart, as shares (0 .. 1).

    - `hamming`: the bits that differ, of all (the normalised Hamming distance). You et al. have a bit for each channel, cut by
      its scale of BatchNorm; here each prunable weight is a bit. Of sparse masks it is small, whatever they keep: by chance
      it is 2 d (1 - d) at density d.
    - `replaced`: the bits that differ, of twice the weights that are kept, or that are pruned where these are fewer. So of
      sparse masks of one density it is the share of the kept weights that the other mask has not. At 50 % it is the same
      number as `hamming`; by chance it is the larger of d and 1 - d.

    By chance: what two random masks would come to that keep as many weights of each layer.
    """

    hamming: float
    hamming_by_chance: float
    replaced: float
    replaced_by_chance: float


def distance(first: Mapping[str, Packed], second: Mapping[str, Packed]) -> Distance:
    """How far two masks are apart. Raises InputError where they are not of the same variables."""
    counts = overlaps(first, second)[""]
    size, kept = counts["size"] or 0, (counts["kept_first"] or 0) + (counts["kept_second"] or 0)
    expected = (counts["overlap_by_chance"] or 0) * min(counts["kept_first"] or 0, counts["kept_second"] or 0)
    differing, by_chance = kept - 2 * (counts["shared"] or 0), kept - 2 * expected
    fewer = max(min(kept, 2 * size - kept), 1)
    return Distance(differing / size, by_chance / size, differing / fewer, by_chance / fewer)


def settled(distances: Sequence[float]) -> int:
    """The place of the first of n + 1 masks from which on each of the n `distances` to the next is under `LIMIT`: at the latest
    the last, which no other follows."""
    return max((place for place, apart in enumerate(distances, 1) if not apart < LIMIT), default=0)
