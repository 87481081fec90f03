"""How alike the answers of networks are, and how good where they are worst."""

from collections.abc import Mapping
from typing import Any

from lottery.experiment.graph import DENSE, TICKET
from lottery.results import cells, frame
from lottery.results.block import Block, Cells
from lottery.results.findings import Findings
from lottery.results.tables import interval, points

EXPLAINED = (
    "On test images, in per cent; means over replicates. agrees with dense: the share of images to which the network and the "
    "dense network of its replicate give the same answer, right or wrong. worst class: the accuracy on the class where it is "
    "lowest. calibration error: how far accuracy and confidence (the probability of the answer) are apart, in 15 bins of "
    "confidence, weighted by their images (the expected calibration error, ECE, of Guo et al. 2017, arXiv 1706.04599). "
    "difference: of tickets from the dense network, paired by replicate, with {intervals}; a star marks one that does not "
    "reach zero."
)


def section(findings: Findings) -> Block | None:
    contrasts = findings.contrasts
    against_dense = {
        (row.family, row.mask, row.rewind, row.figure): row for row in frame.each(contrasts[contrasts["against"] == DENSE])
    }
    known = [group for group in frame.each(findings.groups) if group.worst_class_accuracy is not None]
    table = [_line(group, against_dense) for group in known]
    return (
        Block("answers", "Agreement, worst class, calibration", table=table, explained=findings.run.worded(EXPLAINED))
        if table
        else None
    )


def _line(group: Any, against_dense: Mapping[tuple[Any, ...], Any]) -> Cells:
    """`against_dense` has the contrasts of tickets with the dense network, by family, mask, rewind point and figure."""

    def compared(figure: str) -> str:
        row = against_dense.get((group.family, group.mask, group.rewind, figure)) if group.variant == TICKET else None
        return "" if row is None else interval(row.mean, row.low, row.high) + (" *" if row.clear else "")

    return {
        **cells.place(group),
        "agrees with dense": "" if group.variant == DENSE else points(group.agreement),
        "test": points(group.test),
        "worst class": points(group.worst_class_accuracy),
        "worst class, difference": compared("worst_class_accuracy"),
        "calibration error": points(group.calibration_error),
        "calibration error, difference": compared("calibration_error"),
    }
