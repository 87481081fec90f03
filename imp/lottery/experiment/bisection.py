"""Bisection of candidates that stand in the order in which they stop to match: the last that matches, and the first that does
not, in few tests. A test may leave a candidate undecided, and so two bisections share their tests: one takes undecided
candidates for such as do not match, the other for such as do."""

from collections.abc import Mapping

from lottery.experiment.rule import Verdict

Verdicts = Mapping[int, Verdict]  # by place


def next_place(verdicts: Verdicts, count: int) -> int | None:
    """Which of `count` candidates to test next; None once both bisections have ended."""
    for low, high in (_bracket(verdicts, count, open_match) for open_match in (False, True)):
        if high - low > 1:
            return (low + high) // 2
    return None


def answer(verdicts: Verdicts, count: int) -> tuple[int, int]:
    """The place of the last candidate known to match (-1: none), and of the first known not to (`count`: none)."""
    return _bracket(verdicts, count, open_match=False)[0], _bracket(verdicts, count, open_match=True)[1]


def most_tests(count: int) -> int:
    """How many tests both bisections may take: each as many as `count` has binary digits; they share the first."""
    return max(0, 2 * count.bit_length() - 1)


def _bracket(verdicts: Verdicts, count: int, open_match: bool) -> tuple[int, int]:
    """Between which places a bisection is that has got `verdicts`; they are neighbours in the end."""
    low, high = -1, count
    while high - low > 1 and (middle := (low + high) // 2) in verdicts:
        matches = verdicts[middle].is_matching or (open_match and verdicts[middle].is_open)
        low, high = (middle, high) if matches else (low, middle)
    return low, high
