"""The parts of the report: one file each, with a function `section` from what was found to a `Block`, or to None where there is
nothing to show. Other packages add theirs as entry points of the group `lottery.sections`."""

from collections.abc import Iterator

from lottery.base import plugins
from lottery.base.errors import InputError, first_line
from lottery.results.block import Block, Section
from lottery.results.findings import Findings
from lottery.results.sections import (
    accuracy,
    allocation,
    answers,
    collapse,
    contrasts,
    costs,
    courses,
    differences,
    early_stop,
    equal_cost,
    failures,
    kinds,
    layers,
    macs,
    magnitudes,
    measurements,
    metrics,
    networks,
    overlaps,
    sizes,
    stability,
    training,
)

GROUP = "lottery.sections"  # of entry points
# In the order of the page.
SECTIONS: tuple[Section, ...] = (
    *(accuracy.section, differences.section, macs.section, equal_cost.section),
    *(networks.section, metrics.section, allocation.section, collapse.section, contrasts.section, answers.section),
    *(early_stop.section, layers.section, overlaps.section, magnitudes.section, courses.section, stability.section),
    *(training.section, kinds.section, sizes.section, costs.section, failures.section, measurements.section),
)


def blocks(findings: Findings) -> Iterator[Block]:
    """What each section shows, ours first. Those that cannot be made are told in `findings.left_out`."""
    for section in SECTIONS:
        try:
            if block := section(findings):
                yield block
        except InputError as error:
            findings.left_out.append(f"left out of the report: {error}")
    for name, added in plugins.members(GROUP).items():
        try:
            if block := added.load()(findings):
                yield block
        except Exception as error:  # whatever the module of another package raises
            findings.left_out.append(f"left out of the report: section {name} ({first_line(error)})")
