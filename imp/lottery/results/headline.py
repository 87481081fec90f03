"""The answer of a run in sentences: what its dense network reaches, and down to which density tickets match it."""

import gzip
import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from data_prep.errors import InputError
from lottery import store, verdicts
from lottery.results import grouping
from lottery.results.grouping import Group, mask_name
from lottery.results.listing import Row
from lottery.run import Run


def headline(groups: Sequence[Group], run: Run, rows: Sequence[Row]) -> list[str]:
    """The answer in sentences: what the dense network reaches, and for each rewind point the sparsest matching ticket."""
    dense = next(group for group in groups if group.variant == "dense")
    sentences = [
        f"The dense network reaches {dense.validation_accuracy:.2%} on validation images and "
        f"{dense.test_accuracy:.2%} on test images ({_runs(dense.count)})."
    ]
    for key, tickets in grouping.series(groups).items():
        sentences.append(_answer(_series_name(*key), tickets, lambda best: _worth(run, rows, best)))
    missing = sum(group.planned - group.count for group in groups)
    if missing:
        sentences.append(f"{missing} of {sum(group.planned for group in groups)} networks have no result: see `imp status`.")
    if dense.planned < verdicts.LEAST_REPLICATES:
        least = verdicts.LEAST_REPLICATES
        sentences.append(
            f"Verdicts need {least} replicates, this run has {dense.planned}: "
            f"`imp run --run {shlex.quote(str(run.folder))} --set replicates={least}` adds the others."
        )
    return sentences


def _series_name(method: str, rewind: str) -> str:
    return f"Rewound to {rewind}" if method == "oneshot" else f"In rounds of {method} from {rewind}"


def _answer(name: str, tickets: Sequence[Group], worth: Callable[[Group], str]) -> str:
    """The sparsest ticket of a series that matches as all denser ones do, and what is beyond it."""
    best, matching = grouping.sparsest_matching(tickets), [group for group in tickets if group.verdict == "matching"]
    if not matching:
        return f"{name}, {_no_answer(tickets)}."
    until = tickets[: tickets.index(matching[-1])]
    others = ", ".join(_place(group) for group in until if group.verdict != "matching")
    if best is None:
        answer = f"{name}, there is no density down to which all tickets match: not, or not yet, at {others}."
        return f"{answer} The sparsest that does keeps {_share(matching[-1])}. {worth(matching[-1])}"
    answer = f"{name}, the sparsest winning ticket keeps {_share(best)}. {worth(best)}"
    if best is matching[-1]:
        return answer
    beyond = ", ".join(map(_place, matching[matching.index(best) + 1 :]))
    return f"{answer} Of sparser ones those at {beyond} match too, but not, or not yet, those at {others}."


def _no_answer(tickets: Sequence[Group]) -> str:
    level = [group for group in tickets if group.verdict == "undecided" and group.difference >= 0]
    if level:
        return f"undecided; the sparsest ticket at or above {level[-1].against} so far keeps {_share(level[-1])}"
    if any(group.verdict == "undecided" for group in tickets):
        return "undecided; no ticket's mean is at or above the dense network's so far"
    return "no ticket of this grid matches the dense network"


def _place(group: Group) -> str:
    """Its density; where none of its networks has a result, its mask."""
    return mask_name(group.quantile, group.method, group.level) if math.isnan(group.density) else f"{group.density:.2%}"


def _share(group: Group) -> str:
    return f"{group.density:.2%} of the prunable weights ({group.difference * 100:+.2f} points against {group.against})"


def _worth(run: Run, rows: Sequence[Row], best: Group) -> str:
    """What a winning ticket reaches, and its size beside the dense network's (where nothing happened to their weights)."""
    done = [row for row in rows if row["status"] == "done"]
    place = (best.variant, best.method, best.quantile, best.level, best.rewind_step)
    ticket = next(row for row in done if tuple(row[key] for key in _KEYS) == place)
    replicate = run.replicate(ticket["replicate"])
    last = max(replicate.snapshot_steps(), default=0)
    reached = f"It reaches {best.test_accuracy:.2%} on test images"
    try:
        small, whole = map(_compressed, (run.network_in(ticket["folder"]).final, replicate.snapshot(last)))
    except InputError:
        return f"{reached}."
    return f"{reached}; compressed it takes {small / 1000:,.0f} kB, the dense network {whole / 1000:,.0f}."


_KEYS = ("variant", "method", "quantile", "level", "rewind_step")


def _compressed(path: Path) -> int:
    """The bytes of a network's weights and statistics after gzip."""
    state = store.load_state(path, slots=False)
    return len(gzip.compress(b"".join(array.tobytes() for array in (state.weights | state.statistics).values())))


def _runs(count: int) -> str:
    return "one run" if count == 1 else f"mean of {count} runs"
