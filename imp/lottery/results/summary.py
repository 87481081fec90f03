"""A run in five lines."""

from functools import partial

from lottery.experiment.graph import DENSE, TICKET
from lottery.results import frame, grouping
from lottery.results.findings import Findings
from lottery.rundir import wording


def summary(findings: Findings) -> dict[str, str]:
    """How far a run is, what its dense network reaches, and the sparsest ticket that matches, each by its name."""
    groups, metric = findings.groups, findings.run.metric
    value, example = partial(wording.value, metric), wording.example(metric)
    (dense,) = frame.each(groups[groups["variant"] == DENSE])
    tickets = groups[groups["variant"] == TICKET]
    best = [found for series in grouping.tickets(groups).values() if (found := grouping.sparsest_matching(series))]
    sparsest = min(best, key=lambda group: group.density, default=None)
    done, planned = tickets["count"].sum(), tickets["planned"].sum()
    reached, families = "not trained yet", ", ".join(findings.run.recipe.families)
    if dense.count:
        reached = f"{value(dense.validation)} on validation {example}s, {value(dense.test)} on test {example}s"
    return {
        "replicates": f"{dense.count} of {dense.planned} trained",
        "dense": reached,
        "tickets": f"{f'{done} of {planned} trained' if planned else 'none yet'} ({families})",
        "sparsest matching": f"{sparsest.density:.2%} ({sparsest.family} {sparsest.mask}, rewound to {sparsest.rewind})"
        if sparsest
        else "none so far",
    }


def five_lines(findings: Findings) -> str:
    """The same behind the run's name, a line each."""
    run = findings.run
    return "\n".join([f"{run.recipe.name} in {run.folder}", *(f"{name}: {fact}" for name, fact in summary(findings).items())])
