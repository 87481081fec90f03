"""How often `imp search` errs and what it costs, simulated, as the Markdown table of docs/stability.md.

    python benchmarks/search_errors.py [--campaigns 10000]

Eighteen densities, up to 20 replicates, delta 0.2 points. Differences from the dense network are normal with a standard
deviation of 0.2 points, half of whose variance is the dense network's, which all tickets of a replicate share. The cost is in
trainings of tickets, as a share of those of the full grid of 20 replicates. Seeded: the same figures every time, in seconds.
"""

import argparse

import numpy as np

from lottery.experiment import bisection
from lottery.experiment.rule import ALIKE, Rule, Verdict

COUNT, MOST, DELTA, SPREAD, SHARED = 18, 20, 0.2, 0.2, 0.5
RULE = Rule(DELTA)
PLACES = np.arange(COUNT)
SERIES = {  # what the tickets truly are above dense, in points, from dense to sparse
    "all exactly 0.2 points worse": np.full(COUNT, -DELTA),
    "all as good as dense": np.zeros(COUNT),
    "the first nine as good as dense, then 0.2 points worse, 0.4, ...": -DELTA * np.maximum(PLACES - 8, 0),
    "each 0.05 points below the one before": -0.05 * PLACES,
}


def campaign(sides: np.ndarray, counts: np.ndarray) -> tuple[tuple[int, int], int]:
    """The answer of a search among candidates that are first known to lie on these sides of -delta, and the trainings that it
    took."""
    tested: dict[int, Verdict] = {}
    while (place := bisection.next_place(tested, COUNT)) is not None:
        tested[place] = RULE.verdict(sides[place])
    return bisection.answer(tested, COUNT), int(sum(counts[place] for place in tested))


def row(title: str, true: np.ndarray, campaigns: int, rng: np.random.Generator) -> str:
    rule = RULE.after_looks(MOST, bisection.most_tests(COUNT))
    own = rng.standard_normal((campaigns, COUNT, MOST)) * np.sqrt(1 - SHARED)
    dense = rng.standard_normal((campaigns, 1, MOST)) * np.sqrt(SHARED)
    first = rule.first(true[:, None] + SPREAD * (own - dense))
    ended = [campaign(*one) for one in zip(*first, strict=True)]
    answers, costs = np.array([answer for answer, _ in ended]), np.array([cost for _, cost in ended])
    worse = np.mean([low >= 0 and true[low] <= -DELTA + ALIKE for low, _ in answers])
    width = np.median(answers[:, 1] - answers[:, 0])
    return f"| {title} | {worse:.1%} | {width:g} | {np.median(costs) / (COUNT * MOST):.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=10_000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    print("| tickets, from dense to sparse | names one that is 0.2 points worse or more | interval, median | cost, median |")
    print("| --- | --- | --- | --- |")
    for title, true in SERIES.items():
        print(row(title, true, options.campaigns, rng), flush=True)


if __name__ == "__main__":
    main()
