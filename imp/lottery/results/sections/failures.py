"""The networks that did not come to their end."""

from lottery.results import cells, frame
from lottery.results.block import Block
from lottery.results.findings import Findings


def section(findings: Findings) -> Block | None:
    rows = findings.rows
    failed = frame.each(rows[~rows["status"].isin(["done", "missing"])])
    told = [f"replicate {row.replicate}, {cells.title(row)}: {row.status}, {row.reason}" for row in failed]
    return Block("failures", "Failed or diverged", told) if told else None
