"""What was found, at a glance: a line for each series of tickets (family, rewind point)."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas

from lottery.experiment.graph import DENSE
from lottery.experiment.rule import LEAST_REPLICATES
from lottery.results import cells, criteria, frame, grouping
from lottery.results.block import Block, Cells
from lottery.results.findings import Findings
from lottery.results.headline import REINIT, place, reinit_of, worse_here
from lottery.results.sections import ranking
from lottery.results.tables import interval, points

YES, NO, OPEN = "yes", "no", "open"
CONTROLS = (REINIT, criteria.SHUFFLE)
EXPLAINED = (
    " It wins if it matches and `reinit`, the same mask with fresh weights, does not. `shuffle` has the same weights under the "
    "mask shuffled within each layer. Differences are of validation {metric}, in points; those from controls have {intervals}."
)
NEEDED = 1000  # replicates: more are as good as never


def section(findings: Findings) -> Block | None:
    rows = verdicts(findings)
    if rows.empty:
        return None
    ranked = ranking.sentence(findings)
    return Block(
        "verdicts",
        "What was found",
        [ranked] if ranked else [],
        table=[_line(row) for row in frame.each(rows)],
        explained="\n\n".join([*findings.headline.notes, findings.run.worded(findings.run.rule.sentence + EXPLAINED)]),
        frames={"verdicts": rows},
        marks=rows["mark"].tolist(),
    )


def verdicts(findings: Findings) -> pandas.DataFrame:
    """A row for each series: its sparsest matching ticket, or else the one that is nearest to it, against the dense network and
    its controls."""
    contrasts = findings.contrasts[findings.contrasts["figure"] == "validation"]
    against = {(row.family, row.mask, row.rewind, row.against): row for row in frame.each(contrasts)}
    found = {place: rows[0].series_verdict for place, rows in criteria.series(findings.checks)}
    return pandas.DataFrame(
        _row(findings, tickets, against, found.get(place)) for place, tickets in grouping.tickets(findings.groups).items()
    )


def _row(findings: Findings, tickets: Sequence[Any], against: Mapping[Any, Any], criterion: str | None) -> dict[str, Any]:
    run, standing = findings.run, grouping.standing(tickets)
    best = grouping.sparsest_matching(tickets)
    trained = next((group for group in tickets if group.difference is not None), tickets[0])
    shown = best or grouping.nearest(tickets, run.rule.delta) or trained
    reinit = reinit_of(frame.each(findings.groups), shown, run)
    wins = OPEN if standing else NO
    if best and reinit and not reinit.verdict.is_open:
        wins = YES if reinit.verdict.is_failing else NO
    meaning = _meaning(best, standing, reinit, wins, findings.headline.failed)
    here = " ".join(worse_here(tickets, run))
    row = {"family": shown.family, "rewind": shown.rewind, "mask": shown.mask, "density": shown.density}
    row |= {name: getattr(shown, name) for name in ("verdict", "against", "difference", "low", "high", "count", "planned")}
    for control in CONTROLS:
        contrast = against.get((shown.family, shown.mask, shown.rewind, control))
        row |= {control: contrast and contrast.mean, f"{control}_low": contrast and contrast.low}
        row |= {f"{control}_high": contrast and contrast.high}
    return row | {
        "wins": wins,
        "criterion": criterion,
        "meaning": " ".join(filter(None, (meaning, _criterion(criterion), here))),
        "needed": shown.needed,
        "sparsest": _sparsest(best, shown, standing),
        "mark": "winning" if wins == YES else "matching" if best else "here" if here else "open" if standing else "failing",
    }


def _sparsest(best: Any, shown: Any, standing: Sequence[Any]) -> str:
    if best:
        return place(best)
    if shown.density is None:
        return "none yet"
    return f"none{' yet' if standing else ''}: {place(shown)} {shown.verdict.verb}"


def _meaning(best: Any, standing: Sequence[Any], reinit: Any, wins: str, failed: Sequence[str]) -> str:
    if not standing:
        return "No ticket matches."
    if not best:
        if standing[0].planned < LEAST_REPLICATES:
            return f"Not decided: that takes at least {LEAST_REPLICATES} replicates."
        return "Not decided: a dense network failed." if failed else "Not decided yet."
    if wins == YES:
        return "The same mask with fresh weights does not match."
    if wins == NO:
        return "The same mask with fresh weights matches too: the ticket's own weights do not matter."
    return f"Whether it wins is open: `{REINIT}` {reinit.verdict.verb if reinit else 'is not trained'}."


def _criterion(verdict: str | None) -> str:
    return {
        criteria.MORE: "Which weights are kept matters.",
        criteria.ONLY: "Which weights are kept does not matter, only how many in each layer.",
    }.get(verdict or "", "")


def _line(row: Any) -> Cells:
    from_other = "" if row.against in (None, DENSE) else f" from {row.against}"
    return {
        "family": row.family,
        "rewound to": row.rewind,
        "sparsest match, density": row.sparsest,
        "wins": row.wins,
        "ticket − dense": interval(row.difference, row.low, row.high) + (from_other if row.difference is not None else ""),
        **{f"ticket − {name}": _against(row, name) for name in CONTROLS},
        "what that means": row.meaning,
        "replicates": cells.runs(row),
        "replicates needed": f"over {NEEDED:,}" if (row.needed or 0) > NEEDED else points(row.needed, "{:,.0f}", 1),
    }


def _against(row: Any, control: str) -> str:
    return interval(*(getattr(row, name) for name in (control, f"{control}_low", f"{control}_high")))
