"""Differences between groups of networks on hand-made runs, with intervals worked out by hand: the two-sided 95 % quantile of
Student's t is 12.706205 with 1 degree of freedom, 4.302653 with 2."""

import math

import pytest
from handmade import all_replicates, dense, in_round, in_rounds, planned, ticket

from lottery.results import listing
from lottery.results.contrasts import Difference, contrasts, flattened
from lottery.run import Run


@pytest.fixture
def run(tmp_path):
    """Three replicates whose dense networks reach 90, 91 and 92 %."""
    made = Run(tmp_path / "run", planned("60,90", "0,1ep"))
    dense(made, 0.90, 0.91, 0.92, early=(400, 0.80))
    return made


def found(run):
    return contrasts(listing.rows(run))


def against(run, quantile=90.0, rewind="1ep", level=None, method="oneshot"):
    """What a group of tickets is held against, by name."""
    place = (method, quantile, level, rewind)
    return {one.against: one for one in found(run) if (one.method, one.quantile, one.level, one.rewind) == place}


def means(contrast):
    return {name: round(difference.mean, 9) for name, difference in contrast.differences.items()}


def test_before_a_ticket_is_done_there_is_nothing_to_hold_against_anything(run):
    all_replicates(run, "90", 0.0, variant="shuffle")

    assert found(run) == []


def test_a_ticket_is_held_against_the_dense_network_in_four_figures(run):
    for number, accuracy in enumerate((0.902, 0.911, 0.923), 1):
        ticket(run, number, "90", accuracy, early=(450 + number, 0.83))

    contrast = against(run)["dense"]

    accuracy = contrast.differences["validation_accuracy"]
    margin = 4.302653 * 0.001 / math.sqrt(3)  # differences 0.2, 0.1, 0.3 points
    assert (accuracy.mean, accuracy.count) == (pytest.approx(0.002), 3)
    assert (accuracy.low, accuracy.high) == (pytest.approx(0.002 - margin, rel=1e-5), pytest.approx(0.002 + margin, rel=1e-5))
    assert contrast.differences["test_accuracy"].mean == pytest.approx(0.002)
    assert contrast.differences["test_accuracy_there"].mean == pytest.approx(0.03)
    step = contrast.differences["least_validation_loss_step"]
    assert (step.mean, step.high) == (pytest.approx(52), pytest.approx(52 + 4.302653 / math.sqrt(3), rel=1e-6))
    assert contrast.density == pytest.approx(0.1)


def test_two_replicates_have_an_interval_and_one_has_none(run):
    ticket(run, 1, "60", 0.91)
    ticket(run, 1, "90", 0.91)
    ticket(run, 2, "90", 0.94)  # differences 1 and 3 points

    two = against(run)["dense"].differences["validation_accuracy"]
    one = against(run, 60.0)["dense"].differences["validation_accuracy"]

    margin = 12.706205 * math.sqrt(2) * 0.01 / math.sqrt(2)
    assert (two.low, two.high) == (pytest.approx(0.02 - margin, rel=1e-6), pytest.approx(0.02 + margin, rel=1e-6))
    assert (one.mean, one.low, one.high, one.count) == (pytest.approx(0.01), None, None, 1)


@pytest.mark.parametrize(
    ("low", "high", "clear"),
    [(0.1, 0.2, True), (-0.2, -0.1, True), (-0.1, 0.1, False), (0.0, 0.1, False), (None, None, False)],
)
def test_a_difference_is_clear_when_its_interval_lies_on_one_side_of_zero(low, high, clear):
    assert Difference(0.1, low, high, 3).is_clear is clear


def test_differences_that_are_all_the_same_have_no_spread_to_judge_by(run):
    for number, baseline in enumerate((0.90, 0.91, 0.92), 1):
        ticket(run, number, "90", baseline + 0.01, early=(355, 0.83))  # each stopped one evaluation earlier

    for name in ("validation_accuracy", "least_validation_loss_step"):
        difference = against(run)["dense"].differences[name]
        assert (difference.low, difference.high, difference.is_clear) == (None, None, False)
    assert means(against(run)["dense"])["least_validation_loss_step"] == -45


def test_every_rewind_point_is_held_against_the_one_reinit_of_its_mask(run):
    all_replicates(run, "90", -0.01, step=0)
    all_replicates(run, "90", 0.01, step=45)
    all_replicates(run, "90", -0.03, step=0, variant="reinit")
    all_replicates(run, "90", -0.05, step=0, variant="random")
    all_replicates(run, "60", 0.02, step=45)

    assert means(against(run, rewind="0")["reinit"])["validation_accuracy"] == 0.02
    assert means(against(run, rewind="1ep")["reinit"])["validation_accuracy"] == 0.04
    assert means(against(run, rewind="1ep")["random"])["validation_accuracy"] == 0.06
    assert against(run, 60.0).keys() == {"dense"}


def test_every_rewind_point_is_held_against_its_own_shuffle(run):
    all_replicates(run, "90", -0.01, step=0)
    all_replicates(run, "90", 0.01, step=45)
    all_replicates(run, "90", -0.02, step=0, variant="shuffle")

    assert means(against(run, rewind="0")["shuffle"])["validation_accuracy"] == 0.01
    assert against(run, rewind="1ep").keys() == {"dense", "rewound to 0"}


