"""The answer of a run in sentences: what its dense network reaches, the sparsest tickets that match it, their controls, and
how sure the answer is."""

import dataclasses
import json
import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas

from lottery.base.progress import count_of
from lottery.experiment import grids
from lottery.experiment.graph import DENSE
from lottery.experiment.grids import Grid
from lottery.experiment.recipe import Data
from lottery.experiment.rule import LEAST_REPLICATES
from lottery.results import cells, criteria, frame, grouping
from lottery.rundir import wording
from lottery.rundir.run import Run

REINIT = "reinit"
FAR_BELOW = 0.1  # the median of the dense networks: one there failed to learn


@dataclasses.dataclass(frozen=True)
class Headline:
    """The answer in sentences, in the order in which they are told."""

    failed: list[str]
    """The dense networks that failed, if any."""
    missing: list[str]
    """How many networks have no result yet, if any."""
    found: list[str]
    """The sparsest ticket that matches, of all series, in a sentence; none before a ticket is trained."""
    dense: str
    """What the dense network reaches."""
    margin: str
    """Which tickets match it."""
    series: list[str]
    """For each series of tickets (family, rewind point): the sparsest that matches, its controls, and how sure that is."""
    notes: list[str]
    """What is missing, and what stands in the way of verdicts."""

    @property
    def opening(self) -> list[str]:
        """What stands before the table of verdicts."""
        return [*self.failed, *self.missing, *self.found, f"{self.dense} {self.margin}".rstrip()]

    @property
    def sentences(self) -> list[str]:
        return [*self.failed, self.dense, *self.series, *self.missing, *self.notes]


def headline(groups: pandas.DataFrame, checks: pandas.DataFrame, run: Run, rows: pandas.DataFrame) -> Headline:
    """The answer of a run by its `rows`, their `groups`, and the `checks` of criteria."""
    kinds, example, value = frame.each(groups), wording.example(run.metric), partial(wording.value, run.metric)
    dense = next(group for group in kinds if group.variant == DENSE)
    reached = (
        f"The dense network reaches {value(dense.validation)} on validation {example}s and {value(dense.test)} on test "
        f"{example}s ({'one run' if dense.count == 1 else f'mean of {dense.count} runs'})."
    )
    reached += "".join(f" {told}" for told in _trained_on(run.recipe.data))
    margin = f"A ticket matches if it is at most {run.rule.words['margin']} points worse."
    of_criteria, series = {place: criteria.sentence(one) for place, one in criteria.series(checks)}, []
    for (name, rewind), tickets in grouping.tickets(groups).items():
        alone = len(run.recipe.families) == 1 and not run.recipe.families[name].rounds
        place = f"Rewound to {rewind}" if alone else f"Family {name}, rewound to {rewind}"
        told = of_criteria.get((name, rewind))
        series.append(f"{place}: {' '.join([*_answer(tickets, kinds, run), *([told] if told else [])])}")
    opening = [*_failed(rows, run.metric)], [*_missing(kinds)], [*_found(grouping.tickets(groups), kinds, run)]
    return Headline(*opening, reached, margin, series, [*_notes(dense, run), *_strangers(rows)])


def _trained_on(data: Data) -> Iterator[str]:
    """What is special about the training images."""
    if noise := data.label_noise:
        yield f"It was trained with label noise: {100 * noise:.4g}% of the training labels are turned into another class."
    if amount := data.hardest or data.easiest:
        kind, many = "hardest" if data.hardest else "easiest", f"{100 * amount:.4g}%" if amount < 1 else f"{amount:,.0f}"
        yield f"It was trained on the {kind} {many} of the training images alone, by {Path(data.scores).name}."


def _failed(rows: pandas.DataFrame, metric: str) -> Iterator[str]:
    """The dense networks that were not trained to their end, or failed to learn, where those of other replicates did."""
    dense = rows[rows["variant"] == DENSE]
    for row in frame.each(dense[dense["status"].isin(["failed", "diverged"])]):
        yield f"The dense network of replicate {row.replicate} {row.status} ({row.reason}): this replicate has no tickets."
    for row in frame.each(dense[dense["validation"] < dense["validation"].median() - FAR_BELOW]):
        yield (
            f"The dense network of replicate {row.replicate} failed to learn ({wording.value(metric, row.validation)}): it "
            "makes verdicts unsure."
        )


