"""The table of verdicts, which stands first in the report, and families ranked at equal density."""

from functools import partial

import pytest
from handmade import COSTS, all_replicates, dense, planned, three, ticket

from lottery.results import report
from lottery.results.findings import Findings
from lottery.results.sections import ranking, verdicts
from lottery.rundir.run import Run


@pytest.fixture
def begin(tmp_path):
    return partial(three, tmp_path / "run", controls=["reinit", "shuffle"], controls_at="60")


def line(run):
    return verdicts.section(Findings(run)).table[-1]


def test_a_winning_ticket_stands_with_its_difference_and_its_contrasts(begin):
    run = begin("60,90")
    for number, above in enumerate((0.002, 0.001, 0.003), 1):  # 0.2 ± 2.919986 x 0.1 / sqrt(3) points
        ticket(run, number, "60", 0.89 + 0.01 * number + above)
    all_replicates(run, "90", -0.05)
    all_replicates(run, "60", -0.03, step=0, variant="reinit")
    all_replicates(run, "60", -0.01, variant="shuffle")

    # to controls: 3.2 and 1.2 ± 4.302653 x 0.1 / sqrt(3)
    assert line(run) == {
        "family": "oneshot",
        "rewound to": "1ep",
        "sparsest match, density": "40.00%",
        "ticket − dense": "+0.20 (+0.03 .. +0.37)",
        "ticket − reinit": "+3.20 (+2.95 .. +3.45)",
        "ticket − shuffle": "+1.20 (+0.95 .. +1.45)",
        "wins": "yes",
        "what that means": "The same mask with fresh weights does not match. Which weights are kept matters.",
        "replicates": "3",
        "replicates needed": "4",
    }


@pytest.mark.parametrize(
    ("differences", "sparsest", "wins", "meaning", "mark"),
    [
        ({"60": 0.0, "90": -0.05}, "40.00%", "open", "Whether it wins is open: `reinit` is not trained.", "matching"),
        ({"60": -0.05, "90": -0.06}, "none: 40.00% does not match", "no", "No ticket matches.", "failing"),
        ({}, "none yet", "open", "Not decided yet.", "open"),
    ],
)
def test_without_a_control_or_a_ticket_that_matches_the_line_says_so(begin, differences, sparsest, wins, meaning, mark):
    run = begin("60,90")
    for quantile, difference in differences.items():
        all_replicates(run, quantile, difference)

    block = verdicts.section(Findings(run))

    (found,) = block.table
    assert (found["sparsest match, density"], found["wins"], found["what that means"]) == (sparsest, wins, meaning)
    assert block.marks == [mark]


def test_while_nothing_is_decided_it_shows_the_sparsest_ticket_within_the_margin(begin):
    run = begin("60,80,90", replicates=4)
    for quantile, difference in (("60", 0.001), ("80", -0.001), ("90", -0.01)):
        all_replicates(run, quantile, difference)

    assert line(run)["sparsest match, density"] == "none yet: 20.00% is undecided"
    assert line(run)["replicates"] == "3 of 4"


def test_one_replicate_decides_nothing(tmp_path):
    run = Run(tmp_path / "run", planned(replicates=1))
    dense(run, 0.9)
    ticket(run, 1, "60", 0.89)

    assert line(run)["what that means"] == "Not decided: that takes at least 3 replicates."


def test_the_table_is_the_first_part_of_the_page_and_the_sentences_follow_the_chart(begin):
    run = begin("60")
    all_replicates(run, "60", 0.0)

    made = report.report(run)

    assert [block.name for block in made.blocks][:3] == ["verdicts", "accuracy", "words"]
    page, summary = ((run.report / name).read_text() for name in ("index.html", "summary.md"))
    assert [f'<a href="#{block.name}">' in page for block in made.blocks] == [True] * len(made.blocks)
    assert "<b>Rewound to 1ep:</b> the sparsest matching ticket" in page
    assert "- **Rewound to 1ep:** the sparsest matching ticket" in summary
    assert (run.report / "verdicts.csv").exists()


@pytest.fixture
def families(begin):
    """Families `a`, `b` and `c` with the quantile 60, 1.0, 0.2 and 0.0 points above dense: `c` costs a third of `b`."""
    grid = {"quantiles": "60", "rewind": "1ep", "controls": []}
    run = begin("", a=grid, b=grid, c=grid)
    for name, above, cost in (("a", 0.01, 900.0), ("b", 0.002, 900.0), ("c", 0.0, 300.0)):
        for number in (1, 2, 3):
            noise = 0.002 * (number - 2) * (name == "b")
            accuracy = 0.89 + 0.01 * number + above + noise
            ticket(run, number, "60", accuracy, family=name, costs=COSTS, training_macs=cost, finding_macs=0.0)
    dense(run, 0.90, 0.91, 0.92, training_macs=20.0)
    return run


def test_families_are_ranked_at_equal_density_and_by_what_they_cost(families):
    found = Findings(families)

    table = ranking.section(found).table

    assert [*table[0]][3:] == ["behind best", "verdict", "before", "training", "in all", "best at its cost"]
    # b behind a: -0.8 ± 4.302653 x 0.2 / sqrt(3) points; c has no spread
    assert [tuple(line.values()) for line in table] == [
        ("40.00%", "a", "92.00", "", "undecided", "0.00", "900.00", "900.00", "✓"),
        ("40.00%", "b", "91.20", "-0.80 *", "matching", "0.00", "900.00", "900.00", ""),
        ("40.00%", "c", "91.00", "-1.00", "undecided", "0.00", "300.00", "300.00", "✓"),
    ]
    told = "Highest accuracy at equal density: a at 40.00%. Clearly ahead of the next best at 40.00% density."
    assert ranking.sentence(found) == told
    assert found.ranking["rank"].tolist() == [1, 2, 3]


def test_one_family_has_no_ranking(begin):
    run = begin("60")
    all_replicates(run, "60", 0.0)

    assert ranking.section(Findings(run)) is None
    assert ranking.sentence(Findings(run)) == ""
