"""The answer of a run in sentences: the accuracy of its dense network, the sparsest tickets that match it, their controls, and
how sure the answer is."""

import gzip
import json
import math
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas

from data_prep.errors import InputError
from lottery.experiment import grids
from lottery.experiment.graph import DENSE, TICKET
from lottery.results import frame, grouping, lookup, verdicts
from lottery.rundir import store
from lottery.rundir.lineage import Lineage
from lottery.rundir.run import Run

REINIT = "reinit"


def headline(groups: pandas.DataFrame, run: Run, rows: pandas.DataFrame) -> list[str]:
    """The answer in sentences: the accuracy of the dense network, and for each series of tickets the sparsest that matches."""
    kinds = frame.each(groups)
    dense = next(group for group in kinds if group.variant == DENSE)
    sentences = [
        f"The dense network reaches {dense.validation_accuracy:.2%} on validation images and "
        f"{dense.test_accuracy:.2%} on test images ({_runs(dense.count)})."
    ]
    for key, tickets in grouping.tickets(groups).items():
        best = grouping.sparsest_matching(tickets)
        found = _found(tickets, best, kinds, run, rows) if best else [_no_answer(tickets)]
        found += [*_late(tickets), *_power(tickets, run.recipe.delta)]
        sentences.append(f"{_series_name(run, *key)}, {' '.join(found)}")
    missing = sum(group.planned - group.count for group in kinds)
    if missing:
        sentences.append(f"{missing} of {sum(group.planned for group in kinds)} networks have no result: see `imp status`.")
    if dense.planned < verdicts.LEAST_REPLICATES:
        least = verdicts.LEAST_REPLICATES
        sentences.append(
            f"Verdicts need {least} replicates, this run has {dense.planned}: "
            f"`imp run --run {shlex.quote(str(run.folder))} --set replicates={least}` adds the others."
        )
    return [*sentences, *_coarse(run)]


def _series_name(run: Run, name: str, rewind: str) -> str:
    if run.recipe.families[name].rounds:
        return f"In rounds of {name} from {rewind}"
    return f"Rewound to {rewind}" if len(run.recipe.families) == 1 else f"Of {name}, rewound to {rewind}"


def _found(tickets: Sequence[Any], best: Any, groups: Sequence[Any], run: Run, rows: pandas.DataFrame) -> list[str]:
    """The ticket of the headline, what its control says about it, and which denser tickets are undecided."""
    open_ones = [group for group in tickets[: tickets.index(best)] if group.verdict == "undecided"]
    return [
        f"the sparsest matching ticket keeps {_share(best)}.",
        _worth(run, rows, best),
        _control(groups, best, run),
        *([f"Denser ones that are undecided: {_places(open_ones)}."] if open_ones else []),
    ]


def _no_answer(tickets: Sequence[Any]) -> str:
    standing = grouping.standing(tickets)
    level = [group for group in standing if group.difference is not None and group.difference >= 0]
    if level:
        return f"undecided; the sparsest ticket at or above {level[-1].against} so far keeps {_share(level[-1])}."
    if standing:
        return f"undecided; no ticket's mean is at or above that of {standing[0].against} so far."
    return f"not even the densest ticket, of {_place(tickets[0])}, matches."


def _late(tickets: Sequence[Any]) -> list[str]:
    """Tickets that match beyond one that does not."""
    beyond = tickets[len(grouping.standing(tickets)) :]
    late = [group for group in beyond if group.verdict == "matching"]
    return [f"Not counted, as {_place(beyond[0])} does not match: the sparser {_places(late)}."] if late else []


def _places(tickets: Sequence[Any]) -> str:
    return ", ".join(map(_place, tickets))


def _place(group: Any) -> str:
    """The density of a group, or its mask if none of its networks has a result."""
    return f"{group.family} {group.mask}" if group.density is None else f"{group.density:.2%}"


def _share(group: Any) -> str:
    return f"{group.density:.2%} of the prunable weights ({group.difference * 100:+.2f} points against {group.against})"


