"""The error barriers between rounds."""

from lottery.results import barriers
from lottery.results.block import Block
from lottery.results.findings import Findings


def section(findings: Findings) -> Block | None:
    found = barriers.groups(findings.run, findings.groups)
    if found.empty:
        return None
    return Block(
        "barriers",
        "Between rounds",
        [barriers.sentence(found)],
        table=[dict(zip(barriers.HEADINGS, line, strict=True)) for line in barriers.cells(found)],
        explained=findings.run.worded(barriers.EXPLAINED),
        frames={"barriers": found},
    )
