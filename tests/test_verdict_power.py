"""benchmarks/verdict_power.py: its tables, and those of docs/verdicts.md, against closed forms, and its headlines against
those of reports."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from helpers import ROOT
from scipy import stats

from lottery.results import grouping

SCRIPT = ROOT / "benchmarks/verdict_power.py"


@pytest.fixture(scope="module")
def script():
    specification = importlib.util.spec_from_file_location("verdict_power", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def tables(text):
    """The tables in Markdown: by the sentence before each, its rows by their first cell, cells by heading."""
    found, lines = {}, text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("| ---"):
            headings = cells(lines[number - 1])
            rows = [cells(row) for row in lines[number + 1 : lines.index("", number)]]
            found[lines[number - 3]] = {row[0]: dict(zip(headings[1:], row[1:], strict=True)) for row in rows}
    return found


def cells(line):
    return line.strip("| ").split(" | ")


def share(cell):
    return float(cell.rstrip("%")) / 100


def probability(verdict, true, spread, replicates, delta=0.2):
    """That a ticket truly so many points above dense gets a verdict: by the noncentral t distribution."""
    freedom, errors = replicates - 1, (true + delta) * replicates**0.5 / spread
    limit = stats.t.ppf(0.95, freedom)
    return stats.nct.sf(limit, freedom, errors) if verdict == "matching" else stats.nct.cdf(-limit, freedom, errors)


@pytest.fixture(scope="module", params=["small", "docs"])
def printed(request):
    """What the script prints of few trials, and what the page has; and how far that may be off."""
    if request.param == "docs":
        return tables((ROOT / "docs/verdicts.md").read_text()), 0.01
    done = subprocess.run([sys.executable, SCRIPT, "--trials", "4000"], capture_output=True, text=True, check=True)
    return tables(done.stdout), 0.035


def test_power_and_errors_of_verdicts_are_those_of_the_noncentral_t_distribution(printed):
    found, off = printed
    for title, verdict, true in (
        ("Exactly as good as dense, called *matching*:", "matching", 0.0),
        ("Exactly 0.2 points worse, called *matching*:", "matching", -0.2),
        ("Exactly as good as dense, called *not matching*:", "not matching", 0.0),
    ):
        assert list(found[title]) == ["0.1", "0.2", "0.3", "0.5"]
        for spread, row in found[title].items():
            for count in (3, 5, 7, 10, 20):
                expected = probability(verdict, true, float(spread), count)
                assert share(row[f"{count} replicates"]) == pytest.approx(expected, abs=off), (title, spread, count)
    needed = {spread: row["for 80 %"] for spread, row in found["Exactly as good as dense, called *matching*:"].items()}
    assert needed == {"0.1": "4", "0.2": "8", "0.3": "16", "0.5": "41"}


def test_looking_after_each_replicate_errs_as_often_as_one_look_and_more_looks_find_more(printed):
    found, off = printed
    rows = found["`--until-decided N`, exactly 0.2 points worse, called *matching*:"]

    assert list(rows) == ["5", "7", "10", "20"]
    for row in rows.values():
        assert share(row["wrong"]) == pytest.approx(0.05, abs=off)
    powers = [share(row["as good as dense, called matching"]) for row in rows.values()]
    assert powers == sorted(powers)
    assert powers[-1] > 0.9


def test_a_headline_of_falling_tickets_errs_about_as_often_as_one_verdict(printed):
    found, off = printed
    falling, slowly, level = found["The headline names a ticket that is 0.2 points worse or more:"].values()

    for count in (3, 5, 7, 10, 20):
        one, some, many = (share(row[f"{count} replicates"]) for row in (falling, slowly, level))
        assert one == pytest.approx(0.05, abs=off)
        assert one - off < some < 0.12
        assert 0.15 < many < 0.35


def test_the_simulated_headline_is_that_of_reports(script):
    sides = np.random.default_rng(0).integers(-1, 2, (300, 5))

    class Ticket:
        def __init__(self, place, side):
            self.place, self.verdict = place, script.RULE.verdict(side)

    reported = [grouping.sparsest_matching([Ticket(*one) for one in enumerate(series)]) for series in sides]

    assert script.headlines(sides).tolist() == [-1 if one is None else one.place for one in reported]


def test_the_same_seed_gives_the_same_figures(script):
    one, other = (script.share(script.MATCHING, 0.0, 0.2, 3, 1000, np.random.default_rng(5)) for _ in range(2))

    assert one == other
