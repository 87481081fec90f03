"""Results of hand-made runs: a row for each network."""

import pytest
from handmade import (
    CHAINS,
    COSTS,
    all_replicates,
    amend,
    dense,
    in_round,
    in_rounds,
    one_mask,
    planned,
    three,
    ticket,
    two_chains,
    write_mask,
)
from helpers import kept

from lottery.experiment.graph import DENSE
from lottery.results import frame
from lottery.rundir.run import Run

run, pruned = pytest.fixture(one_mask), pytest.fixture(two_chains)

MADE_BY = {"criterion": "magnitude", "allocation": "global", "units": "weight", "updates": "none"}


def rows_of(run, tickets=None):
    return frame.dicts(frame.rows(run, tickets))


def done(run):
    return [row for row in rows_of(run) if row["status"] == "done"]


def places(rows):
    return [(row["variant"], row["replicate"], row["mask"], row["rewind_step"]) for row in rows]


def test_before_a_dense_network_is_trained_only_the_dense_ones_are_known_to_be_missing(tmp_path):
    found = rows_of(Run(tmp_path, planned()))

    assert places(found) == [("dense", number, "", 0) for number in (1, 2, 3)]
    assert [row["status"] for row in found] == ["missing"] * 3
    assert [row["validation"] for row in found] == [None] * 3


def test_every_network_of_the_grids_without_a_result_has_a_row(tmp_path):
    run = Run(tmp_path, planned("60,90", "0,1ep", replicates=2, controls=["reinit", "shuffle"]))
    dense(run, 0.90)
    ticket(run, 1, "60", 0.9)

    missing = [row for row in rows_of(run) if row["status"] == "missing"]

    under_masks = [
        ("ticket", "q60", 0),
        ("ticket", "q60", 45),
        ("ticket", "q90", 0),
        ("reinit", "q90", 0),
        ("shuffle", "q90", 0),
        ("ticket", "q90", 45),
        ("shuffle", "q90", 45),
    ]
    expected = [(variant, number, mask, step) for number in (1, 2) for variant, mask, step in under_masks]
    assert sorted(places(missing), key=str) == sorted([("dense", 2, "", 0), *expected[:1], *expected[2:]], key=str)
    assert places(done(run)) == [("dense", 1, "", 0), ("ticket", 1, "q60", 45)]


def test_the_row_of_a_missing_network_has_its_place_and_no_figures(run):
    row = rows_of(run)[-1]

    known = {"replicate": 3, "variant": "ticket", "mask": "q60", "round": 1, "rewind": "1ep", "rewind_step": 45, **MADE_BY}
    known |= {"status": "missing", "family": "oneshot", "method": "weights", "against": "dense"}
    known |= {"folder": "replicate-3/oneshot/q60-step-000045/ticket"}
    assert row == dict.fromkeys(tuple(frame.ROWS)) | known
    assert tuple(row) == tuple(frame.ROWS)


def test_masks_beyond_the_recipe_are_missed_in_every_replicate(run):
    write_mask(run.replicate(2), "oneshot", "q97.5", {"a": kept(1000, *range(25))})

    assert places(rows_of(run))[3:] == [("ticket", number, "q97.5", 45) for number in (1, 2, 3)]


def test_the_row_of_a_ticket(run):
    ticket(run, 2, "90", 0.905, exact_zeros=1234, replicas=4, costs=COSTS, training_macs=1900, finding_macs=400)

    row = done(run)[-1]

    known = {
        "replicate": 2,
        "variant": "ticket",
        "family": "oneshot",
        "method": "weights",
        "mask": "q90",
        "round": 1,
        **MADE_BY,
    }
    known |= {"density": 0.1, "density_trainable": 0.11, "density_total": 0.12, "density_effective": None, "collapse": None}
    known |= {"macs": 50, "speedup": 2.0, "float32_bytes": 400, "gzip_bytes": 200}
    known |= {"exact_zeros": 1234, "rewind": "1ep", "rewind_step": 45, "status": "done", "reason": None}
    known |= {"validation": 0.905, "against": "dense", "difference": -0.005, "validation_loss": 0.5}
    known |= {"test": 0.895, "test_loss": 0.6, "least_validation_loss_step": 450, "test_there": 0.895}
    known |= {
        "training_macs": 1900,
        "finding_macs": 400,
        "training_cost": None,
        "finding_cost": None,
    }  # of dense it is not known
    known |= {"epochs": 19.0, "seconds": 12.0, "devices": 4}
    known |= {"made_by": "imp 0.1.0, tensorflow 2.21.0, keras 3.15.1 on CPU"}
    known |= {"folder": "replicate-2/oneshot/q90-step-000045/ticket", "against_folder": "replicate-2/train"}
    known |= {"agreement": None, "worst_class_accuracy": None, "calibration_error": None}  # trained by an earlier version
    assert tuple(row) == tuple(frame.ROWS)
    assert row == {name: pytest.approx(value) if isinstance(value, float) else value for name, value in known.items()}


