"""Results of hand-made runs: rows, groups of replicates, verdicts, and the headline."""

import json
import math

import pytest

from lottery import recipe, results
from lottery.grids import Job, parse_quantiles
from lottery.run import Run

STEPS = 900  # 20 epochs of 45 steps


def planned(quantiles="60", rewind="1ep", replicates=3, controls=(), control_quantiles="90"):
    """A recipe whose grid of tickets is `quantiles` x `rewind`."""
    return recipe.resolve(
        {
            "replicates": replicates,
            "delta": 0.002,
            "train": {"epochs": 20, "snapshots": "0,10it,1ep,2ep"},
            "thresholds": {"quantiles": quantiles},
            "retrain": {"rewind": rewind, "controls": list(controls), "control_quantiles": control_quantiles},
        }
    )


def epochs(first_step):
    """As the engine writes them: a whole number for a dense network, a float under a mask."""
    return (STEPS - first_step) / 45 if first_step else STEPS // 45


def write(network, accuracy=None, status="done", first_step=0, **more):
    """A result.json as the engine writes it; test accuracy is validation accuracy less a point."""
    figures = {}
    if accuracy is not None:
        figures = {
            "validation_accuracy": accuracy,
            "validation_loss": 0.5,
            "test_accuracy": accuracy - 0.01,
            "test_loss": 0.6,
            "train_loss": 0.1,
        }
    result = {
        "status": status,
        "first_step": first_step,
        "epochs": epochs(first_step),
        "timing": {"seconds": 12.0},
        **more,
    }
    if status == "done":
        result |= {"step": STEPS, "final": figures, "least_validation_loss": {"step": 450, **figures}}
    network.folder.mkdir(parents=True)
    network.result.write_text(json.dumps(result))


def ticket(run, replicate, quantile, accuracy=None, step=45, variant="ticket", status="done"):
    job = Job(replicate, parse_quantiles(quantile)[0], step, variant)
    kept = 1 - float(quantile) / 100
    more = {"density": {"prunable": kept, "trainable": kept + 0.01, "total": kept + 0.02}} if status == "done" else {}
    write(run.network(job), accuracy, status, step, quantile=float(quantile), variant=variant, replicate=replicate, **more)


def dense(run, *accuracies):
    for number, accuracy in enumerate(accuracies, 1):
        write(run.replicate(number).dense, accuracy, replicate=number)


@pytest.fixture
def run(tmp_path):
    """Three replicates whose dense networks reach 90, 91 and 92 %; its grid is the quantile 60 at 1ep."""
    made = Run(tmp_path / "run", planned())
    dense(made, 0.90, 0.91, 0.92)
    return made


@pytest.fixture
def four(tmp_path):
    """Four replicates whose dense networks reach 90 %; the grid is 60, 80 and 90 at 1ep."""
    made = Run(tmp_path / "four", planned("60,80,90", replicates=4))
    dense(made, 0.90, 0.90, 0.90, 0.90)
    return made


def group_of(run, variant, quantile):
    return next(
        group
        for group in results.groups(results.rows(run), run.recipe.delta)
        if (group.variant, group.quantile) == (variant, quantile)
    )


def done(run):
    return [row for row in results.rows(run) if row["status"] == "done"]


def places(rows):
    return [(row["variant"], row["replicate"], row["quantile"], row["rewind_step"]) for row in rows]


def test_before_a_dense_network_is_trained_only_the_dense_ones_are_known_to_be_missing(tmp_path):
    found = results.rows(Run(tmp_path, planned()))

    assert places(found) == [("dense", number, None, 0) for number in (1, 2, 3)]
    assert [row["status"] for row in found] == ["missing"] * 3
    assert [row["validation_accuracy"] for row in found] == [None] * 3


def test_every_network_of_the_grids_without_a_result_has_a_row(tmp_path):
    run = Run(tmp_path, planned("60,90", "0,1ep", replicates=2, controls=["reinit", "shuffle"]))
    dense(run, 0.90)
    ticket(run, 1, "60", 0.9)

    missing = [row for row in results.rows(run) if row["status"] == "missing"]

    under_masks = [
        ("ticket", 60, 0),
        ("ticket", 60, 45),
        ("ticket", 90, 0),
        ("reinit", 90, 0),
        ("shuffle", 90, 0),
        ("ticket", 90, 45),
        ("shuffle", 90, 45),
    ]
    expected = [(variant, number, quantile, step) for number in (1, 2) for variant, quantile, step in under_masks]
    assert sorted(places(missing), key=str) == sorted([("dense", 2, None, 0), *expected[:1], *expected[2:]], key=str)
    assert places(done(run)) == [("dense", 1, None, 0), ("ticket", 1, 60, 45)]


