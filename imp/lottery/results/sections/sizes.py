"""What tickets cost to compute and to store."""

from typing import Any

from lottery.experiment.graph import DENSE, TICKET
from lottery.pruning.costs import BYTES
from lottery.results import cells, frame
from lottery.results.block import Block, Cells
from lottery.results.findings import Findings
from lottery.results.tables import points

EXPLAINED = (
    "MACs: multiply-accumulates of the kept weights for one {example}; biases, BatchNorm and activations are not counted. "
    "Speed-up: those of the dense network divided by these. This is theory: zeros take as long as other numbers, unless the "
    "program that runs the network skips them. kB: all weights and statistics as float32, zeros included; the same after "
    "gzip. Means over replicates. Controls are in groups.csv, MACs by layer in layers.csv."
)
FORMS = dict(zip(BYTES, ("float32, kB", "gzip, kB"), strict=True))


def section(findings: Findings) -> Block | None:
    groups = [group for group in frame.each(findings.groups) if group.gzip_bytes and group.variant in (DENSE, TICKET)]
    explained = findings.run.worded(EXPLAINED)
    return Block("sizes", "Size and arithmetic", table=[*map(_line, groups)], explained=explained) if groups else None


def _line(group: Any) -> Cells:
    return {
        **cells.place(group),
        "MACs": points(group.macs, "{:,.0f}", 1),
        "speed-up": points(group.speedup, "{:.3g}", 1),
        **{heading: points(getattr(group, name) / 1000, "{:,.1f}", 1) for name, heading in FORMS.items()},
    }
