"""Results of hand-made runs: groups of replicates, verdicts, and the headline."""

import math

import numpy as np
import pandas
import pytest
from handmade import CHAINS, all_replicates, dense, in_round, in_rounds, kept, one_mask, planned, ticket, two_chains, write
from helpers import selected

from lottery.results import frame, grouping
from lottery.rundir.run import Run

run, pruned = pytest.fixture(one_mask), pytest.fixture(two_chains)


@pytest.fixture
def four(tmp_path):
    """Four replicates whose dense networks reach 90 %; the grid is 60, 80 and 90 at 1ep."""
    made = Run(tmp_path / "four", planned("60,80,90", replicates=4))
    dense(made, 0.90, 0.90, 0.90, 0.90)
    return made


def groups_of(run):
    return frame.each(grouping.groups(run, frame.rows(run)))


def group_of(run, variant, mask):
    return next(group for group in groups_of(run) if (group.variant, group.mask) == (variant, mask))


@pytest.mark.parametrize(
    ("points", "verdict", "needed"),
    [
        ((0.2, 0.1, 0.2), "matching", 3),
        ((-1.0, -1.1, -1.2), "not matching", 4),
        ((0.0, -1.0, 1.0), "undecided", 156),
        ((-0.1, 0.2, 0.1), "matching", 6),
        ((2.0, 0.0, -2.0), "undecided", 620),
    ],
)
def test_a_verdict_follows_from_the_bounds_of_the_differences_paired_by_replicate(run, points, verdict, needed):
    differences = np.array(points) / 100
    for number in (3, 1, 2):
        ticket(run, number, "80", 0.89 + 0.01 * number + differences[number - 1])

    group = group_of(run, "ticket", "q80")

    mean, deviation = differences.mean(), differences.std(ddof=1)
    margin = 2.919986 * deviation / math.sqrt(3)
    assert (group.verdict, group.needed) == (verdict, needed)
    assert (group.count, group.planned, group.rewind, group.density) == (3, 3, "1ep", pytest.approx(0.2))
    assert (group.validation, group.difference) == (pytest.approx(0.91 + mean), pytest.approx(mean))
    assert group.deviation == pytest.approx(deviation)
    assert (group.low, group.high) == (pytest.approx(mean - margin, rel=1e-5), pytest.approx(mean + margin, rel=1e-5))


def test_a_group_without_a_spread_is_undecided_however_good_it_is(run):
    for number, baseline in enumerate((0.90, 0.91, 0.92), 1):
        ticket(run, number, "80", baseline + 0.01)

    group = group_of(run, "ticket", "q80")

    assert (group.verdict, group.deviation, group.needed, group.low) == ("undecided", None, None, None)
    assert group.difference == pytest.approx(0.01)


UNFINISHED = ("missing", "failed", "diverged")


def unfinished(run, replicate, quantile, status):
    if status != "missing":
        ticket(run, replicate, quantile, status=status)


@pytest.mark.parametrize(("status", "accuracy"), [("missing", 0.95), ("failed", 0.85), ("diverged", 0.95)])
def test_a_member_that_is_not_done_leaves_the_group_undecided_whatever_the_others_say(four, status, accuracy):
    for number in (1, 2, 3, 4):
        ticket(four, number, "80", accuracy + 0.001 * number)
        if number != 2:
            ticket(four, number, "60", accuracy + 0.001 * number)
    unfinished(four, 2, "60", status)

    group = group_of(four, "ticket", "q60")

    assert group_of(four, "ticket", "q80").verdict == ("matching" if accuracy > 0.9 else "not matching")
    assert (group.count, group.planned, group.verdict) == (3, 4, "undecided")
    assert group.validation == pytest.approx(accuracy + 0.008 / 3)
    assert group.difference == pytest.approx(accuracy + 0.008 / 3 - 0.9)
    assert group.density == pytest.approx(0.4)


@pytest.mark.parametrize("status", UNFINISHED)
def test_a_group_of_which_nothing_is_done_has_no_figures(run, status):
    for number in (1, 2, 3):
        unfinished(run, number, "60", status)

    group = group_of(run, "ticket", "q60")

    assert (group.count, group.planned, group.verdict, group.spread) == (0, 3, "undecided", None)
    assert (group.rewind, group.rewind_step) == ("1ep", 45)
    assert (group.low, group.high, group.against) == (None, None, "dense")
    for figure in (group.validation, group.test, group.difference, group.density):
        assert figure is None


