"""The masks that have collapsed."""

from lottery.results import cells, frame
from lottery.results.block import Block
from lottery.results.findings import Findings


def section(findings: Findings) -> Block | None:
    least = findings.run.recipe.pruning.collapse
    warnings = [f"{cells.title(group)}: {group.collapse}" for group in frame.each(findings.groups) if group.collapse]
    explained = (
        "An exclamation mark beside a density, or beside what a ticket is compared with, means that a layer keeps less than a "
        f"certain share of its weights (`pruning.collapse`, {least:g}), or no path is left from the input to the output."
    )
    return Block("collapse", "Layer collapse", warnings, explained=explained) if warnings else None