def _control(groups: Sequence[Any], best: Any, run: Run) -> str:
    """Whether a matching ticket wins: the same mask with fresh weights must not match."""
    step = 0 if run.recipe.families[best.family].quantiles else best.rewind_step
    place = (REINIT, best.family, best.mask, step)
    reinit = next((one for one in groups if (one.variant, one.family, one.mask, one.rewind_step) == place), None)
    name = "its control `reinit` (its mask, fresh weights)"
    if reinit is None or not reinit.count:
        command = shlex.join(["imp", *_training_reinit(best, run)])
        return f"Whether it wins is open: {name} is not trained; `{command}` trains it."
    points = f"{reinit.difference * 100:+.2f} points"
    return {
        "not matching": f"It wins: {name} does not match ({points}).",
        "matching": f"It does not win: {name} matches too ({points}), so that its own weights do not matter.",
    }.get(reinit.verdict or "", f"Whether it wins is open: {name} is undecided ({points}).")


def _training_reinit(best: Any, run: Run) -> list[str]:
    """The arguments of `imp` that train the control `reinit` of a ticket."""
    family = run.recipe.families[best.family]
    settings = []
    if family.control_labels and best.mask not in family.control_labels:
        numbers = sorted(map(grids.label_number, [*family.control_labels, best.mask]))
        settings.append(f"controls_at={','.join(f'{number:.12g}' for number in numbers)}")
    if REINIT not in family.controls:
        settings.append(f"controls={json.dumps([*family.controls, REINIT])}")
    overrides = [part for setting in settings for part in ("--set", f"families.{best.family}.{setting}")]
    return ["rounds" if family.rounds else "retrain", "--run", str(run.folder), *overrides]


def _power(tickets: Sequence[Any], delta: float) -> list[str]:
    """How far the differences of tickets that may match spread over replicates, and how many of these would be enough."""
    found = [group for group in grouping.standing(tickets) if group.deviation and not group.collapse]
    if not found:
        return []
    spread = math.sqrt(statistics.fmean(group.deviation**2 for group in found if group.deviation))
    count, needed = max(group.count for group in found), verdicts.replicates_needed(spread, delta)
    enough = "" if needed and needed <= count else f"; 80% takes {needed or 'more than a million'} replicates"
    return [
        f"With the spread found (a standard deviation of {spread * 100:.2f} points), {count} replicates call a ticket exactly "
        f"as good as {found[0].against} matching in {verdicts.power(count, spread, delta):.0%} of cases{enough}."
    ]


def _coarse(run: Run) -> list[str]:
    """A delta that is less than one validation image."""
    results = [replicate.dense.read_result() for replicate in run.replicates()]
    delta, images = run.recipe.delta, next((one.validation_images for one in results if one and one.validation_images), None)
    if not images or delta * images >= 1:
        return []
    return [
        f"{delta * 100:g} points, the most that a matching ticket may lose, are {delta * images:.2f} of one of the {images} "
        "validation images: verdicts need many replicates here, more images, or a larger `delta`."
    ]


def _worth(run: Run, rows: pandas.DataFrame, best: Any) -> str:
    """The accuracy of a ticket, and its compressed size compared with the dense network's (if their files are intact)."""
    kind = (TICKET, best.family, best.mask, best.rewind_step)
    done = (row for row in frame.each(rows) if row.status == "done")
    ticket = next(row for row in done if (row.variant, row.family, row.mask, row.rewind_step) == kind)
    replicate = run.replicate(ticket.replicate)
    reached = f"It reaches {best.test_accuracy:.2%} on test images"
    try:
        networks = run.network_in(ticket.folder).final, replicate.snapshot(lookup.end(replicate))
        small, whole = (_compressed(Lineage(replicate), path) for path in networks)
    except InputError:
        return f"{reached}."
    return f"{reached}; compressed it takes {small / 1000:,.0f} kB, the dense network {whole / 1000:,.0f}."


def _compressed(lineage: Lineage, path: Path) -> int:
    """The bytes of a network's weights and statistics after gzip."""
    lineage.check(path)
    state = store.load_state(path, optimizer=False)
    return len(gzip.compress(b"".join(array.tobytes() for array in (state.weights | state.statistics).values())))


def _runs(count: int) -> str:
    return "one run" if count == 1 else f"mean of {count} runs"