def test_the_row_of_a_missing_network_has_its_place_and_no_figures(run):
    row = results.rows(run)[-1]

    known = {"replicate": 3, "variant": "ticket", "quantile": 60.0, "rewind": "1ep", "rewind_step": 45, "status": "missing"}
    assert row == dict.fromkeys(results.COLUMNS) | known
    assert tuple(row) == results.COLUMNS


def test_masks_beyond_the_recipe_are_missed_in_every_replicate(run):
    replicate = run.replicate(2)
    replicate.masks.mkdir()
    (replicate.masks / "q97.5.h5").touch()
    replicate.thresholds.write_text(json.dumps({"quantiles": [{"quantile": 97.5}]}))

    assert places(results.rows(run))[3:] == [("ticket", number, 97.5, 45) for number in (1, 2, 3)]


def test_a_network_that_is_no_longer_in_the_grids_keeps_its_row(run):
    ticket(run, 2, "99", 0.9, step=0)

    assert places(done(run))[3:] == [("ticket", 2, 99, 0)]


def test_the_row_of_a_ticket(run):
    ticket(run, 2, "90", 0.905)

    row = done(run)[-1]

    assert row == {
        "replicate": 2,
        "variant": "ticket",
        "quantile": 90.0,
        "density": pytest.approx(0.1),
        "density_trainable": pytest.approx(0.11),
        "density_total": pytest.approx(0.12),
        "rewind": "1ep",
        "rewind_step": 45,
        "status": "done",
        "validation_accuracy": 0.905,
        "difference": pytest.approx(-0.005),
        "validation_loss": 0.5,
        "test_accuracy": pytest.approx(0.895),
        "test_loss": 0.6,
        "least_validation_loss_step": 450,
        "test_accuracy_there": pytest.approx(0.895),
        "epochs": 19.0,
        "seconds": 12.0,
    }
    assert tuple(row) == results.COLUMNS


def test_the_row_of_a_dense_network_has_every_weight_and_no_difference(run):
    row = results.rows(run)[0]

    assert (row["variant"], row["density"], row["density_total"], row["quantile"]) == ("dense", 1.0, 1.0, None)
    assert (row["difference"], row["rewind"]) == (None, "0")


def test_dense_networks_come_first_then_replicate_quantile_and_step(run):
    ticket(run, 2, "80", 0.9, step=45)
    ticket(run, 1, "90", 0.9, step=0)
    ticket(run, 1, "90", 0.9, step=45)
    ticket(run, 1, "9", 0.9, step=45)

    assert places(results.rows(run)) == [
        ("dense", 1, None, 0),
        ("dense", 2, None, 0),
        ("dense", 3, None, 0),
        ("ticket", 1, 9, 45),
        ("ticket", 1, 60, 45),
        ("ticket", 1, 90, 0),
        ("ticket", 1, 90, 45),
        ("ticket", 2, 60, 45),
        ("ticket", 2, 80, 45),
        ("ticket", 3, 60, 45),
    ]


def test_a_rewind_point_goes_by_the_name_that_the_recipe_gives_it(run):
    for step in (0, 10, 45, 90, 77):
        ticket(run, 1, "90", 0.9, step=step)

    names = {row["rewind_step"]: row["rewind"] for row in results.rows(run) if row["variant"] == "ticket"}

    assert names == {0: "0", 10: "10it", 45: "1ep", 90: "2ep", 77: "77it"}


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_network_that_did_not_finish_has_a_row_without_figures(run, status):
    ticket(run, 3, "90", status=status)

    row = results.rows(run)[-1]

    assert (row["status"], row["quantile"], row["rewind"]) == (status, 90.0, "1ep")
    assert (row["validation_accuracy"], row["difference"], row["density"], row["test_accuracy"]) == (None, None, None, None)


def test_without_its_dense_network_a_ticket_has_no_difference(run):
    ticket(run, 3, "90", 0.9)
    run.replicate(3).dense.result.unlink()

    row = results.rows(run)[-1]

    assert (row["replicate"], row["status"], row["validation_accuracy"], row["difference"]) == (3, "done", 0.9, None)
    assert [row["status"] for row in results.rows(run)[:3]] == ["done", "done", "missing"]


def test_the_plan_of_a_run_is_read_off_its_dense_network(run, tmp_path):
    assert results.plan_of(run).steps_per_epoch == 45
    assert results.plan_of(Run(tmp_path / "other", run.recipe)) is None


def test_a_ticket_that_keeps_up_in_every_replicate_matches(run):
    for number, accuracy in enumerate((0.902, 0.911, 0.922), 1):
        ticket(run, number, "80", accuracy)

    group = group_of(run, "ticket", 80)

    margin = 2.919986 * (0.001 / math.sqrt(3)) / math.sqrt(3)  # differences 0.2, 0.1, 0.2 points
    assert group.verdict == "matching"
    assert (group.count, group.planned, group.rewind, group.density) == (3, 3, "1ep", pytest.approx(0.2))
    assert group.validation_accuracy == pytest.approx((0.902 + 0.911 + 0.922) / 3)
    assert group.difference == pytest.approx(0.005 / 3)
    assert (group.low, group.high) == (
        pytest.approx(0.005 / 3 - margin, rel=1e-5),
        pytest.approx(0.005 / 3 + margin, rel=1e-5),
    )


