"""The parts of the report: one file each, with a function `section` from what was found to a `Block`, or to None where there is
nothing to show. Other packages add theirs as entry points of the group `lottery.sections`."""

import dataclasses
import re
from collections.abc import Sequence

from lottery.base import plugins
from lottery.base.errors import InputError, first_line
from lottery.results.block import Block, Section
from lottery.results.findings import Findings
from lottery.results.sections import (
    accuracy,
    allocation,
    answers,
    barriers,
    collapse,
    contrasts,
    costs,
    courses,
    early_stop,
    failures,
    forgotten,
    kinds,
    layers,
    macs,
    metrics,
    networks,
    overlaps,
    ranking,
    settling,
    signs,
    sizes,
    stability,
    training,
    verdicts,
    words,
)

GROUP = "lottery.sections"  # of entry points
# In the order of the page.
SECTIONS: tuple[Section, ...] = (
    *(verdicts.section, accuracy.section, ranking.section, words.section, macs.section),
    *(networks.section, metrics.section, allocation.section, collapse.section, contrasts.section, answers.section),
    forgotten.section,
    *(early_stop.section, layers.section, overlaps.section, settling.section, signs.section),
    *(courses.section, stability.section),
    barriers.section,
    *(training.section, kinds.section, sizes.section, costs.section, failures.section),
)
BEFORE_TICKETS: tuple[Section, ...] = (training.section,)


def blocks(findings: Findings, ours: Sequence[Section] = SECTIONS) -> list[Block]:
    """What each section shows, ours first. Those that cannot be made are told in `findings.left_out`."""
    made = []
    for section in ours:
        try:
            if block := section(findings):
                made.append(_finished(block, findings))
        except InputError as error:
            findings.left_out.append(f"left out of the report: {error}")
    for name, added in plugins.members(GROUP).items():
        try:
            if block := added.load()(findings):
                _check(block, made)
                made.append(_finished(block, findings))
        except Exception as error:  # whatever the module of another package raises
            findings.left_out.append(f"left out of the report: section {name} ({first_line(error)})")
    return made


def _finished(block: Block, findings: Findings) -> Block:
    """The block without the columns of its table in which nothing stands, and with titles for its charts."""
    filled = {heading for line in block.table for heading, cell in line.items() if cell}
    table = [{heading: cell for heading, cell in line.items() if heading in filled} for line in block.table]
    name = findings.run.recipe.name
    charts = [
        dataclasses.replace(chart, title=block.title, subtitle=f"{name}: {chart.subtitle}" if chart.subtitle else name)
        for chart in block.charts
    ]
    return dataclasses.replace(block, table=table, charts=charts)


def _check(block: Block, others: Sequence[Block]) -> None:
    """Raise where a block of another package cannot be shown, or has the name or a file of one of `others`."""
    names = [block.name, *block.frames, *(chart.name for chart in block.charts)]
    if odd := [name for name in names if not re.fullmatch(r"[\w-]+", name)]:
        raise InputError(f"{odd[0]!r} cannot be a part of a file's name")
    taken = {name for other in others for name in (other.name, *other.files)}
    if again := sorted(taken.intersection((block.name, *block.files))):
        raise InputError(f"the report has another {again[0]}")
    if not all(isinstance(cell, str) for line in block.table for cell in line.values()):
        raise InputError("the cells of its table are not all text")
    for chart in block.charts:
        _ = chart.svg
