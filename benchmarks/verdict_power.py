"""How often verdicts are right: power and error of `lottery.experiment.rule`, simulated, as the Markdown tables of
docs/verdicts.md.

    python benchmarks/verdict_power.py

Differences of a ticket from the dense network are drawn normal, with a standard deviation in points over replicates, and judged
by the rules that reports go by, with a delta of 0.2 points. Seeded: the same figures every time, in seconds.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from lottery.experiment.rule import ALIKE, Rule

DELTA = 0.2  # points, as all figures here
RULE = Rule(DELTA)
MATCHING, NOT_MATCHING = 1, -1  # sides of -delta
SPREADS = (0.1, 0.2, 0.3, 0.5)
REPLICATES = (3, 5, 7, 10, 20)
COUNTS = [f"{count} replicates" for count in REPLICATES]
MOST = (5, 7, 10, 20)  # replicates of --until-decided
SHARED = 0.5  # of the variance of a difference: the dense network's, which all tickets of a replicate are compared with
SPREAD = 0.2  # of headlines, whose error hardly depends on it
SERIES = {
    "each 0.2 points below the one before": tuple(-0.2 * step for step in range(20)),
    "each 0.05 points below the one before": tuple(-0.05 * step for step in range(20)),
    "ten, all exactly 0.2 points below dense": (-DELTA,) * 10,
}
IMAGES = (500, 5000)  # for validation
DOUBTFUL = 0.06  # of the images; all networks are right about the others
SEEDS = 0.1  # points: the standard deviation of what a seed does to the accuracy of a network, on all images alike


def share(side: int, true: float, spread: float, replicates: int, trials: int, rng: np.random.Generator) -> float:
    """How often a ticket that is truly `true` points above dense is said to lie on this `side`."""
    samples = rng.normal(true, spread, (trials, replicates))
    return float(np.mean(RULE.side(samples, -DELTA) == side))


def until_decided(most: int, trials: int, rng: np.random.Generator) -> list[str]:
    """A line of the table of `--until-decided`."""
    rule = RULE.after_looks(most)
    worse, _ = rule.first(rng.normal(-DELTA, SPREAD, (trials, most)))
    good, counts = rule.first(rng.normal(0, SPREAD, (trials, most)))
    shares = [np.mean(sides == MATCHING) for sides in (worse, good)]
    return [f"{rule.confidence:.1%}", *(f"{share:.1%}" for share in shares), f"{np.median(counts):.0f}"]


def headlines(sides: np.ndarray) -> np.ndarray:
    """The place of the headline in each series of sides ([trials, densities], from dense to sparse); -1 where there is none:
    the last that matches before the first that does not match."""
    standing = np.cumsum(sides == NOT_MATCHING, axis=1) == 0
    places = np.arange(sides.shape[1])
    return np.where(standing & (sides == MATCHING), places, -1).max(axis=1)


def headline_error(true: Sequence[float], spread: float, replicates: int, trials: int, rng: np.random.Generator) -> float:
    """How often the headline of a series is a ticket that is delta or more worse than dense."""
    own = rng.standard_normal((trials, len(true), replicates))
    dense = rng.standard_normal((trials, 1, replicates))
    noise = spread * (np.sqrt(1 - SHARED) * own - np.sqrt(SHARED) * dense)
    place = headlines(RULE.side(np.array(true)[:, None] + noise, -DELTA))
    return float(np.mean((place >= 0) & (np.array(true)[place] <= -DELTA + ALIKE)))


def single_images(true: float, replicates: int, images: int, rng: np.random.Generator) -> np.ndarray:
    """Differences on single images (int8, [replicates, images]) of a ticket that is truly `true` points above dense over all
    seeds and images. About each doubtful image each network has its own probability to be right, between 0 and 1."""
    doubtful = rng.binomial(images, DOUBTFUL)
    lowered = max(-true, 0) / 100 / DOUBTFUL
    right = []
    for top in (1 - 2 * lowered, 1.0):
        of_images = rng.uniform(0, top, doubtful)
        of_seeds = rng.normal(0, SEEDS / 100 / DOUBTFUL, (replicates, 1))
        right.append(rng.random((replicates, doubtful)) < of_images + of_seeds)
    found = np.zeros((replicates, images), np.int8)
    found[:, :doubtful] = right[0].astype(np.int8) - right[1]
    return found


def over_images(true: float, images: int, trials: int, rng: np.random.Generator) -> list[str]:
    """How often such a ticket is called matching by the bounds over seeds, and by those over images too."""
    cells = []
    for replicates in REPLICATES:
        found = [single_images(true, replicates, images, rng) for _ in range(trials)]
        seeds = RULE.side([one.mean(1) for one in found], -DELTA / 100) == MATCHING
        both = np.array([RULE.bounds_over_images(one)[0] for one in found]) > -DELTA / 100
        cells.append(f"{seeds.mean():.1%}, {both.mean():.1%}")
    return cells


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"{title}\n")
    for cells in (headings, ["---"] * len(headings), *rows):
        print(f"| {' | '.join(cells)} |")
    print()


def by_spread(title: str, side: int, true: float, trials: int, rng: np.random.Generator, needed: bool = False) -> None:
    """A table of how often a ticket is said to lie on this `side`, by spread and replicates; with how many are `needed` for
    80 %."""
    rows = [
        [
            f"{spread:g}",
            *(f"{share(side, true, spread, count, trials, rng):.1%}" for count in REPLICATES),
            *([str(RULE.needed(spread))] if needed else []),
        ]
        for spread in SPREADS
    ]
    table(title, ["standard deviation", *COUNTS, *(["replicates needed"] if needed else [])], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    trials, rng = options.trials, np.random.default_rng(options.seed)
    by_spread("Exactly as good as dense, called *matching*:", MATCHING, 0.0, trials, rng, needed=True)
    by_spread("Exactly 0.2 points worse, called *matching*:", MATCHING, -DELTA, trials, rng)
    by_spread("Exactly as good as dense, called *not matching*:", NOT_MATCHING, 0.0, trials, rng)
    rows = [[str(most), *until_decided(most, trials // 4, rng)] for most in MOST]
    headings = ["N", "confidence of each look", "wrong", "as good as dense, called matching", "its median replicates"]
    table("`--until-decided N`, exactly 0.2 points worse, called *matching*:", headings, rows)
    rows = [
        [name, *(f"{headline_error(true, SPREAD, count, trials // 10, rng):.1%}" for count in REPLICATES)]
        for name, true in SERIES.items()
    ]
    table("The headline names a ticket that is 0.2 points worse or more:", ["tickets from dense to sparse", *COUNTS], rows)
    rows = [
        [f"{images}, {name}", *over_images(true, images, trials // 100, rng)]
        for images in IMAGES
        for name, true in (("exactly 0.2 points worse", -DELTA), ("exactly as good", 0.0))
    ]
    title = "Called *matching* over seeds, and over images too, by what is true over all images:"
    table(title, ["validation images", *COUNTS], rows)


if __name__ == "__main__":
    main()
