"""The controls that follow on headlines in rounds, on hand-made runs."""

import dataclasses

import pytest
from handmade import all_replicates, dense, in_round, in_rounds, planned, write

from lottery.results import following
from lottery.run import Run

LEVELS = 3


@pytest.fixture
def begin(tmp_path):
    """A function that makes a run of three replicates whose dense networks reach 90, 91 and 92 %, and whose recipe has three
    rounds of `weights` from 1ep, and more of its table `rounds` as told."""

    def begun(quantiles="", replicates=3, **table):
        rounds = {"levels": LEVELS, "rewind": "1ep", "controls": ["reinit"], **table}
        run = Run(tmp_path / "run", planned(quantiles, replicates=replicates, rounds=rounds))
        dense(run, *(0.90, 0.91, 0.92)[:replicates])
        return run

    return begun


def trained(run, *above, method="weights", step=45):
    """The tickets of a chain, round by round so far above dense."""
    for level, difference in enumerate(above, 1):
        in_rounds(run, method, level, difference, step=step)


def found(run, levels=LEVELS):
    """The controls that follow: their chain, round and variant, and in how many replicates."""
    jobs = following.controls(run, run.trained_plan(), levels)
    names = [(job.chain.method, job.chain.step, job.level, job.variant) for job in jobs]
    return {name: names.count(name) for name in names}


def test_once_all_tickets_are_trained_the_sparsest_matching_one_gets_its_controls_in_every_replicate(begin):
    run = begin(controls=["reinit", "shuffle"])
    trained(run, 0.01, 0.01, -0.05)

    assert found(run) == {("weights", 45, 2, "reinit"): 3, ("weights", 45, 2, "shuffle"): 3}


def test_each_series_has_its_own(begin):
    run = begin(rewind="0,1ep", methods=["weights", "init"])
    trained(run, 0.01, 0.01, 0.01)
    trained(run, 0.01, -0.05, 0.01, step=0)
    trained(run, -0.01, -0.05, -0.05, method="init", step=0)

    assert found(run) == {("weights", 0, 1, "reinit"): 3, ("weights", 45, 3, "reinit"): 3}


def test_tickets_that_train_on_are_judged_against_extended_before_they_have_a_headline(begin):
    run = begin(methods=["lr"])
    trained(run, 0.01, 0.01, 0.01, method="lr")
    assert found(run) == {}

    for level, above in enumerate((0.0, 0.02, 0.02), 1):
        in_rounds(run, "lr", level, above, "extended")
    assert found(run) == {("lr", 45, 1, "reinit"): 3}


@pytest.mark.parametrize("table", [{"control_levels": "1"}, {"controls": []}])
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
        for level in (1, 2, 3):
            in_round(run, number, "weights", level, 0.95 + 0.001 * number)

    assert found(run) == {}


def test_while_a_ticket_is_still_to_be_trained_none_follow(begin):
    run = begin()
    trained(run, 0.01, 0.01)

    assert found(run) == {}
    assert found(run, levels=2) == {("weights", 45, 2, "reinit"): 3}  # as typed: `imp rounds --levels 2`


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_after_a_ticket_that_failed_no_more_are_waited_for(begin, status):
    run = begin()
    trained(run, 0.01)
    in_round(run, 1, "weights", 2, status=status)
    for number in (2, 3):
        for level in (2, 3):
            in_round(run, number, "weights", level, 0.95 + 0.001 * number)

    assert found(run) == {("weights", 45, 1, "reinit"): 3}


def test_a_replicate_that_was_added_gets_them_too_and_one_without_its_ticket_does_not(begin):
    run = begin()
    trained(run, 0.01, 0.01, 0.01)
    for number in (4, 5):
        write(run.replicate(number).dense, 0.9, replicate=number)
    for level in (1, 2, 3):
        in_round(run, 4, "weights", level, 0.91)

    assert found(run) == {("weights", 45, 3, "reinit"): 4}


def test_a_command_about_one_replicate_sees_the_headline_of_all(begin):
    run = begin()
    trained(run, 0.01, 0.01, 0.01)

    assert found(dataclasses.replace(run, chosen=(2,))) == {("weights", 45, 3, "reinit"): 3}


def test_rounds_of_a_recipe_that_does_not_prune_so_have_them_as_well(begin):
    run = begin("60")
    run = dataclasses.replace(run, recipe=run.recipe.model_copy(update={"pruning": ["oneshot"]}))
    trained(run, 0.01, 0.01)
    assert found(run) == {}

    in_rounds(run, "weights", 3, 0.01)
    assert found(run) == {("weights", 45, 3, "reinit"): 3}


def test_one_shot_tickets_have_none(begin):
    run = begin("60")
    all_replicates(run, "60", 0.01)

    assert found(run) == {}


def test_the_rows_of_a_report_have_those_that_are_missing_where_the_recipe_prunes_in_rounds(begin):
    run = begin()
    trained(run, 0.01, 0.01, -0.05)
    in_round(run, 1, "weights", 2, 0.8, variant="reinit")

    rows = [(row["replicate"], row["level"], row["status"]) for row in following.rows(run) if row["variant"] == "reinit"]

    assert rows == [(1, 2, "done"), (2, 2, "missing"), (3, 2, "missing")]
    assert len(following.rows(run)) == 3 + 9 + 3


def test_before_a_dense_network_is_trained_there_are_the_dense_rows(tmp_path):
    run = Run(tmp_path, planned("", rounds={"levels": 2}))

    assert [row["variant"] for row in following.rows(run)] == ["dense"] * 3