def test_a_diverged_network_says_how_dense_it_is(run):
    for number in (1, 2, 3):
        ticket(run, number, "60", status="diverged", step=45, kept=kept(0.4))

    assert frame.dicts(frame.rows(run))[-1]["density"] == 0.4
    assert group_of(run, "ticket", "q60").density == pytest.approx(0.4)


def test_dense_networks_that_are_missing_are_planned(tmp_path):
    run = Run(tmp_path, planned(replicates=3))
    dense(run, 0.90)

    group = groups_of(run)[0]

    assert (group.variant, group.count, group.planned, group.verdict) == ("dense", 1, 3, None)
    assert (group.validation, group.density) == (0.90, 1.0)


def test_dense_networks_are_a_group_without_a_verdict_and_one_network_has_no_spread(run):
    ticket(run, 1, "80", 0.9)

    group = groups_of(run)[0]

    assert (group.variant, group.count, group.verdict, group.density) == ("dense", 3, None, 1.0)
    assert (group.validation, group.test) == (pytest.approx(0.91), pytest.approx(0.90))
    assert group.spread == pytest.approx(0.01)
    assert group_of(run, "ticket", "q80").spread is None


def test_groups_go_from_dense_to_sparse_with_tickets_before_their_controls(run):
    ticket(run, 1, "90", 0.9, step=0, variant="reinit")
    ticket(run, 1, "90", 0.9, step=0)
    ticket(run, 1, "95", 0.9, step=0)
    ticket(run, 1, "80", 0.9, step=45)
    ticket(run, 1, "80", 0.9, step=0)
    for quantile in ("97.5", "9", "100"):
        ticket(run, 1, quantile, 0.9)

    found = [(group.variant, group.mask, group.rewind) for group in groups_of(run)]

    assert found == [
        ("dense", "", "0"),
        ("ticket", "q9", "1ep"),
        ("ticket", "q60", "1ep"),
        ("ticket", "q80", "0"),
        ("ticket", "q80", "1ep"),
        ("ticket", "q90", "0"),
        ("reinit", "q90", "0"),
        ("ticket", "q95", "0"),
        ("ticket", "q97.5", "1ep"),
        ("ticket", "q100", "1ep"),
    ]


UNDECIDED = None


def sparsest(run):
    """The mask of the headline of each series, by family and rewind point."""
    found = grouping.tickets(grouping.groups(run, frame.rows(run)))
    best = {key: grouping.sparsest_matching(tickets) for key, tickets in found.items()}
    return {" ".join(key): group and group.mask for key, group in best.items()}


@pytest.mark.parametrize(
    ("differences", "headline"),
    [
        ({"60": 0.01, "80": 0.0, "90": -0.05, "95": 0.01}, "q80"),
        ({"60": 0.01, "80": UNDECIDED, "90": 0.01}, "q90"),
        ({"60": UNDECIDED}, None),
        ({"60": -0.05, "80": 0.01}, None),
    ],
)
def test_the_headline_is_the_sparsest_density_that_matches_and_none_denser_does_not(run, differences, headline):
    for quantile, difference in differences.items():
        if difference is UNDECIDED:
            ticket(run, 1, quantile, 0.99)
        else:
            all_replicates(run, quantile, difference)

    assert sparsest(run) == {"oneshot 1ep": headline}


def test_each_rewind_point_has_its_own_headline_empty_where_nothing_is_trained_and_controls_have_none(tmp_path):
    run = Run(tmp_path, planned("60", "0,10it,1ep"))
    dense(run, 0.90, 0.91, 0.92)
    all_replicates(run, "60", 0.01, step=0)
    all_replicates(run, "60", 0.01, step=45)
    all_replicates(run, "80", 0.01, step=45)
    all_replicates(run, "60", -0.05, step=0, variant="reinit")
    all_replicates(run, "60", -0.05, step=90, variant="shuffle")

    assert sparsest(run) == {"oneshot 0": "q60", "oneshot 10it": None, "oneshot 1ep": "q80"}


def test_tickets_that_train_on_have_no_verdict_without_the_network_trained_as_long(pruned):
    in_rounds(pruned, "lr", 1, 0.005)
    in_round(pruned, 1, "lr", 1, 0.903, variant="extended")  # of the other replicates there is none yet

    group = next(group for group in groups_of(pruned) if (group.variant, group.family, group.round) == ("ticket", "lr", 1))

    assert (group.against, group.verdict, group.count, group.deviation) == ("extended", "undecided", 3, None)
    assert group.difference == pytest.approx(0.002, abs=1e-8)  # of the one pair that there is
    assert group.validation == pytest.approx(0.915)