def _missing(kinds: Sequence[Any]) -> Iterator[str]:
    missing = sum(group.planned - group.count for group in kinds)
    if missing:
        yield f"Not finished: {missing} of {sum(group.planned for group in kinds)} networks have no result (see `imp status`)."


def _found(series: Mapping[tuple[str, str], Sequence[Any]], groups: Sequence[Any], run: Run) -> Iterator[str]:
    """The sparsest ticket of all series that matches, and whether it wins."""
    if not any(group.count for tickets in series.values() for group in tickets):
        return
    matching = [best for tickets in series.values() if (best := grouping.sparsest_matching(tickets))]
    if not matching:
        is_open = any(map(grouping.standing, series.values()))
        yield "No ticket is known to match yet." if is_open else "No ticket matches."
        return
    best = min(matching, key=lambda group: group.density)
    where = f" (family {best.family}, rewound to {best.rewind})" if len(series) > 1 else ""
    reinit = reinit_of(groups, best, run)
    wins = "The same mask with fresh weights does not match: the ticket wins."
    if not reinit or reinit.verdict.is_open:
        wins = "Whether the same mask with fresh weights matches too is open."
    elif reinit.verdict.is_matching:
        wins = "The same mask with fresh weights matches too."
    against = "the dense network" if best.against == DENSE else best.against
    yield f"The sparsest ticket that matches {against} keeps {best.density:.2%} of the weights{where}. {wins}"


def _notes(dense: Any, run: Run) -> Iterator[str]:
    example = wording.example(run.metric)
    if dense.planned < LEAST_REPLICATES:
        yield (
            f"Verdicts need {LEAST_REPLICATES} replicates, this run has {dense.planned}: "
            f"`imp run --run {shlex.quote(str(run.folder))} --set replicates={LEAST_REPLICATES}` adds the others."
        )
    results = [replicate.dense.read_result() for replicate in run.replicates()]
    delta, count = run.recipe.delta, next((one.validation_images for one in results if one and one.validation_images), None)
    if count and delta * count < 1:
        yield (
            f"One of {count} validation {example}s is {100 / count:.2g} points, more than the margin of {delta * 100:g}: "
            f"verdicts need many replicates here, more {example}s, or a larger `delta`."
        )


def _strangers(rows: pandas.DataFrame) -> Iterator[str]:
    """Sentences about networks that were not made like their replicate's dense network."""
    stale = int((rows["status"] == "stale").sum())
    dense = rows[rows["variant"] == DENSE].set_index("replicate")["made_by"]
    done = rows[rows["status"] == "done"]
    others = done[done["made_by"] != done["replicate"].map(dense)]
    if stale:
        told = count_of(stale, "network")
        yield f"Left out, as they do not belong to the dense network beside them: {told} (see `imp verify`)."
    if len(others):
        yield (
            f"Trained by other versions or another kind of device than the dense network: {count_of(len(others), 'network')} "
            f"({others['made_by'].iloc[0]}; the column made_by of summary.csv). Differences may come from that."
        )


def _answer(tickets: Sequence[Any], groups: Sequence[Any], run: Run) -> Iterator[str]:
    """What is said of one series: the ticket of the headline, what its control says about it, the denser ones that are
    undecided, tickets that match beyond one that does not, and how many replicates would be enough."""
    rule, standing, best = run.rule, grouping.standing(tickets), grouping.sparsest_matching(tickets)
    if best:
        denser = [place(group) for group in tickets[: tickets.index(best)] if group.verdict.is_open]
        yield f"the sparsest {best.verdict} ticket keeps {_share(best)}."
        yield _worth(groups, best, run.metric)
        if best.image_verdict:
            bounds = f"{best.image_low * 100:+.2f} .. {best.image_high * 100:+.2f} points"
            yield f"Counting other images too, it {best.image_verdict.verb} ({bounds})."
        yield _control(groups, best, run)
        if denser:
            yield f"Denser tickets that are {rule.undecided}: {cells.listed(denser)}."
    elif standing:
        yield f"{rule.undecided}."
        if nearest := grouping.nearest(tickets, rule.delta):
            within = f"within {rule.words['margin']} points of {nearest.against}"
            yield f"So far the sparsest ticket {within} keeps {_share(nearest)}."
        differences = [group.difference for group in standing if group.difference is not None]
        if differences and max(differences) < 0:
            yield f"So far every ticket is less accurate than {standing[0].against} on average."
    else:
        yield f"not even the densest ticket, of {place(tickets[0])}, matches."
    yield from worse_here(tickets, run)
    late = [place(group) for group in tickets[len(standing) :] if group.verdict.is_matching]
    if late:
        yield f"Not counted, as {place(tickets[len(standing)])} does not match: the sparser {cells.listed(late)}."
    spread_out = [group for group in standing if group.deviation and not group.collapse]
    if spread_out:
        spread = math.sqrt(statistics.fmean(group.deviation**2 for group in spread_out))
        yield rule.foretold(spread, max(group.count for group in spread_out))


