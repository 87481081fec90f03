"""Differences between groups of networks on hand-made runs, with intervals worked out by hand: the two-sided 95 % quantile of
Student's t is 12.706205 with 1 degree of freedom, 4.302653 with 2."""

import math

import pytest
from handmade import all_replicates, dense, in_rounds, planned, three, ticket

from lottery.results import frame
from lottery.results.grouping import contrasts
from lottery.rundir.run import Run


@pytest.fixture
def run(tmp_path):
    """Three replicates whose dense networks reach 90, 91 and 92 %."""
    made = Run(tmp_path / "run", planned("60,90", "0,1ep"))
    dense(made, 0.90, 0.91, 0.92, early=(400, 0.80))
    return made


def found(run):
    """What each kind of tickets is held against: by family, mask, rewind point and what that is, a row by figure."""
    kinds = {}
    for row in frame.each(contrasts(run, frame.rows(run))):
        kinds.setdefault((row.family, row.mask, row.rewind, row.against), {})[row.figure] = row
    return kinds


def against(run, mask="q90", rewind="1ep", family="oneshot"):
    """What a group of tickets is held against, by name: the difference in each figure."""
    return {kind[3]: figures for kind, figures in found(run).items() if kind[:3] == (family, mask, rewind)}


def above(figures):
    """How far tickets are above in validation accuracy."""
    return round(figures["validation"].mean, 9)


def test_before_a_ticket_is_done_there_is_nothing_to_hold_against_anything(run):
    all_replicates(run, "90", 0.0, variant="shuffle")

    assert found(run) == {}


def test_a_ticket_is_held_against_the_dense_network_in_four_figures(run):
    for number, accuracy in enumerate((0.902, 0.911, 0.923), 1):
        ticket(run, number, "90", accuracy, early=(450 + number, 0.83))

    contrast = against(run)["dense"]

    accuracy = contrast["validation"]
    margin = 4.302653 * 0.001 / math.sqrt(3)  # differences 0.2, 0.1, 0.3 points
    assert (accuracy.mean, accuracy.count) == (pytest.approx(0.002), 3)
    assert (accuracy.low, accuracy.high) == (pytest.approx(0.002 - margin, rel=1e-5), pytest.approx(0.002 + margin, rel=1e-5))
    assert contrast["test"].mean == pytest.approx(0.002)
    assert contrast["test_there"].mean == pytest.approx(0.03)
    step = contrast["least_validation_loss_step"]
    assert (step.mean, step.high) == (pytest.approx(52), pytest.approx(52 + 4.302653 / math.sqrt(3), rel=1e-6))
    assert accuracy.density == pytest.approx(0.1)


def test_two_replicates_have_an_interval_and_one_has_none(run):
    ticket(run, 1, "90", 0.91)
    ticket(run, 2, "90", 0.94)  # differences 1 and 3 points
    ticket(run, 2, "60", 0.92)

    two = against(run)["dense"]["validation"]
    one = against(run, "q60")["dense"]["validation"]

    margin = 12.706205 * math.sqrt(2) * 0.01 / math.sqrt(2)
    assert (two.low, two.high) == (pytest.approx(0.02 - margin, rel=1e-6), pytest.approx(0.02 + margin, rel=1e-6))
    assert (one.mean, one.low, one.high, one.count) == (pytest.approx(0.01), None, None, 1)
    assert [mask for _, mask, *_ in found(run)] == ["q60", "q90"]  # from dense to sparse, in whichever replicate


@pytest.mark.parametrize(
    ("accuracies", "clear"),
    [((0.91, 0.921, 0.931), True), ((0.905, 0.911, 0.915), False), ((0.88, 0.891, 0.901), True), ((0.89, 0.92, 0.92), False)],
)
def test_a_difference_is_clear_when_its_interval_lies_on_one_side_of_zero(run, accuracies, clear):
    for number, accuracy in enumerate(accuracies, 1):
        ticket(run, number, "90", accuracy)

    difference = against(run)["dense"]["validation"]

    assert difference.clear is clear
    assert clear is (difference.low > 0 or difference.high < 0)


def test_differences_that_are_all_the_same_have_no_spread_to_judge_by(run):
    for number, baseline in enumerate((0.90, 0.91, 0.92), 1):
        ticket(run, number, "90", baseline + 0.01, early=(355, 0.83))  # each stopped one evaluation earlier

    for name in ("validation", "least_validation_loss_step"):
        difference = against(run)["dense"][name]
        assert (difference.low, difference.high, difference.clear) == (None, None, False)
    assert against(run)["dense"]["least_validation_loss_step"].mean == -45