def test_a_ticket_that_falls_behind_does_not_match(run):
    for number, accuracy in enumerate((0.890, 0.899, 0.908), 1):
        ticket(run, number, "90", accuracy)

    group = group_of(run, "ticket", 90)

    assert group.verdict == "not matching"
    assert group.difference == pytest.approx(-0.011)
    assert group.high == pytest.approx(-0.011 + 2.919986 * 0.001 / math.sqrt(3), rel=1e-5)


def test_a_ticket_that_wavers_is_undecided(run):
    for number, accuracy in enumerate((0.90, 0.90, 0.93), 1):
        ticket(run, number, "95", accuracy)

    assert group_of(run, "ticket", 95).verdict == "undecided"


def test_two_replicates_do_not_decide(run):
    for number in (1, 2):
        ticket(run, number, "80", 0.99)

    group = group_of(run, "ticket", 80)

    assert (group.count, group.planned, group.verdict) == (2, 2, "undecided")


UNFINISHED = ("missing", "failed", "diverged")


def unfinished(run, replicate, quantile, status):
    if status != "missing":
        ticket(run, replicate, quantile, status=status)


@pytest.mark.parametrize("status", UNFINISHED)
@pytest.mark.parametrize("accuracy", [0.95, 0.85])
def test_a_member_that_is_not_done_leaves_the_group_undecided_whatever_the_others_say(four, status, accuracy):
    for number in (1, 2, 3, 4):
        ticket(four, number, "80", accuracy + 0.001 * number)
        if number != 2:
            ticket(four, number, "60", accuracy + 0.001 * number)
    unfinished(four, 2, "60", status)

    group = group_of(four, "ticket", 60)

    assert group_of(four, "ticket", 80).verdict == ("matching" if accuracy > 0.9 else "not matching")
    assert (group.count, group.planned, group.verdict) == (3, 4, "undecided")
    assert group.validation_accuracy == pytest.approx(accuracy + 0.008 / 3)
    assert group.difference == pytest.approx(accuracy + 0.008 / 3 - 0.9)
    assert group.density == pytest.approx(0.4)


@pytest.mark.parametrize("status", UNFINISHED)
def test_a_group_of_which_nothing_is_done_has_no_figures(run, status):
    for number in (1, 2, 3):
        unfinished(run, number, "60", status)

    group = group_of(run, "ticket", 60)

    assert (group.count, group.planned, group.verdict, group.spread) == (0, 3, "undecided", None)
    assert (group.rewind, group.rewind_step) == ("1ep", 45)
    assert (group.low, group.high) == (-math.inf, math.inf)
    for figure in (group.validation_accuracy, group.test_accuracy, group.difference, group.density):
        assert math.isnan(figure)


def test_a_diverged_network_says_how_dense_it_is(run):
    density = {"density": {"prunable": 0.4, "trainable": 0.41, "total": 0.42}}
    for number in (1, 2, 3):
        job = Job(number, parse_quantiles("60")[0], 45, "ticket")
        more = {"quantile": 60.0, "variant": "ticket", "replicate": number, **density}
        write(run.network(job), None, "diverged", 45, step=50, **more)

    assert results.rows(run)[-1]["density"] == 0.4
    assert group_of(run, "ticket", 60).density == pytest.approx(0.4)


def test_dense_networks_that_are_missing_are_planned(tmp_path):
    run = Run(tmp_path, planned(replicates=3))
    dense(run, 0.90)

    group = results.groups(results.rows(run), 0.002)[0]

    assert (group.variant, group.count, group.planned, group.verdict) == ("dense", 1, 3, None)
    assert (group.validation_accuracy, group.density) == (0.90, 1.0)


def test_differences_are_paired_by_replicate(run):
    for number, accuracy in ((3, 0.90), (1, 0.92), (2, 0.91)):
        ticket(run, number, "80", accuracy)

    group = group_of(run, "ticket", 80)

    assert group.difference == pytest.approx(0)
    assert group.high == pytest.approx(2.919986 * 0.02 / math.sqrt(3), rel=1e-5)


def test_dense_networks_are_a_group_without_a_verdict(run):
    group = results.groups(results.rows(run), 0.002)[0]

    assert (group.variant, group.count, group.verdict, group.density) == ("dense", 3, None, 1.0)
    assert group.validation_accuracy == pytest.approx(0.91)
    assert group.spread == pytest.approx(0.01)
    assert group.test_accuracy == pytest.approx(0.90)


