"""Error barriers between rounds, and whether they say what verdicts say."""

import pandas
import pytest

from lottery.experiment.rule import Rule
from lottery.results import barriers, frame
from lottery.rundir.records import PairRecord

RULE = Rule(0.002)


def pair(replicate, height, projected=0.3):
    """A line whose middle is `height` above both ends on test images, and half of that on those of training."""

    def line(height):
        return {"train": [0.1, 0.1 + height / 2, 0.1], "test": [0.2, 0.2 + height, 0.2]}

    place = {"family": "f", "mask": "round-02", "round": 2, "rewind_step": 0, "replicate": replicate, "copies": None}
    lines = {"errors": line(0.9), "recomputed": line(height), "projected": line(projected)}
    return PairRecord(**place, **lines, shares=[0, 0.5, 1], distances=(1, 1, 1, 60))


def test_the_barrier_is_that_with_statistics_computed_anew():
    row = barriers._row([pair(1, 0.001), pair(2, 0.002), pair(3, 0.003)], RULE)

    assert row["barrier_test"] == pytest.approx(0.002)
    assert row["barrier_train"] == pytest.approx(0.001)
    assert row["projected_test"] == pytest.approx(0.3)
    assert (row["barrier_low"], row["barrier_high"]) == pytest.approx(RULE.bounds([0.001, 0.002, 0.003]))
    assert (row["barrier"], row["replicates"], row["round"]) == ("none", 3, 2)


@pytest.mark.parametrize(
    ("heights", "word"), [((0.1, 0.12, 0.11), "barrier"), ((0.001, 0.1, 0.003), "undecided"), ((0.001,), "undecided")]
)
def test_a_barrier_is_decided_by_its_bounds(heights, word):
    assert barriers._row([pair(number, height) for number, height in enumerate(heights, 1)], RULE)["barrier"] == word


def test_the_claim_is_tested_on_rounds_that_are_decided():
    kinds = [
        ("none", RULE.matching),
        ("none", RULE.not_matching),
        ("barrier", RULE.not_matching),
        ("barrier", RULE.undecided),
        ("undecided", RULE.matching),
        ("none", None),
    ]
    rows = [{"family": "f", "round": n, "barrier": barrier, "verdict": verdict} for n, (barrier, verdict) in enumerate(kinds)]
    found = frame.table(({**dict.fromkeys(barriers.GROUPS), **row} for row in rows), barriers.GROUPS)

    assert barriers.sentence(found).startswith("Barrier and ticket are both decided in 3 rounds. In 2 of them")
    assert barriers.sentence(found[found["round"] > 2]) == "No round has both a decided barrier and a decided ticket yet."
    assert isinstance(found, pandas.DataFrame)
