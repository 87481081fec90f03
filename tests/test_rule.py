"""The rule, on numbers worked out by hand: t(0.95) is 2.919986 with 2 degrees of freedom, 2.353363 with 3. And a rule of one's
own in its place."""

import functools
import itertools
import math
import pickle

import numpy as np
import pytest
from handmade import dense, planned, ticket, write
from helpers import ROOT
from scipy import stats

from lottery.base.progress import Reporter
from lottery.experiment.rule import Rule, Verdict, deviation
from lottery.results.report import report
from lottery.rundir.run import EVERYTHING, Run
from lottery.stages import decide

RULE = Rule(0.002)
POINTS = Rule(0.2)


def test_bounds_are_students_t():
    low, high = RULE.bounds([0.001, 0.002, 0.003])

    margin = 2.919986 * 0.001 / math.sqrt(3)
    assert low == pytest.approx(0.002 - margin, rel=1e-6)
    assert high == pytest.approx(0.002 + margin, rel=1e-6)


def test_bounds_narrow_with_more_replicates():
    low, high = RULE.bounds([0, 0, 2, 2])

    margin = 2.353363 * math.sqrt(4 / 3) / 2
    assert (low, high) == (pytest.approx(1 - margin, rel=1e-6), pytest.approx(1 + margin, rel=1e-6))


def test_samples_that_are_not_paired_have_the_interval_of_welch():
    sample, other = [0.91, 0.913, 0.909, 0.912], [0.9, 0.902, 0.907]

    expected = stats.ttest_ind(sample, other, equal_var=False).confidence_interval(0.95)

    assert RULE.unpaired_interval(sample, other) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert RULE.unpaired_interval(sample, other[:1]) == (None, None)


@pytest.mark.parametrize(("differences", "t"), [([1, 3], 12.706205), ([1, 2, 3], 4.302653), ([0, 0, 2, 2], 3.182446)])
def test_the_two_sided_interval_is_wider(differences, t):
    spread = {2: math.sqrt(2), 3: 1, 4: math.sqrt(4 / 3)}[len(differences)]

    low, high = RULE.interval(differences)

    assert (high - low) / 2 == pytest.approx(t * spread / math.sqrt(len(differences)), rel=1e-6)
    assert (high + low) / 2 == pytest.approx(sum(differences) / len(differences))


@pytest.mark.parametrize("differences", [[], [0.01], [0.01] * 4, [0.903 - 0.9, 0.913 - 0.91, 0.923 - 0.92]])
def test_without_a_spread_bounds_are_infinite(differences):
    assert RULE.bounds(differences) == (-math.inf, math.inf)
    assert math.isnan(deviation(differences))
    assert RULE.interval(differences) == (None, None)


def test_many_samples_are_judged_as_each_would_be():
    samples = np.random.default_rng(0).normal(-0.001, 0.002, (500, 4))

    sides = RULE.side(samples, -RULE.delta)

    assert [RULE.verdict(side) for side in sides] == [RULE.judge(sample).verdict for sample in samples]
    assert set(sides) == {-1, 0, 1}
    assert deviation(samples) == pytest.approx(samples.std(axis=1, ddof=1))


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.001, 0.002, 0.003], "matching"),  # lower bound +0.03 points
        ([-0.001, 0.0, 0.001], "matching"),  # lower bound -0.169 points
        ([-0.0015, -0.0005, 0.0005], "undecided"),  # lower bound -0.219, upper +0.119 points
        ([-0.01, -0.011, -0.012], "not matching"),  # upper bound -0.93 points
        ([-0.005, -0.004, -0.003], "not matching"),  # upper bound -0.231 points
        ([-0.0045, -0.0035, -0.0025], "undecided"),  # upper bound -0.181 points
        ([-0.01, 0.0, 0.01], "undecided"),
        ([0.0, 0.0, 0.0], "undecided"),  # without a spread nothing says how far the mean may be off
        ([-0.01, -0.01, -0.01], "undecided"),
        ([0.903 - 0.9, 0.913 - 0.91, 0.923 - 0.92], "undecided"),  # the same but for rounding
        ([0.01, 0.01], "undecided"),
        ([-0.5, -0.5], "undecided"),
        ([0.01], "undecided"),
        ([], "undecided"),
    ],
)
def test_verdicts(differences, verdict):
    assert RULE.judge(differences).verdict == verdict


def test_a_verdict_is_its_word_and_stays_one_where_it_is_copied():
    copied = pickle.loads(pickle.dumps(Rule.matching))

    assert (copied, copied.verb, copied.is_matching, copied.is_open) == ("matching", "matches", True, False)


def test_a_wider_delta_lets_more_match_and_exactly_delta_below_is_undecided():
    assert Rule(0.003).judge([-0.0015, -0.0005, 0.0005]).verdict == "matching"  # undecided above
    assert Rule(0.25).judge([-0.375, -0.25, -0.125]).verdict == "undecided"


# For a ticket exactly as good as dense, by the standard deviation of paired differences in points; a delta of 0.2 points.
@pytest.mark.parametrize(("spread", "of_three", "needed"), [(0.1, 0.71, 4), (0.2, 0.32, 8), (0.3, 0.20, 16), (0.5, 0.13, 41)])
def test_the_power_of_three_replicates_and_how_many_have_80_per_cent(spread, of_three, needed):
    assert POINTS.power(3, spread) == pytest.approx(of_three, abs=0.005)
    assert POINTS.needed(spread) == needed
    assert POINTS.power(needed, spread) >= 0.8 > POINTS.power(needed - 1, spread)