def test_the_row_of_a_dense_network_has_every_weight_and_no_difference(run):
    row = rows_of(run)[0]

    assert (row["variant"], row["density"], row["density_total"], row["mask"]) == ("dense", 1.0, 1.0, "")
    assert row["density_effective"] is None  # without its topology
    assert (row["against"], row["difference"], row["rewind"]) == (None, None, "0")


def test_a_row_says_how_its_family_prunes(tmp_path):
    snip = {"quantiles": "60", "criterion": "snip", "allocation": "erk", "scored_at": "0"}
    channels = {"quantiles": "60", "units": "channel"}
    grown = {"quantiles": "60", "criterion": "random", "scored_at": "0", "updates": "rigl", "controls": []}
    run = Run(tmp_path, planned("", snip=snip, channels=channels, grown=grown))
    dense(run, 0.9)

    found = {row["family"]: [row[name] for name in MADE_BY] for row in rows_of(run)}

    assert found == {
        "": [None] * 4,
        "snip": ["snip", "erk", "weight", "none"],
        "channels": ["magnitude", "global", "channel", "none"],
        "grown": ["random", "global", "weight", "rigl"],
    }


def test_dense_networks_come_first_then_replicate_quantile_and_step(run):
    for replicate, quantile, step in ((2, "80", 45), (1, "90", 0), (1, "90", 45), (1, "9", 45)):
        ticket(run, replicate, quantile, 0.9, step=step)

    tickets = [(1, "q9", 45), (1, "q60", 45), (1, "q90", 0), (1, "q90", 45), (2, "q60", 45), (2, "q80", 45), (3, "q60", 45)]
    assert places(rows_of(run)) == [
        *(("dense", number, "", 0) for number in (1, 2, 3)),
        *(("ticket", *place) for place in tickets),
    ]


def test_a_rewind_point_goes_by_the_name_that_the_recipe_gives_it(run):
    for step in (0, 10, 45, 90, 77):
        ticket(run, 1, "90", 0.9, step=step)

    names = {row["rewind_step"]: row["rewind"] for row in rows_of(run) if row["variant"] == "ticket"}

    assert names == {0: "0", 10: "10it", 45: "1ep", 90: "2ep", 77: "77it"}


def test_without_its_dense_network_a_ticket_has_no_difference(run):
    ticket(run, 3, "90", 0.9)
    run.replicate(3).dense.result.unlink()

    row = rows_of(run)[-1]

    assert (row["replicate"], row["status"], row["validation"], row["difference"]) == (3, "done", 0.9, None)
    assert [row["status"] for row in rows_of(run)[:3]] == ["done", "done", "missing"]


def test_every_network_of_every_family_is_missed_families_as_the_recipe_has_them(tmp_path):
    run = Run(tmp_path, planned(replicates=1, rounds=CHAINS))
    dense(run, 0.9)

    found = [(row["variant"], row["family"], row["mask"]) for row in rows_of(run)[1:]]

    assert found == [
        ("ticket", "oneshot", "q60"),
        ("ticket", "weights", "round-01"),
        ("ticket", "weights", "round-02"),
        ("ticket", "lr", "round-01"),
        ("extended", "lr", "round-01"),
        ("ticket", "lr", "round-02"),
        ("extended", "lr", "round-02"),
    ]


