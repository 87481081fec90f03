"""Results of hand-made runs: a row for each network."""

import pytest
from handmade import dense, in_round, in_rounds, planned, ticket, write

from data_prep import files
from lottery.jobs import Chain, Round
from lottery.results import listing
from lottery.run import Run


@pytest.fixture
def run(tmp_path):
    """Three replicates whose dense networks reach 90, 91 and 92 %; its grid is the quantile 60 at 1ep."""
    made = Run(tmp_path / "run", planned())
    dense(made, 0.90, 0.91, 0.92)
    return made


def done(run):
    return [row for row in listing.rows(run) if row["status"] == "done"]


def places(rows):
    return [(row["variant"], row["replicate"], row["quantile"], row["rewind_step"]) for row in rows]


def test_before_a_dense_network_is_trained_only_the_dense_ones_are_known_to_be_missing(tmp_path):
    found = listing.rows(Run(tmp_path, planned()))

    assert places(found) == [("dense", number, None, 0) for number in (1, 2, 3)]
    assert [row["status"] for row in found] == ["missing"] * 3
    assert [row["validation_accuracy"] for row in found] == [None] * 3


def test_every_network_of_the_grids_without_a_result_has_a_row(tmp_path):
    run = Run(tmp_path, planned("60,90", "0,1ep", replicates=2, controls=["reinit", "shuffle"]))
    dense(run, 0.90)
    ticket(run, 1, "60", 0.9)

    missing = [row for row in listing.rows(run) if row["status"] == "missing"]

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
    row = listing.rows(run)[-1]

    known = {"replicate": 3, "variant": "ticket", "quantile": 60.0, "rewind": "1ep", "rewind_step": 45, "status": "missing"}
    known |= {"method": "oneshot", "against": "dense", "folder": "replicate-3/retrain/q60-step-000045/ticket"}
    assert row == dict.fromkeys(listing.COLUMNS) | known
    assert tuple(row) == listing.COLUMNS


def test_masks_beyond_the_recipe_are_missed_in_every_replicate(run):
    replicate = run.replicate(2)
    replicate.masks.mkdir()
    (replicate.masks / "q97.5.h5").touch()
    files.write_json(replicate.thresholds, {"quantiles": [{"quantile": 97.5}]})

    assert places(listing.rows(run))[3:] == [("ticket", number, 97.5, 45) for number in (1, 2, 3)]


def test_a_network_that_is_no_longer_in_the_grids_keeps_its_row(run):
    ticket(run, 2, "99", 0.9, step=0)

    assert places(done(run))[3:] == [("ticket", 2, 99, 0)]


def test_the_row_of_a_ticket(run):
    ticket(run, 2, "90", 0.905, exact_zeros=1234, replicas=4)

    row = done(run)[-1]

    assert row == {
        "replicate": 2,
        "variant": "ticket",
        "method": "oneshot",
        "quantile": 90.0,
        "level": None,
        "density": pytest.approx(0.1),
        "density_trainable": pytest.approx(0.11),
        "density_total": pytest.approx(0.12),
        "density_effective": None,
        "exact_zeros": 1234,
        "collapse": None,
        "rewind": "1ep",
        "rewind_step": 45,
        "status": "done",
        "reason": None,
        "validation_accuracy": 0.905,
        "against": "dense",
        "difference": pytest.approx(-0.005),
        "validation_loss": 0.5,
        "test_accuracy": pytest.approx(0.895),
        "test_loss": 0.6,
        "least_validation_loss_step": 450,
        "test_accuracy_there": pytest.approx(0.895),
        "epochs": 19.0,
        "seconds": 12.0,
        "devices": 4,
        "made_by": "imp 0.1.0, tensorflow 2.21.0, keras 3.15.1 on CPU",
        "folder": "replicate-2/retrain/q90-step-000045/ticket",
    }
    assert tuple(row) == listing.COLUMNS


def test_the_row_of_a_dense_network_has_every_weight_and_no_difference(run):
    row = listing.rows(run)[0]

    assert (row["variant"], row["density"], row["density_total"], row["quantile"]) == ("dense", 1.0, 1.0, None)
    assert row["density_effective"] is None  # without its topology
    assert (row["against"], row["difference"], row["rewind"]) == (None, None, "0")


