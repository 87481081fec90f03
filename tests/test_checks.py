"""The verdict of a criterion on hand-made runs: how controls stand against their tickets, the headline, the page and its CSV.
The one-sided 95 % quantile of Student's t is 2.919986 with 2 degrees of freedom."""

import csv
import json
import re

import pytest
from handmade import dense, in_round, planned, ticket

from lottery.commands.reading import show_report
from lottery.results import criteria, frame, report
from lottery.results.findings import Findings
from lottery.rundir.run import Run


def begun(tmp_path, quantiles="60,90", rewind="0", replicates=3, **more):
    made = Run(tmp_path / "run", planned(quantiles, rewind, replicates, ("reinit", "shuffle"), quantiles, **more))
    dense(made, *(0.90 + 0.01 * number for number in range(replicates)))
    return made


def beside(run, quantile, *points, control="shuffle", step=0, family="oneshot"):
    """Tickets that reach 87 and 90 % by turns, and controls so many points above each; None: not trained."""
    for number, above in enumerate(points, 1):
        accuracy = 0.9 - 0.03 * (number % 2)
        ticket(run, number, quantile, accuracy, step, family=family)
        if above is not None:
            ticket(run, number, quantile, accuracy + above / 100, step, control, family=family)


def checks(run):
    return frame.each(criteria.checks(run, frame.rows(run)))


def by_place(run):
    """The verdict of each control, and of its series: by mask, rewind point and control."""
    return {(row.mask, row.rewind, row.control): (row.verdict, row.series_verdict) for row in checks(run)}


def told(run):
    """What the headline says of criteria, by the place that its paragraph is about."""
    series = (sentence.partition(": ") for sentence in Findings(run).headline.series)
    asked = {place: re.search("(Which weights are kept |Does it matter which ).*", answer) for place, _, answer in series}
    return {place: match[0] for place, match in asked.items() if match}


GOOD, BAD, OPEN = (0.1, 0.2, 0.1), (-1.0, -1.1, -1.2), (-1.0, 1.0, 0.0)
NO = "Which weights are kept does not matter, only how many in each layer: the control `shuffle` matches the ticket at"
YES = "Which weights are kept matters, not only how many in each layer: the control `shuffle` does not match the ticket at"
OPEN_QUESTION = "Does it matter which weights are kept, or only how many in each layer? Not decided yet (tested at"


@pytest.mark.parametrize(
    ("denser", "sparser", "verdict", "sentence"),
    [
        (GOOD, GOOD, criteria.ONLY, f"{NO} 40.00%, 10.00%."),
        (GOOD, BAD, criteria.MORE, f"{YES} 10.00%."),
        (OPEN, BAD, criteria.MORE, f"{YES} 10.00%."),
        (GOOD, OPEN, "undecided", f"{OPEN_QUESTION} 10.00%)."),
        (GOOD[:2], GOOD[:2], "undecided", f"{OPEN_QUESTION} 40.00%, 10.00%)."),
        ((0.1, None, 0.1), GOOD, "undecided", f"{OPEN_QUESTION} 40.00%)."),
    ],
)
def test_a_criterion_is_judged_by_the_shuffled_mask_at_every_density(tmp_path, denser, sparser, verdict, sentence):
    run = begun(tmp_path, replicates=len(denser))
    beside(run, "60", *denser)
    beside(run, "90", *sparser)

    assert {row.series_verdict for row in checks(run)} == {verdict}
    assert told(run) == {"Rewound to 0": sentence}


@pytest.mark.parametrize("chosen", [{"criterion": "random"}, {"mask": "mask.npz", "quantiles": "90"}])
def test_where_no_score_chose_the_weights_it_is_not_asked_whether_it_did_more_than_allocate(tmp_path, chosen):
    run = begun(tmp_path, "", other={"quantiles": "90", "rewind": "0", "controls": ["shuffle"], "controls_at": "90", **chosen})
    beside(run, "90", *BAD, family="other")

    assert checks(run) == []
    assert told(run) == {}


