"""The controls that follow on headlines, on hand-made runs."""

import dataclasses

import pytest
from handmade import all_replicates, dense, in_round, in_rounds, planned, three, ticket, write
from helpers import selected

from lottery.results import frame, grouping
from lottery.rundir.run import EVERYTHING, Run

ROUNDS = 3


@pytest.fixture
def begin(tmp_path):
    """A function that makes a run of three replicates whose dense networks reach 90, 91 and 92 %, and whose recipe has three
    rounds of `weights` from 1ep, and more of its table `rounds` as told."""

    def begun(replicates=3, **table):
        rounds = {"rounds": ROUNDS, "rewind": "1ep", "controls": ["reinit"], **table}
        run = Run(tmp_path / "run", planned("", replicates=replicates, rounds=rounds))
        dense(run, *(0.90, 0.91, 0.92)[:replicates])
        return run

    return begun


def trained(run, *above, family="weights", step=45):
    """The tickets of a chain, round by round so far above dense."""
    for number, difference in enumerate(above, 1):
        in_rounds(run, family, number, difference, step=step)


def found(run, selection=EVERYTHING):
    """The controls that follow: their family, name and variant, and in how many replicates."""
    tickets = grouping.controls(run, run.trained_plan(), run.families(selection))
    names = [f"{one.family} {one.name} {one.variant}" for one in tickets]
    return {name: names.count(name) for name in names}


def test_once_all_tickets_are_trained_the_sparsest_matching_one_gets_its_controls_in_every_replicate(begin):
    run = begin(controls=["reinit", "shuffle"])
    trained(run, 0.01, 0.01, -0.05)

    assert found(run) == {"weights round-02-step-000045 reinit": 3, "weights round-02-step-000045 shuffle": 3}


def test_each_series_has_its_own(begin):
    run = begin(rewind="0,1ep", methods=["weights", "lr"])
    trained(run, 0.01, 0.01, 0.01)
    trained(run, 0.01, -0.05, 0.01, step=0)
    trained(run, 0.01, 0.01, 0.01, family="lr", step=0)
    for number in (1, 2, 3):
        in_rounds(run, "lr", number, 0.02, "extended", step=0)

    assert found(run) == {"weights round-01-step-000000 reinit": 3, "weights round-03-step-000045 reinit": 3}


def test_tickets_that_train_on_are_judged_against_extended_before_they_have_a_headline(begin):
    run = begin(methods=["lr"])
    trained(run, 0.01, 0.01, 0.01, family="lr")
    assert found(run) == {}

    for number, above in enumerate((0.0, 0.02, 0.02), 1):
        in_rounds(run, "lr", number, above, "extended")
    assert found(run) == {"lr round-01-step-000045 reinit": 3}


@pytest.mark.parametrize("table", [{"controls_at": "1"}, {"controls": []}])
def test_where_the_recipe_says_in_which_rounds_controls_are_none_follow(begin, table):
    run = begin(**table)
    trained(run, 0.01, 0.01, 0.01)

    assert found(run) == {}


def test_without_a_ticket_that_matches_none_follow(begin):
    run = begin()
    trained(run, -0.05, -0.05, -0.05)

    assert found(run) == {}


def test_under_three_replicates_none_follow(begin):
    run = begin(replicates=2)
    for number in (1, 2):
        for round_ in (1, 2, 3):
            in_round(run, number, "weights", round_, 0.95 + 0.001 * number)

    assert found(run) == {}


def test_while_a_ticket_is_still_to_be_trained_none_follow(begin):
    run = begin()
    trained(run, 0.01, 0.01)

    assert found(run) == {}
    assert found(run, selected(rounds=2)) == {"weights round-02-step-000045 reinit": 3}  # as typed: `imp rounds --rounds 2`


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_after_a_ticket_that_failed_no_more_are_waited_for(begin, status):
    run = begin()
    trained(run, 0.01)
    in_round(run, 1, "weights", 2, status=status)
    for number in (2, 3):
        for round_ in (2, 3):
            in_round(run, number, "weights", round_, 0.95 + 0.001 * number)

    assert found(run) == {"weights round-01-step-000045 reinit": 3}


def test_a_replicate_that_was_added_gets_them_too_and_one_without_its_ticket_does_not(begin):
    run = begin()
    trained(run, 0.01, 0.01, 0.01)
    for number in (4, 5):
        write(run.replicate(number).dense, 0.9, replicate=number)
    for round_ in (1, 2, 3):
        in_round(run, 4, "weights", round_, 0.91)

    assert found(run) == {"weights round-03-step-000045 reinit": 4}


def test_a_command_about_one_replicate_sees_the_headline_of_all(begin):
    run = begin()
    trained(run, 0.01, 0.01, 0.01)

    assert found(dataclasses.replace(run, chosen=(2,))) == {"weights round-03-step-000045 reinit": 3}


@pytest.fixture
def one_shot(tmp_path):
    """A run of three replicates, two quantiles at two rewind points, whose controls follow."""
    run = three(tmp_path / "run", "60,80", "0,1ep", controls=["reinit", "shuffle"], controls_at="")
    for step in (0, 45):
        all_replicates(run, "60", 0.01, step=step)
    return run


def test_headlines_of_one_shot_have_them_too_and_a_fresh_one_serves_all_rewind_points(one_shot):
    assert found(one_shot) == {}

    for step in (0, 45):
        all_replicates(one_shot, "80", -0.05, step=step)
    assert found(one_shot) == {
        "oneshot q60-step-000000 reinit": 3,
        "oneshot q60-step-000000 shuffle": 3,
        "oneshot q60-step-000045 shuffle": 3,
    }


def test_in_one_shot_a_ticket_that_failed_leaves_the_others_to_be_waited_for(one_shot):
    all_replicates(one_shot, "80", -0.05, step=0)
    ticket(one_shot, 1, "60", status="diverged")
    assert {name.split()[1] for name in found(one_shot)} == {"q60-step-000000"}

    all_replicates(one_shot, "80", 0.01)
    assert "oneshot q80-step-000045 shuffle" in found(one_shot)


def test_the_rows_of_a_report_have_those_that_are_missing(begin):
    run = begin()
    trained(run, 0.01, 0.01, -0.05)
    in_round(run, 1, "weights", 2, 0.8, variant="reinit")

    rows = [(row.replicate, row.round, row.status) for row in frame.each(grouping.rows(run)) if row.variant == "reinit"]

    assert rows == [(1, 2, "done"), (2, 2, "missing"), (3, 2, "missing")]
    assert len(grouping.rows(run)) == 3 + 9 + 3


def test_before_a_dense_network_is_trained_there_are_the_dense_rows(tmp_path):
    run = Run(tmp_path, planned("", rounds={"rounds": 2, "controls": ["reinit"]}))

    assert list(grouping.rows(run)["variant"]) == ["dense"] * 3