def test_the_page_has_this_power():
    _, _, table = (ROOT / "docs/verdicts.md").read_text().partition("Exactly as good as dense, called *matching*:\n\n")
    for row in table.partition("\n\n")[0].splitlines()[2:]:
        spread, *shares, needed = row.strip("| ").split(" | ")
        powers = [POINTS.power(count, float(spread)) for count in (3, 5, 7, 10, 20)]
        assert [float(share.rstrip("%")) / 100 for share in shares] == pytest.approx(powers, abs=0.01)
        assert int(needed) == POINTS.needed(float(spread))


@pytest.mark.parametrize(("replicates", "spread"), [(3, 0.2), (7, 0.2), (20, 0.5)])
def test_power_is_how_often_samples_of_a_ticket_as_good_are_called_matching(replicates, spread):
    samples = np.random.default_rng(1).normal(0, spread, (20_000, replicates))

    simulated = np.mean(POINTS.side(samples, -0.2) == 1)

    assert simulated == pytest.approx(POINTS.power(replicates, spread), abs=0.012)


def test_of_fewer_than_three_replicates_there_is_no_power_and_of_hardly_any_spread_three_are_enough():
    assert POINTS.power(2, 0.01) == 0
    assert POINTS.power(3, 1e-9) == 1
    assert POINTS.needed(1e-9) == 3


@pytest.mark.parametrize(("spread", "delta"), [(0.1, 0.0), (1.0, 0.001)])
def test_replicates_beyond_a_million_are_not_counted(spread, delta):
    assert Rule(delta).needed(spread) is None


@pytest.mark.parametrize("most", [3, 5, 20])
def test_all_looks_together_err_in_five_per_cent_of_cases(most):
    samples = np.random.default_rng(3).normal(-0.2, 0.1, (4000, most))
    sides = POINTS.after_looks(most).first(samples)[0].tolist()

    assert sides.count(1) / 4000 == pytest.approx(0.05, abs=0.012)
    assert sides.count(-1) / 4000 == pytest.approx(0.05, abs=0.012)


def test_more_looks_have_wider_bounds_and_a_single_one_those_of_reports():
    levels = [RULE.after_looks(most).confidence for most in (1, 2, 3, 5, 10)]

    assert levels[:3] == pytest.approx([0.95, 0.95, 0.95], abs=0.003)
    assert levels == sorted(levels)
    assert RULE.after_looks(10, tests=5).confidence > levels[-1]


def test_the_first_verdict_stands_and_says_after_how_many_replicates():
    good, bad = [0.01, 0.02, 0.015], [-0.3, -0.31, -0.29]

    strict = Rule(0.2, 0.01)
    assert strict.first([*good, *bad]) == (1, 3)
    assert strict.first([*bad, *good]) == (-1, 3)
    assert POINTS.first([0.3, -0.9, 0.1, -0.2]) == (0, 4)
    assert POINTS.first([]) == (0, 0)
    sides, counts = strict.first([[*good, *bad], [*bad, *good]])
    assert (sides.tolist(), counts.tolist()) == ([1, -1], [3, 3])


class SignFlips(Rule):
    """How often the mean of differences is as far from the limit where their signs are drawn: a permutation test."""

    matching = Verdict("as good", "is as good", "+", True)
    not_matching = Verdict("inferior", "is inferior", "-", False)
    sentence = "A ticket is as good if hardly any signs give such a mean."

    def side(self, differences, limit):
        above = np.subtract(differences, limit)
        flipped = np.mean(above * list(itertools.product((1, -1), repeat=len(above))), axis=1)
        shares = [np.mean(side * flipped >= side * above.mean()) for side in (1, -1)]
        return next((side for side, share in zip((1, -1), shares, strict=True) if share <= self.error), 0)

    def after_looks(self, most, tests=1):
        return SignFlips(self.delta, self.error / most / tests)

    def looking(self, most):
        return f"up to {most} replicates, each sign flipped"


@pytest.mark.parametrize(("above", "word"), [(0.001, "as good"), (-0.02, "inferior")])
def test_a_rule_of_ones_own_decides_when_replicates_are_enough_and_has_its_words_on_the_page(tmp_path, above, word):
    run = Run(tmp_path / "run", planned(replicates=1), judged_by=functools.partial(SignFlips, error=0.2))
    dense(run, 0.90)
    ticket(run, 1, "60", 0.90 + above)
    told = []
    reporter = Reporter(quiet=True)
    reporter.say = told.append

    for added, _ in decide.until_decided(run, 8, reporter, EVERYTHING):
        (number,) = added.numbers()
        write(run.replicate(number).dense, 0.90, replicate=number)
        ticket(run, number, "60", 0.90 + above + number / 10_000)

    assert (told[0], told[-1]) == ("up to 8 replicates, each sign flipped", "every ticket is decided after 6 replicates")
    made, page = report(run), (run.report / "index.html").read_text()
    assert made.groups["verdict"].dropna().tolist() == [word]
    assert f'<tr class="{"matching" if above > 0 else "failing"}">' in page
    assert SignFlips.sentence in page
    assert made.headline[1].startswith(
        "Rewound to 1ep: the sparsest as good ticket keeps 40.00%" if above > 0 else "Rewound to 1ep: not even the densest"
    )
