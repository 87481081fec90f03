"""Bisection of candidates that stand in the order in which they stop to match: the last that matches, and the first that does
not, in few tests. A test may leave a candidate undecided, and so two bisections share their tests: one takes undecided
candidates for such as do not match, the other for such as do.
"""

from collections.abc import Callable, Mapping

Verdicts = Mapping[int, str]  # by place: matching, not matching or undecided


def next_place(verdicts: Verdicts, count: int) -> int | None:
    """Which of `count` candidates to test next; None once both bisections have ended."""
    for low, high in (_bracket(verdicts, count, passes) for passes in (_matches, _may_match)):
        if high - low > 1:
            return (low + high) // 2
    return None


def answer(verdicts: Verdicts, count: int) -> tuple[int, int]:
    """The place of the last candidate that is known to match (-1: none), and that of the first that is known not to (`count`:
    none)."""
    return _bracket(verdicts, count, _matches)[0], _bracket(verdicts, count, _may_match)[1]


def most_tests(count: int) -> int:
    """How many tests both bisections may take: each as many as `count` has binary digits; they share the first."""
    return max(0, 2 * count.bit_length() - 1)


def _bracket(verdicts: Verdicts, count: int, passes: Callable[[str], bool]) -> tuple[int, int]:
    """Between which places a bisection is that has got `verdicts`; they are neighbours in the end."""
    low, high = -1, count
    while high - low > 1 and (middle := (low + high) // 2) in verdicts:
        low, high = (middle, high) if passes(verdicts[middle]) else (low, middle)
    return low, high


def _matches(verdict: str) -> bool:
    return verdict == "matching"


def _may_match(verdict: str) -> bool:
    return verdict != "not matching"
