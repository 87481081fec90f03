"""The networks, group by group, and how far each is from what it is compared with."""

from typing import Any

from lottery.experiment import controls
from lottery.results import cells, frame
from lottery.results.block import Block, Cells
from lottery.results.findings import Findings
from lottery.results.tables import interval, points
from lottery.rundir import wording
from lottery.rundir.run import Run

FEW = 12  # groups without a result, which the table has room for
EXPLAINED = (
    "{Values} are those at the end of training, in per cent: means over runs ± one standard deviation. Networks are "
    "compared on validation {example}s, which were held out of training. Test {example}s are only reported: at the end, and "
    "where the validation loss was least. In families of `lr` and `finetune`, networks are compared with the dense network "
    "given the same extra training (`extended`). "
)


def section(findings: Findings) -> Block:
    run, lines = findings.run, table(findings)
    named = [controls.of(name) for family in run.recipe.families.values() for name in family.controls]
    told = "; ".join(f"`{name}`: {sentence}" for name, sentence in {one.name: one.sentence for one in named}.items())
    explained = run.worded(EXPLAINED + run.rule.sentence)
    paragraphs = [explained + (f" Controls: {told}." if told else ""), difference_explained(run)]
    if left := len(findings.groups) - len(lines):
        paragraphs.insert(0, f"{left} more have not been trained yet.")
    frames = {"summary": findings.rows, "groups": findings.groups}
    return Block(
        "networks",
        "Networks",
        table=lines,
        explained="\n\n".join(paragraphs),
        frames={name: frame.named(rows, run.metric) for name, rows in frames.items()},
        marks_verdicts=True,
    )


def table(findings: Findings) -> list[Cells]:
    """The groups; if many of them have no trained network, these are left out."""
    groups, rows = findings.groups, findings.rows
    begun = groups.merge(rows.loc[rows["status"] != "missing", frame.KIND].drop_duplicates(), on=frame.KIND)
    shown = groups if len(groups) - len(begun) <= FEW else begun
    return [_line(group, findings.run.metric) for group in frame.each(shown)]


def _line(group: Any, metric: str) -> Cells:
    over_images = f"{interval(None, group.image_low, group.image_high)} {group.image_verdict or ''}".strip()
    return {
        **cells.place(group),
        "runs": cells.runs(group),
        "validation": points(group.validation) + points(group.spread, " ± {:.2f}"),
        "test": points(group.test),
        "difference": interval(group.difference, group.low, group.high),
        "verdict": group.verdict or "",
        **({"over images too": over_images} if metric == wording.ACCURACY else {}),
        "sd": points(group.deviation),
        "for 80 %": points(group.needed, "{}", 1),
        "against": "" if group.difference is None else group.against,
        "least loss at": points(group.least_validation_loss_step, "{:.0f}", 1),
        "test there": points(group.test_there),
    }


def difference_explained(run: Run) -> str:
    """What the columns of differences mean."""
    return run.worded(run.rule.explained + (run.rule.explained_over_images if run.metric == wording.ACCURACY else ""))
