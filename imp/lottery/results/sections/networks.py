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
    "at the step of lowest validation loss. In families of `lr` and `finetune`, networks are compared with the dense network "
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
        marks=[_mark(line, run) for line in lines],
    )


def table(findings: Findings) -> list[Cells]:
    """The groups; if many of them have no trained network, these are left out."""
    groups, rows = findings.groups, findings.rows
    begun = groups.merge(rows.loc[rows["status"] != "missing", frame.KIND].drop_duplicates(), on=frame.KIND)
    shown = groups if len(groups) - len(begun) <= FEW else begun
    return [_line(group, findings.run.metric) for group in frame.each(shown)]


def _mark(line: Cells, run: Run) -> str:
    """The class of a line in the page, by its verdict."""
    if not line["verdict"]:
        return line["network"]
    verdict = next(verdict for verdict in run.rule.verdicts if verdict == line["verdict"])
    if verdict.is_open:
        return "here" if verdict == run.rule.worse else "open"
    return "matching" if verdict.is_matching else "failing"


def _line(group: Any, metric: str) -> Cells:
    over_images = f"{interval(None, group.image_low, group.image_high)} {group.image_verdict or ''}".strip()
    return {
        **cells.place(group),
        "runs": cells.runs(group),
        "validation": points(group.validation) + points(group.spread, " ± {:.2f}"),
        "test": points(group.test) + points(group.test_spread, " ± {:.2f}"),
        "difference": interval(group.difference, group.low, group.high),
        "verdict": group.verdict or "",
        **({"incl. other images": over_images} if metric == wording.ACCURACY else {}),
        "sd": points(group.deviation),
        "replicates needed": points(group.needed, "{:,}", 1),
        "compared with": "" if group.difference is None else group.against,
        "step of lowest loss": points(group.least_validation_loss_step, "{:.0f}", 1),
        "test at that step": points(group.test_there),
    }


def difference_explained(run: Run) -> str:
    """What the columns of differences mean."""
    return run.worded(run.rule.explained + (run.rule.explained_over_images if run.metric == wording.ACCURACY else ""))
