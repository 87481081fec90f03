"""What `imp bench` measured for this run."""

from lottery.results import measurements
from lottery.results.block import Block
from lottery.results.findings import Findings


def section(findings: Findings) -> Block | None:
    measured, problems = measurements.read(findings.run.bench)
    findings.left_out.extend(problems)
    return Block("measurements", "Measurements", parts=measured) if measured else None
