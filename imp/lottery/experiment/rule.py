"""The rule by which networks are judged: does a ticket match the dense network, and how often is that verdict right? `Rule` is
the only place that knows how. All others ask it and the `Verdict` that it gives, also for words. Another rule is a class with
the same methods, as a subclass is: `Run(folder, recipe, judged_by=MyRule)`. `docs/verdicts.md` has the figures."""

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEAST_REPLICATES = 3
ERROR = 0.05  # that is accepted, of a ticket delta worse called matching
POWER = 0.8
ALIKE = 1e-9  # differences this near to each other are the same but for rounding
MOST_REPLICATES = 1_000_000  # that are worth naming
VALUES = 5_000_000  # that a simulation draws at most
CERTAIN = 100.0  # standard errors between a ticket and the limit, at which a verdict cannot fail any more


class Verdict(str):
    """What a rule says of a network, in a word: that of tables. It knows its `verb` in sentences ("it matches"), its `sign` in
    tables, and whether it `is_matching` or `is_failing`; one that is neither is open, and more replicates may decide it."""

    verb: str
    sign: str
    is_matching: bool
    is_failing: bool

    def __new__(cls, word: str, verb: str = "", sign: str = "", matches: bool | None = None) -> "Verdict":
        verdict = super().__new__(cls, word)
        verdict.verb, verdict.sign, verdict.is_matching, verdict.is_failing = verb, sign, matches is True, matches is False
        return verdict

    @property
    def is_open(self) -> bool:
        return not (self.is_matching or self.is_failing)


class Judgement(NamedTuple):
    """The verdict on the differences of one network over replicates, with what it follows from: one-sided bounds of the mean
    difference, the standard deviation of differences, and the replicates `needed` to call a network exactly as good matching in
    80 % of cases. Then the bounds and the verdict over other images too. None where it is not known."""

    verdict: Verdict
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    needed: int | None = None
    image_low: float | None = None
    image_high: float | None = None
    image_verdict: Verdict | None = None