def test_one_network_has_no_spread(run):
    ticket(run, 1, "80", 0.9)

    assert group_of(run, "ticket", 80).spread is None


def test_quantiles_are_sorted_as_numbers(run):
    for quantile in ("97.5", "9", "100", "90"):
        ticket(run, 1, quantile, 0.9)

    found = [group.quantile for group in results.groups(results.rows(run), 0.002)]

    assert found == [None, 9, 60, 90, 97.5, 100]


def test_groups_go_from_dense_to_sparse_with_tickets_before_their_controls(run):
    ticket(run, 1, "90", 0.9, step=0, variant="reinit")
    ticket(run, 1, "90", 0.9, step=0)
    ticket(run, 1, "95", 0.9, step=0)
    ticket(run, 1, "80", 0.9, step=45)
    ticket(run, 1, "80", 0.9, step=0)

    found = [(group.variant, group.quantile, group.rewind) for group in results.groups(results.rows(run), 0.002)]

    assert found == [
        ("dense", None, "0"),
        ("ticket", 60, "1ep"),
        ("ticket", 80, "0"),
        ("ticket", 80, "1ep"),
        ("ticket", 90, "0"),
        ("reinit", 90, "0"),
        ("ticket", 95, "0"),
    ]


def all_replicates(run, quantile, difference, step=45, variant="ticket"):
    for number, dense in enumerate((0.90, 0.91, 0.92), 1):
        ticket(run, number, quantile, dense + difference, step, variant)


def sparsest(run):
    found = results.sparsest_matching(results.groups(results.rows(run), run.recipe.delta))
    return {rewind: group and group.quantile for rewind, group in found.items()}


def test_the_headline_is_the_sparsest_density_at_which_it_and_all_denser_ones_match(run):
    for quantile, difference in (("60", 0.01), ("80", 0.0), ("90", -0.05), ("95", 0.01)):
        all_replicates(run, quantile, difference)

    assert sparsest(run) == {"1ep": 80}


def test_an_undecided_density_ends_the_headline_too(run):
    all_replicates(run, "60", 0.01)
    ticket(run, 1, "80", 0.99)
    all_replicates(run, "90", 0.01)

    assert sparsest(run) == {"1ep": 60}


@pytest.mark.parametrize("status", UNFINISHED)
def test_a_density_whose_networks_are_not_done_ends_the_headline_before_a_sparser_one_that_matches(tmp_path, status):
    run = Run(tmp_path, planned("50,80"))
    dense(run, 0.90, 0.91, 0.92)
    for number in (1, 2, 3):
        unfinished(run, number, "50", status)
    all_replicates(run, "80", 0.01)

    assert group_of(run, "ticket", 80).verdict == "matching"
    assert sparsest(run) == {"1ep": None}


@pytest.mark.parametrize("status", UNFINISHED)
def test_one_network_that_is_not_done_ends_the_headline_at_the_density_before(four, status):
    for number in (1, 2, 3, 4):
        ticket(four, number, "60", 0.95)
        ticket(four, number, "90", 0.95)
        if number != 3:
            ticket(four, number, "80", 0.95)
    unfinished(four, 3, "80", status)

    assert group_of(four, "ticket", 90).verdict == "matching"
    assert sparsest(four) == {"1ep": 60}


def test_the_headline_goes_from_dense_to_sparse_in_whatever_order_the_groups_come(run):
    for quantile, difference in (("60", 0.01), ("80", -0.05), ("90", 0.01)):
        all_replicates(run, quantile, difference)

    groups = results.groups(results.rows(run), 0.002)

    assert {rewind: group.quantile for rewind, group in results.sparsest_matching(groups[::-1]).items()} == {"1ep": 60}


def test_a_rewind_point_of_which_nothing_is_trained_has_an_empty_headline(tmp_path):
    run = Run(tmp_path, planned("60", "0,1ep"))
    dense(run, 0.90, 0.91, 0.92)
    all_replicates(run, "60", 0.01)

    assert sparsest(run) == {"0": None, "1ep": 60}


def test_the_headline_is_empty_where_the_densest_ticket_does_not_match(run):
    all_replicates(run, "60", -0.05)
    all_replicates(run, "80", 0.01)

    assert sparsest(run) == {"1ep": None}


def test_each_rewind_point_has_its_own_headline_and_controls_have_none(run):
    all_replicates(run, "60", 0.01, step=0)
    all_replicates(run, "60", 0.01, step=45)
    all_replicates(run, "80", 0.01, step=45)
    all_replicates(run, "60", -0.05, step=0, variant="reinit")
    all_replicates(run, "60", -0.05, step=90, variant="shuffle")

    assert sparsest(run) == {"0": 60, "1ep": 80}
