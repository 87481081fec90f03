"""Verdicts by statistics, not by eye: does a ticket match the dense network, and how often is that verdict right?

`docs/verdicts.md` has the figures. Samples are arrays [..., replicates]: of one ticket, or of many at once.
"""

import functools
import itertools
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEAST_REPLICATES = 3
CONFIDENCE = 0.95
ERROR = 0.05  # that is accepted, of a ticket delta worse called matching
POWER = 0.8
VERDICTS = ("matching", "not matching")
UNDECIDED, WORSE = OPEN = ("undecided", "worse here")  # what other seeds would give is not known
ALIKE = 1e-9  # differences this near to each other are the same but for rounding
MOST_REPLICATES = 1_000_000  # that are worth naming
VALUES = 5_000_000  # that a simulation draws at most
CERTAIN = 100.0  # standard errors between a ticket and the limit, at which a verdict cannot fail any more


def deviation(differences: ArrayLike) -> NDArray[np.float64]:
    """The standard deviation over replicates; NaN where `differences` have no spread to judge by: under two of them, or where
    all are the same."""
    samples = np.asarray(differences, float)
    if samples.shape[-1] < 2:
        return np.full(samples.shape[:-1], math.nan)
    return np.where(np.ptp(samples, -1) > ALIKE, np.std(samples, -1, ddof=1), math.nan)


def bounds(differences: ArrayLike, confidence: float = CONFIDENCE) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One-sided lower and upper Student t bounds of the mean of `differences`; infinite where they have no `deviation`."""
    from scipy.special import stdtrit

    samples = np.asarray(differences, float)
    count = max(samples.shape[-1], 1)
    margin = np.nan_to_num(stdtrit(count - 1, confidence) * deviation(samples) / math.sqrt(count), nan=math.inf)
    mean = samples.sum(-1) / count
    return mean - margin, mean + margin


def judged(differences: ArrayLike, delta: float, confidence: float = CONFIDENCE) -> NDArray[np.str_]:
    """The verdict on each sample of `differences` (ticket - dense in the deciding metric, one a replicate).

    Matching when the one-sided lower bound of the mean (95 %) is above -`delta`, not matching when the upper bound is below
    it; undecided otherwise, under three replicates, and where all differences are the same.
    """
    return decided(*bounds(differences, confidence), np.shape(differences)[-1], delta)


def decided(low: ArrayLike, high: ArrayLike, replicates: int, delta: float) -> NDArray[np.str_]:
    """The verdict by these bounds of a difference that so many replicates have found."""
    enough = replicates >= LEAST_REPLICATES
    return np.select([enough & (np.asarray(low) > -delta), enough & (np.asarray(high) < -delta)], VERDICTS, UNDECIDED)


def worse_here(differences: NDArray[np.int8], delta: float, confidence: float = CONFIDENCE) -> bool:
    """Whether each ticket is worse than the dense network of its replicate on these images, whatever other seeds would give: by
    McNemar's exact test (1947, doi 10.1007/BF02295996) of `differences` of single images, as `bounds_over_images` takes them,
    and by more than `delta`."""
    from scipy.special import bdtr

    won, lost = (differences > 0).sum(1), (differences < 0).sum(1)
    worse = (bdtr(won, won + lost, 0.5) < 1 - confidence) & (lost - won > delta * differences.shape[1])
    return bool(worse.all())


def bounds_over_images(differences: NDArray[np.int8], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """One-sided bounds of the mean difference over other seeds and other images, where `bounds` is over other seeds alone.
    `differences` are of single images ([replicates, images]: 1 where only the ticket is right, -1 where only the dense network
    is). Infinite as those of `bounds`.

    Seeds and images are crossed random effects, as readers and cases are in studies of diagnoses: the variance of the mean is
    that over seeds and what images add to it, with Hillis's degrees of freedom (2007, doi 10.1002/sim.2532). The bounds are
    never nearer to the mean than those over seeds alone, nor than those over images alone.
    """
    from scipy.special import stdtrit

    replicates, images = differences.shape
    mean = float(differences.mean())
    by_seed, by_image = differences.mean(1), differences.mean(0)
    if not deviation(by_seed) > 0:
        return -math.inf, math.inf
    seeds = images * by_seed.var(ddof=1)  # mean squares of an analysis of variance
    rest = differences - by_seed[:, None] - by_image + mean
    added = replicates * by_image.var(ddof=1) - (rest**2).sum() / ((replicates - 1) * (images - 1))
    both = seeds + max(added, 0.0)
    freedom = (replicates - 1) * (both / seeds) ** 2
    margin = float(stdtrit(freedom, confidence) * math.sqrt(both / differences.size))
    alone = np.array([bounds(by_seed, confidence), bounds(by_image, confidence)])
    return min(mean - margin, float(alone[:, 0].min())), max(mean + margin, float(alone[:, 1].max()))


def power(replicates: int, spread: float, delta: float) -> float:
    """How often a ticket exactly as good as dense is called matching, where differences have the standard deviation `spread`:
    the share of a noncentral t distribution that lies above the bound's quantile."""
    from scipy.special import nctdtr, stdtrit

    if replicates < LEAST_REPLICATES:
        return 0.0
    freedom, errors = replicates - 1, min(delta * math.sqrt(replicates) / spread, CERTAIN)
    return 1 - float(nctdtr(freedom, errors, stdtrit(freedom, CONFIDENCE)))