def test_later_rewind_points_are_held_against_the_earliest_of_the_same_mask(run):
    all_replicates(run, "90", -0.01, step=10)
    all_replicates(run, "90", 0.01, step=45)
    all_replicates(run, "90", 0.02, step=90)
    all_replicates(run, "60", -0.05, step=0)

    assert against(run, rewind="10it").keys() == {"dense"}
    assert means(against(run, rewind="1ep")["rewound to 10it"])["validation_accuracy"] == 0.02
    assert means(against(run, rewind="2ep")["rewound to 10it"])["validation_accuracy"] == 0.03


def test_only_replicates_that_have_both_count_and_they_are_paired(run):
    for number, accuracy in ((3, 0.93), (1, 0.91)):
        ticket(run, number, "90", accuracy)
    for number, accuracy in ((1, 0.90), (2, 0.10), (3, 0.90)):
        ticket(run, number, "90", accuracy, variant="shuffle")
    ticket(run, 2, "90", status="diverged")

    difference = against(run)["shuffle"].differences["validation_accuracy"]

    assert (difference.mean, difference.count) == (pytest.approx(0.02), 2)  # 1 and 3 points
    assert against(run)["dense"].differences["validation_accuracy"].count == 2


def test_without_a_replicate_that_has_both_there_is_no_contrast(run):
    ticket(run, 1, "90", 0.9)
    ticket(run, 2, "90", 0.9, variant="shuffle")

    assert against(run).keys() == {"dense"}


def test_rounds_are_held_against_the_controls_of_their_own_chain_and_round(tmp_path):
    run = Run(tmp_path, planned("90", rounds={"levels": 2, "rewind": "0,1ep", "methods": ["weights", "lr"]}))
    dense(run, 0.90, 0.91, 0.92)
    all_replicates(run, "90", 0.5, variant="shuffle")  # one-shot: another mask
    for step, above in ((0, 0.01), (45, 0.03)):
        in_rounds(run, "lr", 2, above, step=step)
        in_rounds(run, "lr", 2, above - 0.02, "reinit", step)
        in_rounds(run, "lr", 2, above - 0.005, "extended", step)
    in_rounds(run, "lr", 1, 0.0, step=45)
    in_rounds(run, "weights", 2, 0.04, step=0)

    later = against(run, None, "1ep", 2, "lr")

    assert {name: means(one)["validation_accuracy"] for name, one in later.items()} == {
        "dense": 0.03,
        "extended": 0.005,
        "reinit": 0.02,
        "rewound to 0": 0.02,
    }
    assert against(run, None, "0", 2, "lr").keys() == {"dense", "extended", "reinit"}
    assert against(run, None, "0", 2, "weights").keys() == {"dense", "lr"}
    assert later["dense"].density == 0.25


def test_methods_are_held_against_each_other_in_the_same_round_from_the_same_point(tmp_path):
    run = Run(tmp_path, planned("", rounds={"levels": 2, "rewind": "0,1ep", "methods": ["weights", "lr", "finetune"]}))
    dense(run, 0.90, 0.91, 0.92)
    for method, above in (("finetune", -0.01), ("lr", 0.02), ("weights", 0.03)):
        in_rounds(run, method, 2, above)
    in_rounds(run, "lr", 1, 0.5)
    in_rounds(run, "finetune", 2, 0.5, "reinit")
    in_rounds(run, "init", 2, 0.01, step=0)

    held = {one.method: {} for one in found(run)}
    for one in found(run):
        held[one.method] |= {(one.level, one.against): means(one)["validation_accuracy"]}

    assert held == {
        "init": {(2, "dense"): 0.01},
        "weights": {(2, "dense"): 0.03, (2, "lr"): 0.01, (2, "finetune"): 0.04},
        "lr": {(1, "dense"): 0.5, (2, "dense"): 0.02, (2, "finetune"): 0.03},
        "finetune": {(2, "dense"): -0.01, (2, "reinit"): -0.51},
    }


def test_a_collapsed_ticket_s_contrasts_say_so(run):
    all_replicates(run, "60", 0.01)
    for number in (1, 2, 3):
        ticket(run, number, "90", 0.9, collapsed=["fc1/kernel"] if number == 2 else [])

    assert {one.quantile: one.collapse for one in found(run)} == {
        60: None,
        90: "hardly anything is left of fc1/kernel (layer collapse)",
    }


def test_a_collapsed_control_is_marked_beside_the_ticket_that_has_not_collapsed(run):
    all_replicates(run, "90", 0.01)
    for number in (1, 2, 3):
        ticket(run, number, "90", 0.2, variant="shuffle", disconnected=number == 2)

    told = "no path from input to output is left (layer collapse)"
    assert {one.against: (one.collapse, one.collapse_against) for one in found(run)} == {
        "dense": (None, None),
        "shuffle": (None, told),
    }
    assert {(row["against"], row["collapse_against"]) for row in flattened(found(run))} == {("dense", None), ("shuffle", told)}


def test_contrasts_go_by_method_and_rewind_point_from_dense_to_sparse(tmp_path):
    run = Run(tmp_path, planned("60,90", "0,1ep", replicates=1, rounds={"levels": 10}))
    dense(run, 0.9)
    for level in (10, 2):
        in_round(run, 1, "weights", level, 0.9)
    for quantile, step in (("90", 0), ("90", 45), ("60", 0), ("60", 45)):
        ticket(run, 1, quantile, 0.9, step)

    order = [(one.quantile, one.level, one.rewind) for one in found(run) if one.against == "dense"]

    assert order == [
        (60, None, "0"),
        (90, None, "0"),
        (60, None, "1ep"),
        (90, None, "1ep"),
        (None, 2, "1ep"),
        (None, 10, "1ep"),
    ]
