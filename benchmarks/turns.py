"""Everything in turn, again and again, so that a busy neighbour slows all of it alike."""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial

from lottery.base.progress import Reporter

Work = Callable[[], object]
Walls = dict[str, list[float]]  # wall seconds of a call, by contender, in each of its runs

RUN_SECONDS = 0.5


def in_turn(contenders: Mapping[str, Work], repeats: int, reporter: Reporter) -> Walls:
    """Call every contender to warm it up, then all in turn `repeats` times; a run is as many calls as last `RUN_SECONDS`. Every
    other turn goes from the last to the first, so that of two contenders neither is always the earlier one, which a machine
    that grows slower would favour. Returns the seconds of one call, in each run."""
    walls: Walls = {name: [] for name in contenders}
    with reporter.counting("measuring", len(contenders) * (repeats + 1), "runs") as progress:
        calls = {}
        for name, work in contenders.items():
            work()  # may compile
            calls[name] = math.ceil(RUN_SECONDS / seconds_of(work))
            progress(1)
        for turn in range(repeats):
            for name in list(contenders)[:: -1 if turn % 2 else 1]:
                walls[name].append(seconds_of(contenders[name], calls[name]))
                progress(1)
    return walls


def runs(work: Work, repeats: int) -> list[float]:
    """Seconds of one call, in each run of `in_turn`."""
    return in_turn({"": work}, repeats, Reporter(quiet=True))[""]


def seconds_of(work: Work, calls: int = 1) -> float:
    """Wall seconds of one call, in the mean of so many."""
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - began) / calls


def lasting(take: Callable[[int], object], seconds: float, most: int = 1 << 20) -> int:
    """How many steps `take` takes in so many seconds, a power of two or `most`; the first step, which may compile, is not
    counted."""
    take(1)
    count, took = 1, 0.0
    while took < seconds and count < most:
        count = min(2 * count, most)
        took = seconds_of(partial(take, count))
    return count


def step_walls(take: Callable[[int], object], seconds: float, repeats: int) -> list[float]:
    """Seconds of a step, in each of so many runs that last so many `seconds`."""
    steps = lasting(take, seconds)
    return [seconds_of(partial(take, steps)) / steps for _ in range(repeats)]