def test_only_densities_that_have_shuffle_count_and_without_it_there_is_no_verdict(tmp_path):
    run = Run(tmp_path / "run", planned("60,90", "0", 3, ("reinit", "shuffle"), "90"))
    dense(run, 0.9, 0.9, 0.9)
    beside(run, "60", *BAD, control="reinit")
    assert checks(run) == []
    assert told(run) == {}

    beside(run, "90", *GOOD)

    assert by_place(run) == {
        ("q60", "0", "reinit"): ("not matching", "only an allocation"),
        ("q90", "0", "shuffle"): ("matching", "only an allocation"),
        ("q90", "0", "reinit"): ("undecided", "only an allocation"),  # still to be trained
    }


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_control_or_a_ticket_that_is_not_done_leaves_it_undecided(tmp_path, status):
    run = begun(tmp_path, "60,90", replicates=4)
    beside(run, "60", *GOOD, None)
    ticket(run, 4, "60", status=status, step=0, variant="shuffle")
    beside(run, "90", *BAD, -1.0)
    ticket(run, 2, "90", status=status, step=0)

    assert [(row.mask, row.count, row.verdict) for row in checks(run) if row.control == "shuffle"] == [
        ("q60", 3, "undecided"),
        ("q90", 3, "undecided"),
    ]


def test_each_rewind_point_has_its_verdict_and_one_reinit_of_one_shot_serves_all(tmp_path):
    run = begun(tmp_path, "90", "0,1ep")
    beside(run, "90", *BAD)
    beside(run, "90", *GOOD, step=45)
    beside(run, "90", *BAD, control="reinit")

    assert by_place(run) == {
        ("q90", "0", "shuffle"): ("not matching", "more than an allocation"),
        ("q90", "0", "reinit"): ("not matching", "more than an allocation"),
        ("q90", "1ep", "shuffle"): ("matching", "only an allocation"),
        ("q90", "1ep", "reinit"): ("not matching", "only an allocation"),
    }
    assert told(run) == {"Rewound to 0": f"{YES} 10.00%.", "Rewound to 1ep": f"{NO} 10.00%."}


def test_in_rounds_a_control_belongs_to_the_chain_of_its_rewind_point(tmp_path):
    run = Run(tmp_path / "run", planned("", rounds={"rounds": 1, "rewind": "0,1ep", "controls": ["shuffle", "reinit"]}))
    dense(run, 0.9, 0.9, 0.9)
    for number, above in enumerate(BAD, 1):
        for step in (0, 45):
            in_round(run, number, "weights", 1, 0.9, step)
            in_round(run, number, "weights", 1, 0.9 + above / 100, step, "shuffle")
        in_round(run, number, "weights", 1, 0.9 + above / 100, 45, "reinit")

    assert list(by_place(run)) == [("round-01", "0", "shuffle"), ("round-01", "1ep", "shuffle"), ("round-01", "1ep", "reinit")]


def test_the_page_the_summary_the_csv_and_the_command_show_it(tmp_path, capsys):
    run = begun(tmp_path, "60,90", other={"quantiles": "90", "rewind": "0", "allocation": "uniform", "controls": ["shuffle"]})
    beside(run, "60", *GOOD)
    beside(run, "90", *BAD)
    beside(run, "90", *GOOD, family="other")

    made = report.report(run)

    # of each control less its own ticket: 0.13 ± 2.919986 x 0.058 / sqrt(3) and -1.1 ± 2.919986 x 0.1 / sqrt(3) points
    good, bad, own, other = "+0.13 (+0.04 .. +0.23) ✓", "-1.10 (-1.27 .. -0.93) ✗", "magnitude, global", "magnitude, uniform"
    assert [tuple(cells.values()) for cells in next(block for block in made.blocks if block.name == "criteria").table] == [
        (f"oneshot ({own})", "q60", "40.00%", "0", "3", good, "matching", "more than an allocation"),
        (f"oneshot ({own})", "q90", "10.00%", "0", "3", bad, "not matching", ""),
        (f"other ({other})", "q90", "10.00%", "0", "3", good, "matching", "only an allocation"),
    ]
    page, summary = ((run.report / name).read_text() for name in ("index.html", "summary.md"))
    assert '<h2 id="criteria">More than an allocation?</h2>' in page
    assert "<b>Family other, rewound to 0:</b>" in page
    assert "## More than an allocation?" in summary
    sentence = f"{NO} 10.00%."
    assert sentence in summary
    with open(run.report / "criteria.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["control"] == "shuffle"]
    assert [(row["family"], row["mask"], row["verdict"]) for row in rows] == [
        ("oneshot", "q60", "matching"),
        ("oneshot", "q90", "not matching"),
        ("other", "q90", "matching"),
    ]
    show_report(run, made, True)
    assert json.loads(capsys.readouterr().out)["criteria"][0]["verdict"] == "matching"
    show_report(run, made, False)
    assert sentence in capsys.readouterr().out
