"""The answer of a run in sentences: what its dense network reaches, the sparsest tickets that match it, their controls, and
how sure the answer is."""

import json
import math
import shlex
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas

from lottery.experiment import grids
from lottery.experiment.graph import DENSE
from lottery.experiment.grids import Grid
from lottery.experiment.rule import LEAST_REPLICATES
from lottery.results import criteria, frame, grouping
from lottery.rundir import wording
from lottery.rundir.run import Run

REINIT = "reinit"
FAR_BELOW = 0.1  # the median of the dense networks: one there failed to learn


def headline(groups: pandas.DataFrame, run: Run, rows: pandas.DataFrame) -> list[str]:
    """The answer in sentences: what the dense network reaches, and for each series of tickets the sparsest that matches,
    and whether its criterion is more than an allocation."""
    kinds, example, value = frame.each(groups), wording.example(run.metric), partial(wording.value, run.metric)
    dense = next(group for group in kinds if group.variant == DENSE)
    sentences = [
        f"The dense network reaches {value(dense.validation)} on validation {example}s and {value(dense.test)} on test "
        f"{example}s ({'one run' if dense.count == 1 else f'mean of {dense.count} runs'}{_failed(rows, run.metric)})."
    ]
    of_criteria = {place: criteria.sentence(one) for place, one in criteria.series(criteria.checks(run, rows))}
    for (name, rewind), tickets in grouping.tickets(groups).items():
        alone = len(run.recipe.families) == 1 and not run.recipe.families[name].rounds
        place = f"Rewound to {rewind}" if alone else f"Family {name}, rewound to {rewind}"
        told = of_criteria.get((name, rewind))
        sentences.append(f"{place}: {' '.join([*_answer(tickets, kinds, run), *([told] if told else [])])}")
    missing = sum(group.planned - group.count for group in kinds)
    if missing:
        sentences.append(f"{missing} of {sum(group.planned for group in kinds)} networks have no result: see `imp status`.")
    if dense.planned < LEAST_REPLICATES:
        sentences.append(
            f"Verdicts need {LEAST_REPLICATES} replicates, this run has {dense.planned}: "
            f"`imp run --run {shlex.quote(str(run.folder))} --set replicates={LEAST_REPLICATES}` adds the others."
        )
    results = [replicate.dense.read_result() for replicate in run.replicates()]
    delta, count = run.recipe.delta, next((one.validation_images for one in results if one and one.validation_images), None)
    if count and delta * count < 1:
        sentences.append(
            f"The margin of {delta * 100:g} points is {delta * count:.2f} of one of the {count} validation {example}s: "
            f"verdicts need many replicates here, more {example}s, or a larger `delta`."
        )
    return sentences


def _failed(rows: pandas.DataFrame, metric: str) -> str:
    """The dense networks that failed to learn, beside those of other replicates that did."""
    dense = rows[(rows["variant"] == DENSE) & rows["validation"].notna()]
    failed = frame.each(dense[dense["validation"] < dense["validation"].median() - FAR_BELOW])
    if not failed:
        return ""
    first, *others = (wording.value(metric, row.validation) for row in failed)
    told = [f"replicate {failed[0].replicate}'s dense network reached {first}"]
    told += [f"replicate {row.replicate}'s {reached}" for row, reached in zip(failed[1:], others, strict=True)]
    return f", but {', '.join(told)}: {'it makes' if len(failed) == 1 else 'they make'} verdicts unsure"


def _answer(tickets: Sequence[Any], groups: Sequence[Any], run: Run) -> Iterator[str]:
    """What is said of one series: the ticket of the headline, what its control says about it, the denser ones that are
    undecided, tickets that match beyond one that does not, and how many replicates would be enough."""
    rule, standing, best = run.rule, grouping.standing(tickets), grouping.sparsest_matching(tickets)
    level = [group for group in standing if group.difference is not None and group.difference >= 0]
    if best:
        denser = [_place(group) for group in tickets[: tickets.index(best)] if group.verdict.is_open]
        yield f"the sparsest {best.verdict} ticket keeps {_share(best)}."
        yield _worth(groups, best, run.metric)
        if best.image_verdict:
            bounds = f"{best.image_low * 100:+.2f} .. {best.image_high * 100:+.2f} points"
            yield f"Over other images too it {best.image_verdict.verb} ({bounds})."
        yield _control(groups, best, run)
        if denser:
            yield f"Denser tickets that are {rule.undecided}: {', '.join(denser)}."
    elif level:
        yield f"{rule.undecided}; the sparsest ticket at or above {level[-1].against} so far keeps {_share(level[-1])}."
    elif standing:
        yield f"{rule.undecided}; no ticket's mean is at or above that of {standing[0].against} so far."
    else:
        yield f"not even the densest ticket, of {_place(tickets[0])}, matches."
    worse = [group for group in tickets if group.verdict == rule.worse]
    if worse:
        networks = "this dense network" if max(group.count for group in worse) == 1 else "these dense networks"
        seeds = "nothing is known" if all(group.low is None for group in worse) else "it is not shown"
        yield f"Worse than {networks} on these images: {', '.join(map(_place, worse))}; of other seeds {seeds}."
    late = [_place(group) for group in tickets[len(standing) :] if group.verdict.is_matching]
    if late:
        yield f"Not counted, as {_place(tickets[len(standing)])} does not match: the sparser {', '.join(late)}."
    spread_out = [group for group in standing if group.deviation and not group.collapse]
    if spread_out:
        spread = math.sqrt(statistics.fmean(group.deviation**2 for group in spread_out))
        yield rule.foretold(spread, max(group.count for group in spread_out), spread_out[0].against)


def _place(group: Any) -> str:
    """The density of a group, or its mask if none of its networks has a result."""
    return f"{group.family} {group.mask}" if group.density is None else f"{group.density:.2%}"


def _share(group: Any) -> str:
    return f"{group.density:.2%} of the prunable weights ({group.difference * 100:+.2f} points against {group.against})"


def _control(groups: Sequence[Any], best: Any, run: Run) -> str:
    """Whether a matching ticket wins: the same mask with fresh weights must not match."""
    family = run.recipe.families[best.family]
    place = (REINIT, best.family, best.mask, 0 if REINIT in family.shared_controls else best.rewind_step)
    reinit = next((one for one in groups if (one.variant, one.family, one.mask, one.rewind_step) == place), None)
    name = "its control `reinit` (its mask, fresh weights)"
    if reinit and reinit.count:
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