def test_dense_networks_come_first_then_replicate_quantile_and_step(run):
    ticket(run, 2, "80", 0.9, step=45)
    ticket(run, 1, "90", 0.9, step=0)
    ticket(run, 1, "90", 0.9, step=45)
    ticket(run, 1, "9", 0.9, step=45)

    assert places(listing.rows(run)) == [
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

    names = {row["rewind_step"]: row["rewind"] for row in listing.rows(run) if row["variant"] == "ticket"}

    assert names == {0: "0", 10: "10it", 45: "1ep", 90: "2ep", 77: "77it"}


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_network_that_did_not_finish_has_a_row_without_figures(run, status):
    ticket(run, 3, "90", status=status)

    row = listing.rows(run)[-1]

    assert (row["status"], row["quantile"], row["rewind"]) == (status, 90.0, "1ep")
    assert (row["validation_accuracy"], row["difference"], row["density"], row["test_accuracy"]) == (None, None, None, None)


def test_without_its_dense_network_a_ticket_has_no_difference(run):
    ticket(run, 3, "90", 0.9)
    run.replicate(3).dense.result.unlink()

    row = listing.rows(run)[-1]

    assert (row["replicate"], row["status"], row["validation_accuracy"], row["difference"]) == (3, "done", 0.9, None)
    assert [row["status"] for row in listing.rows(run)[:3]] == ["done", "done", "missing"]


def test_the_plan_of_a_run_is_read_off_its_dense_network(run, tmp_path):
    assert run.trained_plan().steps_per_epoch == 45
    assert Run(tmp_path / "other", run.recipe).trained_plan() is None


CHAINS = {"rewind": "1ep", "levels": 2, "methods": ["weights", "lr"]}


@pytest.fixture
def pruned(tmp_path):
    """Three replicates whose dense networks reach 90, 91 and 92 %; two rounds of `weights` and of `lr` from 1ep, and no
    one-shot tickets."""
    made = Run(tmp_path / "pruned", planned("", rounds=CHAINS))
    dense(made, 0.90, 0.91, 0.92)
    return made


def test_every_network_of_the_rounds_is_missed_and_the_one_shot_grid_only_where_the_recipe_has_it(tmp_path):
    run = Run(tmp_path, planned(replicates=1, rounds=CHAINS))
    dense(run, 0.9)

    found = [(row["variant"], row["method"], row["quantile"], row["level"]) for row in listing.rows(run)[1:]]
    rounds = Run(tmp_path, planned("", replicates=1, rounds=CHAINS))

    assert found == [
        ("ticket", "oneshot", 60.0, None),
        ("ticket", "lr", None, 1),
        ("extended", "lr", None, 1),
        ("ticket", "lr", None, 2),
        ("extended", "lr", None, 2),
        ("ticket", "weights", None, 1),
        ("ticket", "weights", None, 2),
    ]
    assert [row["method"] for row in listing.rows(rounds)[1:]] == ["lr"] * 4 + ["weights"] * 2


def test_the_row_of_a_network_in_a_round(pruned):
    in_round(pruned, 2, "weights", 2, 0.90, collapsed=["fc1/kernel"])

    row = next(row for row in done(pruned) if row["method"] == "weights")

    known = {"replicate": 2, "variant": "ticket", "method": "weights", "quantile": None, "level": 2, "rewind": "1ep"}
    assert row | known == row
    assert (row["density"], row["density_effective"]) == (0.25, pytest.approx(0.225))
    assert row["collapse"] == "hardly anything is left of fc1/kernel (layer collapse)"
    assert (row["against"], row["difference"]) == ("dense", pytest.approx(-0.01))
    assert row["rewind_step"] == 45


def test_a_control_from_scratch_stands_in_the_chain_of_its_ticket(pruned):
    in_round(pruned, 1, "weights", 1, 0.88, variant="reinit")

    row = next(row for row in done(pruned) if row["variant"] == "reinit")

    assert (row["method"], row["level"], row["rewind"], row["rewind_step"], row["epochs"]) == ("weights", 1, "1ep", 45, 20.0)


def test_what_trains_on_is_held_against_the_dense_network_trained_as_long_and_no_other(pruned):
    in_rounds(pruned, "lr", 1, 0.005)
    in_rounds(pruned, "lr", 2, 0.005)
    in_rounds(pruned, "lr", 2, 0.015, "extended")
    in_rounds(pruned, "weights", 2, 0.005)

    held = {
        (row["variant"], row["method"], row["level"]): (row["against"], row["difference"] and round(row["difference"], 6))
        for row in done(pruned)
        if row["variant"] != "dense"
    }

    assert held == {
        ("ticket", "lr", 1): ("extended", None),
        ("ticket", "lr", 2): ("extended", -0.01),
        ("extended", "lr", 2): ("dense", 0.015),
        ("ticket", "weights", 2): ("dense", 0.005),
    }


def test_without_a_network_trained_as_long_that_is_done_a_ticket_has_no_difference(pruned):
    in_rounds(pruned, "lr", 1, 0.005)
    in_round(pruned, 1, "lr", 1, variant="extended", status="diverged")

    found = [(row["against"], row["difference"]) for row in done(pruned) if row["method"] == "lr"]

    assert found == [("extended", None)] * 3


def test_networks_beyond_the_grids_are_missed_where_they_are_asked_for(pruned):
    control = Round(Chain(2, "weights", 45), 2, "reinit")

    (row,) = (row for row in listing.rows(pruned, [control]) if row["variant"] == "reinit")

    known = {"replicate": 2, "method": "weights", "level": 2, "status": "missing", "against": "dense", "difference": None}
    assert row | known == row


def test_how_many_images_verdicts_go_by_is_what_a_dense_training_has_noted(tmp_path):
    made = Run(tmp_path, planned(replicates=2))
    assert listing.validation_images(made) is None

    write(made.replicate(1).dense, 0.9, replicate=1)
    write(made.replicate(2).dense, 0.9, replicate=2, validation_images=287)

    assert listing.validation_images(made) == 287


def test_a_replicate_that_was_added_and_is_not_trained_yet_is_missing_as_a_dense_network_alone(run):
    run.replicate(5).folder.mkdir()

    missing = [row for row in listing.rows(run) if row["replicate"] == 5]

    assert places(missing) == [("dense", 5, None, 0)]
    assert missing[0]["status"] == "missing"
