"""The headline: down to which density tickets match the dense network, in sentences."""

import pytest
from handmade import all_replicates, dense, in_round, one_chain, planned, three_replicates

from lottery.results import grouping, listing
from lottery.results.headline import headline
from lottery.run import Run


def told(run):
    rows = listing.rows(run)
    return headline(grouping.groups(rows, run.recipe.delta), run, rows)


run, one = pytest.fixture(three_replicates), pytest.fixture(one_chain)


def test_the_headline_names_the_sparsest_winning_ticket_of_each_series(run):
    all_replicates(run, "60", 0.001)
    all_replicates(run, "90", -0.05)
    all_replicates(run, "60", -0.05, step=0)

    assert told(run) == [
        "The dense network reaches 91.00% on validation images and 90.00% on test images (mean of 3 runs).",
        "Rewound to 0, no ticket of this grid matches the dense network.",
        "Rewound to 1ep, the sparsest winning ticket keeps 40.00% of the prunable weights (+0.10 points against dense). "
        "It reaches 90.10% on test images.",
    ]


def test_the_headline_tells_of_matching_tickets_beyond_one_that_does_not_match(tmp_path):
    run = Run(tmp_path / "run", planned("60,75,90"))
    dense(run, 0.90, 0.91, 0.92)
    all_replicates(run, "60", 0.001)
    all_replicates(run, "75", -0.05)
    all_replicates(run, "90", 0.02)

    assert told(run)[1] == (
        "Rewound to 1ep, the sparsest winning ticket keeps 40.00% of the prunable weights (+0.10 points against dense). It "
        "reaches 90.10% on test images. Of sparser ones those at 10.00% match too, but not, or not yet, those at 25.00%."
    )


def test_where_the_densest_ticket_does_not_match_or_is_missing_there_is_no_density_down_to_which_all_do(tmp_path):
    run = Run(tmp_path / "run", planned("50,60,75,90"))
    dense(run, 0.90, 0.91, 0.92)
    all_replicates(run, "60", -0.05)
    all_replicates(run, "75", 0.001)

    assert told(run)[1] == (
        "Rewound to 1ep, there is no density down to which all tickets match: not, or not yet, at q50, 40.00%. The sparsest "
        "that does keeps 25.00% of the prunable weights (+0.10 points against dense). It reaches 90.10% on test images."
    )


def test_the_headline_of_rounds_names_their_method_and_what_they_are_held_against(one):
    in_round(one, 1, "lr", 1, 0.93)
    in_round(one, 1, "lr", 1, 0.92, variant="extended")

    sentences = told(one)

    assert sentences[1] == (
        "In rounds of lr from 1ep, undecided; the sparsest ticket at or above extended so far keeps "
        "50.00% of the prunable weights (+1.00 points against extended)."
    )
    assert sentences[2] == "1 of 4 networks have no result: see `imp status`."
    assert sentences[3].startswith("Verdicts need 3 replicates, this run has 1: `imp run --run ")


def test_an_undecided_series_below_the_dense_network_says_so(one):
    in_round(one, 1, "lr", 1, 0.85)

    assert told(one)[1].startswith("In rounds of lr from 1ep, undecided; no ticket's mean is at or above")