def test_each_chain_has_its_own_headline(pruned):
    in_rounds(pruned, "weights", 1, 0.01)
    in_rounds(pruned, "weights", 2, 0.01)
    for level, above in ((1, 0.0), (2, 0.02)):
        in_rounds(pruned, "lr", level, 0.01)
        in_rounds(pruned, "lr", level, above, "extended")

    assert sparsest(pruned) == {"weights 1ep": "round-02", "lr 1ep": "round-01"}


def test_groups_go_family_by_family_each_from_dense_to_sparse(tmp_path):
    pruned = Run(tmp_path, planned("5,90", rounds=CHAINS))
    dense(pruned, 0.90, 0.91, 0.92)
    in_rounds(pruned, "lr", 2, 0.0, "extended")
    in_rounds(pruned, "weights", 1, 0.0, "reinit")
    in_rounds(pruned, "weights", 10, 0.0)

    found = [(group.variant, group.family, group.mask) for group in groups_of(pruned)]

    assert found == [
        ("dense", "", ""),
        ("ticket", "oneshot", "q5"),
        ("ticket", "oneshot", "q90"),
        ("ticket", "weights", "round-01"),
        ("reinit", "weights", "round-01"),
        ("ticket", "weights", "round-02"),
        ("ticket", "weights", "round-10"),
        ("ticket", "lr", "round-01"),
        ("extended", "lr", "round-01"),
        ("ticket", "lr", "round-02"),
        ("extended", "lr", "round-02"),
    ]


def test_the_group_of_a_round_has_the_mean_step_of_least_loss_and_the_test_accuracy_there(pruned):
    for number, (step, reached) in enumerate(((45, 0.80), (90, 0.82), (180, 0.84)), 1):
        in_round(pruned, number, "weights", 1, 0.9, early=(step, reached))

    group = next(group for group in groups_of(pruned) if (group.family, group.round) == ("weights", 1))

    assert (group.least_validation_loss_step, group.test_there) == (pytest.approx(105), pytest.approx(0.82))
    assert (group.density, group.collapse, group.against) == (0.5, None, "dense")


def test_one_member_that_has_collapsed_marks_the_group(pruned):
    in_round(pruned, 1, "weights", 1, 0.9)
    in_round(pruned, 2, "weights", 1, 0.1, disconnected=True)

    group = next(group for group in groups_of(pruned) if (group.family, group.round) == ("weights", 1))

    assert group.collapse == "no path from input to output is left (layer collapse)"


def test_a_replicate_that_was_added_counts_only_with_what_it_has(run):
    for number in (1, 2, 3):
        ticket(run, number, "60", 0.9)
        ticket(run, number, "80", 0.9)
    write(run.replicate(4).dense, 0.9, replicate=4)
    ticket(run, 4, "80", 0.9)

    found = {group.mask: (group.count, group.planned) for group in groups_of(run)}

    assert found == {"": (4, 4), "q60": (3, 3), "q80": (4, 4)}
    assert [row.replicate for row in frame.each(frame.rows(run)) if row.variant == "dense"] == [1, 2, 3, 4]


def test_tickets_of_several_families_that_keep_as_much_are_found_whatever_their_masks_are_called():
    rounds = [("imp", "round-07", 0.20972), ("imp", "round-08", 0.168)]
    one_shot = [("rigl", "q79.03", 0.2097), ("rigl", "q90", 0.1), ("set", "q79.03", 0.2097)]
    tickets = pandas.DataFrame(rounds + one_shot, columns=["family", "mask", "density"]).astype({"density": "Float64"})

    [alike] = grouping.equally_dense(tickets)

    assert sorted(alike["mask"]) == ["q79.03", "q79.03", "round-07"]
    assert grouping.equally_dense(tickets[tickets["family"] == "imp"]) == []


def test_a_run_that_was_stopped_when_it_had_begun_one_quantile_of_gradual_pruning_goes_on_with_all(tmp_path):
    run = Run(tmp_path / "run", planned("60,70", replicates=1, gmp={"quantiles": "80,90", "updates": "gmp", "rewind": "0"}))
    dense(run, 0.9)
    for quantile in ("80", "85"):  # the latter was typed
        ticket(run, 1, quantile, 0.9, step=0, family="gmp")

    assert [quantile.label for quantile in run.families()["gmp"].quantiles] == ["q80", "q85", "q90"]
    assert [quantile.label for quantile in run.families(selected(quantiles="80"))["gmp"].quantiles] == ["q80"]
