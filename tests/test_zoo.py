"""The zoo of tickets: small, whole, as its script would name it, and read as its page says."""

import importlib
import re

import numpy as np
import pytest
from helpers import ROOT

from lottery.rundir.tickets import open_ticket, unzipped

ZOO = ROOT / "zoo"


@pytest.fixture
def zoo(benchmarks):
    return importlib.import_module("zoo")


def test_it_is_small_and_has_what_its_script_makes(zoo):
    made = {path.name for name, source in zoo.SOURCES.items() for path, *_ in zoo.tickets(name, source)}

    assert {path.name for path in ZOO.iterdir()} == made | {"README.md"}
    assert len(made) >= 20
    assert sum(path.stat().st_size for path in ZOO.iterdir()) <= 1_000_000


@pytest.mark.parametrize("path", sorted(ZOO.glob("*.zip")), ids=lambda path: path.stem)
def test_a_ticket_is_whole_and_has_its_start_evidence_and_licence(path):
    with unzipped(path) as folder:
        ticket = open_ticket(folder)
        mask, start = ticket.mask, ticket.start

    assert mask
    assert all(start.weights[name][kept].size == kept.sum() for name, kept in mask.items())
    assert ticket.record.license == "mit"
    assert ticket.record.standing.replicates >= 1
    assert ticket.record.result.reached("test") > 0.3


def test_the_page_lists_what_the_tickets_say(zoo):
    assert (ZOO / "README.md").read_text().endswith(f"\n{zoo.table(ZOO)}\n")


@pytest.mark.parametrize("name", ["digits-resnet20-channels-q70", "digits-mobilenet-rounds-round-03"])
def test_numpy_reads_it_in_ten_lines(name):
    (block,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/tickets.md").read_text(), re.DOTALL)
        if "ZipFile" in block
    ]
    path, found = ZOO / f"{name}.zip", {}

    exec(block.replace("digits-q90.zip", str(path)), found)

    assert len(block.strip().splitlines()) <= 10
    with unzipped(path) as folder:
        mask = open_ticket(folder).mask
    assert all(np.isfinite(array).all() for array in found["ticket"].values())
    assert not any(found["ticket"][f"weights/{name}"][~kept].any() for name, kept in mask.items())