def worse_here(tickets: Sequence[Any], run: Run) -> Iterator[str]:
    """Of a series, the tickets that are known to be worse on these images alone."""
    worse = [group for group in tickets if group.verdict == run.rule.worse]
    if worse:
        seeds = "nothing is known" if all(group.low is None for group in worse) else "it is not shown"
        densities = cells.listed([place(group) for group in worse])
        yield f"At {densities} density, worse than {worse[0].against} on these images; for other seeds {seeds}."


def place(group: Any) -> str:
    """The density of a group, or its mask if none of its networks has a result."""
    return f"{group.family} {group.mask}" if group.density is None else f"{group.density:.2%}"


def _share(group: Any) -> str:
    return f"{group.density:.2%} of the prunable weights ({group.difference * 100:+.2f} points from {group.against})"


def reinit_of(groups: Sequence[Any], ticket: Any, run: Run) -> Any | None:
    """The control `reinit` of a ticket: None where none of its networks has a result."""
    family = run.recipe.families[ticket.family]
    place = (REINIT, ticket.family, ticket.mask, 0 if REINIT in family.shared_controls else ticket.rewind_step)
    found = next((one for one in groups if (one.variant, one.family, one.mask, one.rewind_step) == place), None)
    return found if found and found.count else None


def _control(groups: Sequence[Any], best: Any, run: Run) -> str:
    """Whether a matching ticket wins: the same mask with fresh weights must not match."""
    family, reinit = run.recipe.families[best.family], reinit_of(groups, best, run)
    name = "its control `reinit` (its mask, fresh weights)"
    if reinit:
        points, verdict = f"{reinit.difference * 100:+.2f} points", reinit.verdict
        if verdict.is_failing:
            return f"It wins: {name} {verdict.verb} ({points})."
        if verdict.is_matching:
            return f"It does not win: {name} {verdict.verb} too ({points}), so its own weights do not matter."
        aside = f", but {run.rule.undecided} over seeds" if verdict == run.rule.worse else ""
        return f"Whether it wins is open: {name} {verdict.verb} ({points}){aside}."
    settings, mask = [], grids.of_label(best.mask)
    if family.controls_at and mask not in family.controls_at:
        settings.append(f"controls_at={Grid.of(sorted([*family.controls_at, mask]))}")
    if REINIT not in family.controls:
        settings.append(f"controls={json.dumps([*family.controls, REINIT])}")
    overrides = [part for setting in settings for part in ("--set", f"families.{best.family}.{setting}")]
    command = shlex.join(["imp", "rounds" if family.rounds else "retrain", "--run", str(run.folder), *overrides])
    return f"Whether it wins is open: {name} is not trained; `{command}` trains it."


def _worth(groups: Sequence[Any], best: Any, metric: str) -> str:
    """What a ticket reaches, and its compressed size and MACs compared with the dense network's."""
    dense = next(group for group in groups if group.variant == DENSE)
    reached = f"It reaches {wording.value(metric, best.test)} on test {wording.example(metric)}s"
    if best.gzip_bytes and dense.gzip_bytes:
        reached += (
            f"; compressed it takes {best.gzip_bytes / 1000:,.0f} kB (the dense network {dense.gzip_bytes / 1000:,.0f} kB)"
        )
    if best.speedup:
        reached += f"; in theory it needs {best.speedup:.3g} times fewer multiply-accumulates"
    return f"{reached}."