def replicates_needed(spread: float, delta: float) -> int | None:
    """The fewest replicates with a `power` of 80 %; None where that takes more than a million."""
    from scipy.special import ndtri

    enough = ((ndtri(CONFIDENCE) + ndtri(POWER)) * spread) ** 2  # replicates x delta ** 2, were the spread known exactly
    if enough > MOST_REPLICATES * delta**2:
        return None
    fewest = max(LEAST_REPLICATES, math.ceil(enough / delta**2))
    return next(count for count in itertools.count(fewest) if power(count, spread, delta) >= POWER)


@functools.cache
def confidence_of_looks(most: int, error: float = ERROR, trials: int = 100_000, seed: int = 0) -> float:
    """The confidence of the bounds at each look, for which a ticket exactly delta worse than dense is called matching in a
    share `error` of cases, where it is judged after every replicate, from the third to the `most`-th, until it is decided.

    The boundary of Pocock 1977 (doi 10.1093/biomet/64.2.191), which has one significance level for all looks, for t tests (as
    in Jennison & Turnbull 2000). Simulated with normal differences, whose spread makes no difference to it.
    """
    from scipy.special import stdtr

    trials = min(trials, VALUES // most)
    samples = np.random.default_rng(seed).standard_normal((trials, most))
    sums, squares, smallest = np.cumsum(samples, 1), np.cumsum(samples**2, 1), np.ones(trials)
    for count in range(LEAST_REPLICATES, most + 1):
        mean = sums[:, count - 1] / count
        variance = (squares[:, count - 1] - count * mean**2) / (count - 1)
        smallest = np.minimum(smallest, stdtr(count - 1, -mean * np.sqrt(count / variance)))
    return 1 - min(float(np.quantile(smallest, error)), error)


def first_verdicts(differences: ArrayLike, delta: float, confidence: float) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """The first verdict on each sample of `differences` ([..., replicates]) that is judged after every replicate, and after how
    many it fell; undecided after all."""
    samples = np.asarray(differences, float)
    most = samples.shape[-1]
    found, counts = np.full(samples.shape[:-1], UNDECIDED, dtype="U12"), np.full(samples.shape[:-1], most)
    for count in range(LEAST_REPLICATES, most + 1):
        verdicts = np.where(found == UNDECIDED, judged(samples[..., :count], delta, confidence), found)
        counts = np.where((found == UNDECIDED) & (verdicts != UNDECIDED), count, counts)
        found = verdicts
    return found, counts