def test_what_lies_there_of_a_family_that_the_recipe_no_longer_has_is_left_out(tmp_path):
    run = three(tmp_path, "60", rounds=CHAINS)
    in_rounds(run, "lr", 1, 0.01)

    assert {row["family"] for row in rows_of(Run(tmp_path, planned("60")))} == {"", "oneshot"}


def test_the_row_of_a_network_in_a_round(pruned):
    in_round(pruned, 2, "weights", 2, 0.90, collapsed=["fc1/kernel"])

    row = next(row for row in done(pruned) if row["family"] == "weights")

    known = {"replicate": 2, "variant": "ticket", "method": "weights", "mask": "round-02", "round": 2, "rewind": "1ep"}
    assert row | known == row
    assert (row["density"], row["density_effective"]) == (0.25, pytest.approx(0.225))
    assert row["collapse"] == "hardly anything is left of fc1/kernel (layer collapse)"
    assert (row["against"], row["difference"]) == ("dense", pytest.approx(-0.01))
    assert row["rewind_step"] == 45


def test_what_trains_on_is_held_against_the_dense_network_trained_as_long_and_no_other(pruned):
    in_rounds(pruned, "lr", 1, 0.005)
    in_rounds(pruned, "lr", 2, 0.005)
    in_rounds(pruned, "lr", 2, 0.015, "extended")
    in_rounds(pruned, "weights", 2, 0.005)

    held = {
        (row["variant"], row["family"], row["round"]): (row["against"], row["difference"] and round(row["difference"], 6))
        for row in done(pruned)
        if row["variant"] != "dense"
    }

    assert held == {
        ("ticket", "lr", 1): ("extended", None),
        ("ticket", "lr", 2): ("extended", -0.01),
        ("extended", "lr", 2): ("dense", 0.015),
        ("ticket", "weights", 2): ("dense", 0.005),
    }


def test_in_one_shot_a_fresh_control_is_held_against_what_the_ticket_of_the_earliest_rewind_point_is(tmp_path):
    made = three(tmp_path, "", tuned={"quantiles": "90", "method": "lr", "rewind": "10it,1ep", "controls_at": "90"})
    for step, above in ((10, 0.01), (45, 0.02)):
        all_replicates(made, "90", 0.03, step=step, family="tuned")
        all_replicates(made, "90", above, step=step, variant="extended", family="tuned")
    all_replicates(made, "90", -0.05, step=0, variant="reinit", family="tuned")

    held = {(row["variant"], row["rewind_step"]): round(row["difference"] or 0, 6) for row in done(made)}

    assert held == {
        ("dense", 0): 0,
        ("ticket", 10): 0.02,
        ("ticket", 45): 0.01,
        ("extended", 10): 0.01,
        ("extended", 45): 0.02,
        ("reinit", 0): -0.06,
    }


def test_only_the_tickets_asked_for_are_missed(pruned):
    planned_ = pruned.trained_plan()
    (ticket,) = (one for one in pruned.tickets(planned_) if str(one) == "replicate-2 weights round-02-step-000045 ticket")
    (control,) = planned_.controls_of(ticket, pruned.recipe.families["weights"].model_copy(update={"controls": ["reinit"]}))

    (row,) = (row for row in rows_of(pruned, [control]) if row["variant"] != DENSE)

    known = {"replicate": 2, "family": "weights", "round": 2, "status": "missing", "against": "dense", "difference": None}
    assert row | known == row


def test_a_ticket_of_another_dense_network_than_the_one_that_is_there_is_stale_and_has_no_figures(run):
    ticket(run, 2, "60", 0.9)
    ticket(run, 3, "60", 0.9)
    amend(run.replicate(2).dense.result, made_from={"records": "1" * 64})

    stale = [row for row in rows_of(run) if row["status"] == "stale"]

    assert places(stale) == [("ticket", 2, "q60", 45)]
    assert "was made on other examples than the dense network of replicate-2" in stale[0]["reason"]
    assert (stale[0]["density"], stale[0]["seconds"]) == (pytest.approx(0.4), 12.0)
    assert (stale[0]["validation"], stale[0]["difference"], stale[0]["test_there"]) == (None, None, None)
