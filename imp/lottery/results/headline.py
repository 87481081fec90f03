"""The answer of a run in sentences: what its dense network reaches, down to which density tickets match it, what their controls
say of that, and how sure it is."""

import gzip
import json
import math
import shlex
import statistics
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from data_prep.errors import InputError
from lottery import grids, store, verdicts
from lottery.lineage import Lineage
from lottery.results import grouping, listing, lookup
from lottery.results.grouping import Group, mask_name
from lottery.results.listing import Row
from lottery.run import Run


def headline(groups: Sequence[Group], run: Run, rows: Sequence[Row]) -> list[str]:
    """The answer in sentences: what the dense network reaches, and for each series of tickets the sparsest that matches."""
    dense = next(group for group in groups if group.variant == "dense")
    sentences = [
        f"The dense network reaches {dense.validation_accuracy:.2%} on validation images and "
        f"{dense.test_accuracy:.2%} on test images ({_runs(dense.count)})."
    ]
    for key, tickets in grouping.series(groups).items():
        best = grouping.sparsest_matching(tickets)
        found = _found(tickets, best, groups, run, rows) if best else [_no_answer(tickets)]
        found += [*_late(tickets), *_power(tickets, run.recipe.delta)]
        sentences.append(f"{_series_name(*key)}, {' '.join(found)}")
    missing = sum(group.planned - group.count for group in groups)
    if missing:
        sentences.append(f"{missing} of {sum(group.planned for group in groups)} networks have no result: see `imp status`.")
    if dense.planned < verdicts.LEAST_REPLICATES:
        least = verdicts.LEAST_REPLICATES
        sentences.append(
            f"Verdicts need {least} replicates, this run has {dense.planned}: "
            f"`imp run --run {shlex.quote(str(run.folder))} --set replicates={least}` adds the others."
        )
    return [*sentences, *_coarse(run)]


def _series_name(method: str, rewind: str) -> str:
    return f"Rewound to {rewind}" if method == "oneshot" else f"In rounds of {method} from {rewind}"


def _found(tickets: Sequence[Group], best: Group, groups: Sequence[Group], run: Run, rows: Sequence[Row]) -> list[str]:
    """What the headline's ticket is, what its control says of it, and which denser ones are undecided."""
    open_ones = [group for group in tickets[: tickets.index(best)] if group.verdict == "undecided"]
    return [
        f"the sparsest matching ticket keeps {_share(best)}.",
        _worth(run, rows, best),
        _control(groups, best, run),
        *([f"Denser ones that are undecided: {_places(open_ones)}."] if open_ones else []),
    ]


def _no_answer(tickets: Sequence[Group]) -> str:
    standing = grouping.standing(tickets)
    level = [group for group in standing if group.difference >= 0]
    if level:
        return f"undecided; the sparsest ticket at or above {level[-1].against} so far keeps {_share(level[-1])}."
    if standing:
        return f"undecided; no ticket's mean is at or above that of {standing[0].against} so far."
    return f"not even the densest ticket, of {_place(tickets[0])}, matches."


def _late(tickets: Sequence[Group]) -> list[str]:
    """Tickets that match beyond one that does not."""
    beyond = tickets[len(grouping.standing(tickets)) :]
    late = [group for group in beyond if group.verdict == "matching"]
    return [f"Not counted is what matches beyond {_place(beyond[0])}, which does not: {_places(late)}."] if late else []


def _places(tickets: Sequence[Group]) -> str:
    return ", ".join(map(_place, tickets))


def _place(group: Group) -> str:
    """Its density; where none of its networks has a result, its mask."""
    return mask_name(group.quantile, group.method, group.level) if math.isnan(group.density) else f"{group.density:.2%}"


def _share(group: Group) -> str:
    return f"{group.density:.2%} of the prunable weights ({group.difference * 100:+.2f} points against {group.against})"


def _control(groups: Sequence[Group], best: Group, run: Run) -> str:
    """Whether a matching ticket wins: its mask with fresh weights must not do as well."""
    step = 0 if best.method == "oneshot" else best.rewind_step
    place = ("reinit", best.method, best.quantile, best.level, step)
    reinit = next((group for group in groups if tuple(getattr(group, key) for key in _KEYS) == place), None)
    name = "its control `reinit` (its mask, fresh weights)"
    if reinit is None or not reinit.count:
        command = shlex.join(["imp", *_training_reinit(best, run)])
        return f"Whether it wins is open: {name} is not trained, which `{command}` does."
    points = f"{reinit.difference * 100:+.2f} points"
    return {
        "not matching": f"It wins: {name} does not match ({points}).",
        "matching": f"It does not win: {name} matches too ({points}), so that its own weights do not matter.",
    }.get(reinit.verdict or "", f"Whether it wins is open: {name} is undecided ({points}).")


def _training_reinit(best: Group, run: Run) -> list[str]:
    """What `imp` is told to train the control `reinit` of a ticket."""
    retrain, rounds = run.recipe.retrain, run.recipe.rounds
    if best.quantile is not None:
        stage, controls, key = "retrain", retrain.controls, "retrain.control_quantiles"
        asked, own = grids.parse_quantiles(retrain.control_quantiles), Fraction(str(best.quantile))
    else:
        stage, controls, key = "rounds", rounds.controls, "rounds.control_levels"
        asked, own = [Fraction(level) for level in grids.parse_levels(rounds.control_levels)], Fraction(best.level or 0)
    settings = []
    if asked and own not in asked:
        settings.append(f"{key}={','.join(map(grids.quantile_name, sorted([*asked, own])))}")
    if "reinit" not in controls:
        settings.append(f"{stage}.controls={json.dumps([*controls, 'reinit'])}")
    return [stage, "--run", str(run.folder), *(part for setting in settings for part in ("--set", setting))]


def _power(tickets: Sequence[Group], delta: float) -> list[str]:
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
    delta, images = run.recipe.delta, listing.validation_images(run)
    if not images or delta * images >= 1:
        return []
    return [
        f"{delta * 100:g} points, which a ticket may be below dense, are {delta * images:.2f} of one of the {images} "
        "validation images: verdicts take many replicates here, more images, or a larger `delta`."
    ]


def _worth(run: Run, rows: Sequence[Row], best: Group) -> str:
    """What a ticket reaches, and its size beside the dense network's (where nothing happened to their weights)."""
    done = [row for row in rows if row["status"] == "done"]
    place = (best.variant, best.method, best.quantile, best.level, best.rewind_step)
    ticket = next(row for row in done if tuple(row[key] for key in _KEYS) == place)
    replicate = run.replicate(ticket["replicate"])
    reached = f"It reaches {best.test_accuracy:.2%} on test images"
    try:
        networks = run.network_in(ticket["folder"]).final, replicate.snapshot(lookup.end(replicate))
        small, whole = (_compressed(Lineage(replicate), path) for path in networks)
    except InputError:
        return f"{reached}."
    return f"{reached}; compressed it takes {small / 1000:,.0f} kB, the dense network {whole / 1000:,.0f}."


_KEYS = ("variant", "method", "quantile", "level", "rewind_step")


def _compressed(lineage: Lineage, path: Path) -> int:
    """The bytes of a network's weights and statistics after gzip."""
    lineage.check(path)
    state = store.load_state(path, slots=False)
    return len(gzip.compress(b"".join(array.tobytes() for array in (state.weights | state.statistics).values())))


def _runs(count: int) -> str:
    return "one run" if count == 1 else f"mean of {count} runs"