def known(low: NDArray[np.float64], high: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """These bounds of one mean; None where one is infinite."""
    return float(low) if np.isfinite(low) else None, float(high) if np.isfinite(high) else None


def deviation(differences: ArrayLike) -> NDArray[np.float64]:
    """The standard deviation over replicates ([..., replicates]); NaN under two of them, or where all are the same."""
    samples = np.asarray(differences, float)
    if samples.shape[-1] < 2:
        return np.full(samples.shape[:-1], math.nan)
    return np.where(np.ptp(samples, -1) > ALIKE, np.std(samples, -1, ddof=1), math.nan)


@dataclasses.dataclass(frozen=True)
class Rule:
    """Student's t: a ticket is matching when the one-sided lower bound of its mean difference (ticket - dense in the deciding
    metric, one a replicate) is above -`delta`, not matching when the upper bound is below it; undecided otherwise, under three
    replicates, and where all differences are the same. In a share `error` of cases a bound is wrong."""

    delta: float
    error: float = ERROR

    matching = Verdict("matching", "matches", "✓", True)
    not_matching = Verdict("not matching", "does not match", "✗", False)
    undecided = Verdict("undecided", "is undecided", "?")
    worse = Verdict("worse here", "is worse on these images", "↓")  # what other seeds would give is not known

    # What the report says of the rule, of the columns of differences, and of those where each answer is right or wrong; with
    # places for `words`, and for those of a metric.
    sentence = (
        "A ticket matches if the lower bound of its difference is above −{margin} points. It does not match if the upper bound "
        "is below that. Otherwise, and without a spread over at least three replicates, it is undecided."
    )
    explained = (
        "difference: how far the validation {metric} is above that of the network under `compared with`, in points: the mean "
        "over replicates, and in brackets its lower and upper {t_bounds}. The verdict follows from these bounds (a two-sided "
        "{level} interval is wider). They say what other seeds would give on these validation {example}s, which all replicates "
        "share. sd: the standard deviation of the difference over replicates; three replicates give only a rough idea of it. "
        "replicates needed: with that spread, so many replicates recognise an equally good network as {matching} 80 % of the "
        "time."
    )
    explained_over_images = (
        " {worse}: {undecided} over seeds, but on these images each network is worse than the one it is compared with "
        "(McNemar's exact test, {error}). incl. other images: the bounds and the verdict for other seeds on other images."
    )

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return self.matching, self.not_matching, self.undecided, self.worse

    @property
    def confidence(self) -> float:
        return 1 - self.error

    def side(self, differences: ArrayLike, limit: float) -> NDArray[np.int_]:
        """On which side of `limit` the mean of each sample ([..., replicates]) is known to lie: 1 above, -1 below, else 0."""
        return _side(*self.bounds(differences), np.shape(differences)[-1], limit)

    def verdict(self, side: ArrayLike) -> Verdict:
        """That on a mean which lies on this side of -`delta`."""
        return (self.undecided, self.matching, self.not_matching)[int(side)]  # type: ignore[arg-type]

    def judge(
        self, differences: Sequence[float], planned: int | None = None, images: NDArray[np.int8] | None = None
    ) -> Judgement:
        """The judgement by the differences of replicates, of which so many are `planned`; undecided while one is missing. What
        is open is judged by single `images` then, as `bounds_over_images` takes them."""
        is_whole = planned is None or len(differences) == planned
        verdict = self.verdict(self.side(differences, -self.delta) if is_whole else 0)
        if verdict.is_open and images is not None and self.is_worse_here(images):
            verdict = self.worse
        spread = float(deviation(differences))
        if math.isnan(spread):
            return Judgement(verdict)
        judgement = Judgement(verdict, *known(*self.bounds(differences)), spread, self.needed(spread))
        if images is None:
            return judgement
        low, high = self.bounds_over_images(images)
        if not math.isfinite(low):
            return judgement
        side = _side(low, high, len(images), -self.delta) if len(images) == planned else 0
        return judgement._replace(image_low=low, image_high=high, image_verdict=self.verdict(side))

    def bounds(self, differences: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """One-sided lower and upper bounds of the mean; infinite where `differences` have no `deviation`."""
        from scipy.special import stdtrit

        samples = np.asarray(differences, float)
        count = max(samples.shape[-1], 1)
        margin = np.nan_to_num(stdtrit(count - 1, self.confidence) * deviation(samples) / math.sqrt(count), nan=math.inf)
        mean = samples.sum(-1) / count
        return mean - margin, mean + margin

    def interval(self, differences: Sequence[float]) -> tuple[float | None, float | None]:
        """The two-sided interval of the mean."""
        return known(*dataclasses.replace(self, error=self.error / 2).bounds(differences))

    def unpaired_interval(self, sample: Sequence[float], other: Sequence[float]) -> tuple[float | None, float | None]:
        """The two-sided interval of how far the mean of `sample` is above that of `other`, which need be neither as many nor
        spread alike: Welch's (1947, doi 10.1093/biomet/34.1-2.28). None where one of them has no `deviation`."""
        from scipy.special import stdtrit

        errors = [float(deviation(values)) ** 2 / max(len(values), 1) for values in (sample, other)]
        if not sum(errors) > 0:  # NaN where one has none
            return None, None
        freedom = sum(errors) ** 2 / sum(
            error**2 / (len(values) - 1) for error, values in zip(errors, (sample, other), strict=True)
        )
        margin = float(stdtrit(freedom, 1 - self.error / 2)) * math.sqrt(sum(errors))
        mean = statistics.fmean(sample) - statistics.fmean(other)
        return mean - margin, mean + margin

    def is_worse_here(self, differences: NDArray[np.int8]) -> bool:
        """Whether each ticket is worse than the dense network of its replicate on these images, whatever other seeds would
        give: by McNemar's exact test (1947, doi 10.1007/BF02295996) of `differences` of single images, as `bounds_over_images`
        takes them, and by more than `delta`."""
        from scipy.special import bdtr

        won, lost = (differences > 0).sum(1), (differences < 0).sum(1)
        worse = (bdtr(won, won + lost, 0.5) < 1 - self.confidence) & (lost - won > self.delta * differences.shape[1])
        return bool(worse.all())

    def bounds_over_images(self, differences: NDArray[np.int8]) -> tuple[float, float]:
        """One-sided bounds of the mean difference over other seeds and other images, where `bounds` is over other seeds alone.
        `differences` are of single images ([replicates, images]: 1 where only the ticket is right, -1 where only the dense
        network is). Infinite as those of `bounds`.

        Seeds and images are crossed random effects, as readers and cases are in studies of diagnoses: the variance of the mean
        is that over seeds and what images add to it, with Hillis's degrees of freedom (2007, doi 10.1002/sim.2532). The bounds
        are never nearer to the mean than those over seeds alone, nor than those over images alone."""
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
        margin = float(stdtrit(freedom, self.confidence) * math.sqrt(both / differences.size))
        alone = np.array([self.bounds(by_seed), self.bounds(by_image)])
        return min(mean - margin, float(alone[:, 0].min())), max(mean + margin, float(alone[:, 1].max()))

    def power(self, replicates: int, spread: float) -> float:
        """How often a ticket exactly as good as dense is called matching, where differences have the standard deviation
        `spread`: the share of a noncentral t distribution that lies above the bound's quantile."""
        from scipy.special import nctdtr, stdtrit

        if replicates < LEAST_REPLICATES:
            return 0.0
        freedom, errors = replicates - 1, min(self.delta * math.sqrt(replicates) / spread, CERTAIN)
        return 1 - float(nctdtr(freedom, errors, stdtrit(freedom, self.confidence)))

    def needed(self, spread: float) -> int | None:
        """The fewest replicates with a `power` of 80 %; None where that takes more than a million."""
        from scipy.special import ndtri

        enough = (
            (ndtri(self.confidence) + ndtri(POWER)) * spread
        ) ** 2  # replicates x delta ** 2, were the spread known exactly
        if enough > MOST_REPLICATES * self.delta**2:
            return None
        fewest = max(LEAST_REPLICATES, math.ceil(enough / self.delta**2))
        return next(count for count in itertools.count(fewest) if self.power(count, spread) >= POWER)

    def after_looks(self, most: int, tests: int = 1) -> "Rule":
        """The rule for judging after every replicate, from the third to the `most`-th, until a verdict falls: all looks at so
        many `tests` together err no more often than this rule does in one."""
        return dataclasses.replace(self, error=error_of_looks(most, self.error / tests))

    def looking(self, most: int) -> str:
        """What is said before judging after every replicate."""
        return (
            f"looking after each replicate, up to {most}, by bounds of {self.after_looks(most).confidence:.1%} confidence: "
            f"all looks together then err as often as one by bounds of {self.confidence:.0%}"
        )

    def first(self, differences: ArrayLike) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
        """The first `side` of -`delta` known of each sample ([..., replicates]) that is judged after every replicate, and after
        how many it is; 0 after all."""
        samples = np.asarray(differences, float)
        most = samples.shape[-1]
        sides, counts = np.zeros(samples.shape[:-1], int), np.full(samples.shape[:-1], most)
        for count in range(LEAST_REPLICATES, most + 1):
            now = np.where(sides == 0, self.side(samples[..., :count], -self.delta), sides)
            sides, counts = now, np.where((sides == 0) & (now != 0), count, counts)
        return sides, counts

    @property
    def words(self) -> dict[str, str]:
        """What texts say of the rule, by its place in them."""
        level = f"{100 * self.confidence:.4g} %"
        return {
            "matching": self.matching,
            "undecided": self.undecided,
            "worse": self.worse,
            "level": level,
            "error": f"{100 * self.error:.4g} %",
            "margin": f"{100 * self.delta:.2g}",
            "bounds": f"one-sided {level} bounds",
            "t_bounds": f"one-sided {level} t bounds",
            "intervals": f"two-sided {level} t intervals",
            "student_intervals": f"two-sided {level} Student t intervals",
            "control_signs": f"{self.matching.sign}: the control {self.matching.verb} the ticket, {self.not_matching.sign}: it "
            f"does not, {self.undecided.sign}: {self.undecided}, {self.worse.sign}: {self.worse}",
        }

    def foretold(self, spread: float, count: int) -> str:
        """How often so many replicates call an equally good ticket matching, and how many would do in most cases."""
        needed = self.needed(spread)
        enough = (
            ""
            if needed and needed <= count
            else f", {f'{needed:,}' if needed else 'more than a million'} replicates {100 * POWER:.0f} %"
        )
        return (
            f"The differences have a standard deviation of {spread * 100:.2f} points. With this spread, {count} replicates "
            f"recognise an equally good ticket {100 * self.power(count, spread):.0f} % of the time{enough}."
        )


def _side(low: ArrayLike, high: ArrayLike, replicates: int, limit: float) -> NDArray[np.int_]:
    enough = replicates >= LEAST_REPLICATES
    return np.select([enough & (np.asarray(low) > limit), enough & (np.asarray(high) < limit)], [1, -1], 0)


@functools.cache
def error_of_looks(most: int, error: float = ERROR, trials: int = 100_000, seed: int = 0) -> float:
    """The error of the bounds at each look, for which a ticket exactly delta worse than dense is called matching in a share
    `error` of cases, where it is judged after every replicate, from the third to the `most`-th, until it is decided.

    The boundary of Pocock 1977 (doi 10.1093/biomet/64.2.191), which has one significance level for all looks, for t tests (as
    in Jennison & Turnbull 2000). Simulated with normal differences, whose spread makes no difference to it."""
    from scipy.special import stdtr

    trials = min(trials, VALUES // most)
    samples = np.random.default_rng(seed).standard_normal((trials, most))
    sums, squares, smallest = np.cumsum(samples, 1), np.cumsum(samples**2, 1), np.ones(trials)
    for count in range(LEAST_REPLICATES, most + 1):
        mean = sums[:, count - 1] / count
        variance = (squares[:, count - 1] - count * mean**2) / (count - 1)
        smallest = np.minimum(smallest, stdtr(count - 1, -mean * np.sqrt(count / variance)))
    return min(float(np.quantile(smallest, error)), error)