def test_every_rewind_point_is_held_against_the_earliest_the_one_reinit_of_its_mask_and_its_own_shuffle(run):
    for step, points in ((0, -0.01), (45, 0.01), (90, 0.02)):
        all_replicates(run, "90", points, step=step)
    for variant, points in (("reinit", -0.03), ("random", -0.05), ("shuffle", -0.02)):
        all_replicates(run, "90", points, step=0, variant=variant)
    all_replicates(run, "60", 0.02, step=45)

    held = {rewind: {name: above(one) for name, one in against(run, rewind=rewind).items()} for rewind in ("0", "1ep", "2ep")}

    assert held == {
        "0": {"dense": -0.01, "reinit": 0.02, "random": 0.04, "shuffle": 0.01},
        "1ep": {"dense": 0.01, "reinit": 0.04, "random": 0.06, "rewound to 0": 0.02},
        "2ep": {"dense": 0.02, "reinit": 0.05, "random": 0.07, "rewound to 0": 0.03},
    }
    assert against(run, "q60").keys() == {"dense"}


def test_only_replicates_that_have_both_count_and_they_are_paired(run):
    for number, accuracy in ((3, 0.93), (1, 0.91)):
        ticket(run, number, "90", accuracy)
    for number, accuracy in ((1, 0.90), (2, 0.10), (3, 0.90)):
        ticket(run, number, "90", accuracy, variant="shuffle")
    ticket(run, 2, "90", status="diverged")

    difference = against(run)["shuffle"]["validation"]

    assert (difference.mean, difference.count) == (pytest.approx(0.02), 2)  # 1 and 3 points
    ticket(run, 1, "60", 0.9)
    ticket(run, 2, "60", 0.9, variant="shuffle")
    assert against(run, "q60").keys() == {"dense"}  # where no replicate has both
    assert against(run)["dense"]["validation"].count == 2


def test_rounds_are_held_against_the_controls_of_their_own_chain_and_round(tmp_path):
    run = three(tmp_path, "90", rounds={"rounds": 2, "rewind": "0,1ep", "methods": ["weights", "lr"]})
    all_replicates(run, "90", -0.5, variant="shuffle")  # one-shot: another mask
    for step, points in ((0, 0.01), (45, 0.03)):
        in_rounds(run, "lr", 2, points, step=step)
        in_rounds(run, "lr", 2, points - 0.02, "reinit", step)
        in_rounds(run, "lr", 2, points - 0.005, "extended", step)
    in_rounds(run, "lr", 1, 0.0, step=45)
    in_rounds(run, "weights", 2, 0.04, step=0)

    later = against(run, "round-02", "1ep", "lr")

    assert {name: above(figures) for name, figures in later.items()} == {
        "dense": 0.03,
        "extended": 0.005,
        "reinit": 0.02,
        "rewound to 0": 0.02,
    }
    assert list(later) == ["dense", "extended", "reinit", "rewound to 0"]
    assert against(run, "round-02", "0", "lr").keys() == {"dense", "extended", "reinit"}
    assert against(run, "round-02", "0", "weights").keys() == {"dense", "lr round-02"}
    assert later["dense"]["test"].density == 0.25


def test_families_are_held_against_those_further_down_in_the_recipe_with_the_same_mask_from_the_same_point(tmp_path):
    scratch = {"rounds": 2, "rewind": "0"}
    rounds = {"rounds": 2, "rewind": "0,1ep", "methods": ["weights", "lr", "finetune"]}
    run = three(tmp_path, "", rounds=rounds, scratch=scratch)
    for family, points in (("finetune", -0.01), ("lr", 0.02), ("weights", 0.03)):
        in_rounds(run, family, 2, points)
    in_rounds(run, "lr", 1, -0.5)
    in_rounds(run, "finetune", 2, -0.5, "reinit")
    in_rounds(run, "scratch", 2, 0.01, step=0)
    in_rounds(run, "weights", 2, 0.02, step=0)

    held = {(family, mask, rewind): {} for family, mask, rewind, _ in found(run)}
    for kind, figures in found(run).items():
        held[kind[:3]][kind[3]] = above(figures)

    assert held == {
        ("weights", "round-02", "0"): {"dense": 0.02, "scratch round-02": 0.01},
        ("weights", "round-02", "1ep"): {"dense": 0.03, "rewound to 0": 0.01, "lr round-02": 0.01, "finetune round-02": 0.04},
        ("lr", "round-01", "1ep"): {"dense": -0.5},
        ("lr", "round-02", "1ep"): {"dense": 0.02, "finetune round-02": 0.03},
        ("finetune", "round-02", "1ep"): {"dense": -0.01, "reinit": 0.49},
        ("scratch", "round-02", "0"): {"dense": 0.01},
    }


def test_a_collapsed_ticket_or_control_is_marked(run):
    all_replicates(run, "90", 0.01)
    for number in (1, 2, 3):
        ticket(run, number, "60", 0.9, collapsed=["fc1/kernel"] if number == 2 else [])
        ticket(run, number, "90", 0.2, variant="shuffle", disconnected=number == 2)

    emptied, cut = (
        "hardly anything is left of fc1/kernel (layer collapse)",
        "no path from input to output is left (layer collapse)",
    )
    rows = [row for one in found(run).values() for row in one.values()]
    assert {(row.mask, row.against, row.collapse, row.collapse_against) for row in rows} == {
        ("q60", "dense", emptied, None),
        ("q90", "dense", None, None),
        ("q90", "shuffle", None, cut),
    }
