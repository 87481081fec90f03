"""What `imp bench` measured for this run."""

from lottery.results import measurements
from lottery.results.block import Block
from lottery.results.findings import Findings
from lottery.results.measurements import Measurement


def section(findings: Findings) -> Block | None:
    measured, problems = measurements.read(findings.run.bench)
    findings.left_out.extend(problems)
    return Block("measurements", "Measurements", parts=[*map(_part, measured)]) if measured else None


def _part(measured: Measurement) -> Block:
    table = [dict(zip(measured.columns.values(), line, strict=True)) for line in measured.cells]
    return Block(measured.name, measured.title, table=table, explained="\n\n".join(measured.remarks), picture=measured.picture)
