"""The networks under masks that grids span: one-shot tickets, chains of rounds, their controls, and what waits for what."""

from fractions import Fraction

import pytest

from data_prep.errors import InputError
from lottery.jobs import Chain, Job, Part, Round, chains, needed, one_shot, rounds, side_by_side

CONTROLS = ["reinit", "shuffle", "random"]
WEIGHTS, LR = Chain(1, "weights", 45), Chain(2, "lr", 90)


def test_a_job_is_named_readably():
    assert str(Job(1, Fraction("97.5"), 45, "ticket")) == "replicate-1 q97.5-step-000045 ticket"


def test_a_round_is_named_readably():
    assert WEIGHTS.name == "weights-step-000045"
    assert str(Round(WEIGHTS, 3, "reinit")) == "replicate-1 weights-step-000045 round 03 reinit"
    assert str(Round(LR, 12, "ticket")) == "replicate-2 lr-step-000090 round 12 ticket"


def test_there_is_a_ticket_for_every_replicate_quantile_and_step():
    found = one_shot([1, 2], [Fraction(80), Fraction(90)], [0, 45])

    assert len(found) == 8
    assert {(job.replicate, int(job.quantile), job.step) for job in found} == {
        (replicate, quantile, step) for replicate in (1, 2) for quantile in (80, 90) for step in (0, 45)
    }
    assert {job.variant for job in found} == {"ticket"}


def test_replicates_may_be_any():
    assert [job.replicate for job in one_shot([7, 3], [Fraction(80)], [0])] == [7, 3]


def test_controls_accompany_their_quantiles_alone():
    found = one_shot([1], [Fraction(80), Fraction(90)], [0, 45], CONTROLS, [Fraction(90), Fraction(95)])

    controls = [(job.variant, int(job.quantile), job.step) for job in found if job.variant != "ticket"]
    assert sorted(controls) == [("random", 90, 0), ("reinit", 90, 0), ("shuffle", 90, 0), ("shuffle", 90, 45)]


def test_a_control_from_scratch_is_trained_once_whatever_the_rewind_points():
    found = one_shot([1], [Fraction(90)], [45, 90], ["reinit"], [Fraction(90)])

    assert [(job.variant, job.step) for job in found] == [("reinit", 0), ("ticket", 45), ("ticket", 90)]


def test_the_longest_jobs_come_first():
    found = one_shot([1, 2], [Fraction(80), Fraction(90)], [90, 0, 45], ["shuffle"], [Fraction(80)])

    assert [job.step for job in found] == sorted(job.step for job in found)


def test_no_two_jobs_are_the_same():
    found = one_shot(iter([1, 2]), iter([Fraction(80), Fraction(90)]), iter([0, 45]), CONTROLS, iter([Fraction(80)]))

    assert len(set(found)) == len(found) == 2 * (4 + 1 + 2 + 1)


def test_there_is_a_chain_for_every_replicate_method_and_step():
    found = chains(iter([1, 2]), ["weights", "lr"], iter([0, 45]))

    assert found == [Chain(number, method, step) for number in (1, 2) for method in ("weights", "lr") for step in (0, 45)]


def test_rounds_that_go_back_to_initialisation_have_one_chain_whatever_the_rewind_points():
    assert chains([1], ["init", "finetune"], [45, 90]) == [
        Chain(1, "init", 0),
        Chain(1, "finetune", 45),
        Chain(1, "finetune", 90),
    ]


def test_a_method_or_step_named_twice_is_one_chain():
    assert chains([1], ["lr", "init", "lr"], [0, 0]) == [Chain(1, "lr", 0), Chain(1, "init", 0)]


def test_every_chain_has_a_folder_of_its_own():
    found = chains([1], ["weights", "lr", "finetune", "init"], [0, 45, 1_000_000])

    assert len({chain.name for chain in found}) == len(found) == 10


def places(found):
    return [(job.level, job.variant) for job in found]


def test_a_chain_has_a_ticket_in_every_round_in_their_order():
    found = rounds(WEIGHTS, 3)

    assert found == [Round(WEIGHTS, level, "ticket") for level in (1, 2, 3)]


def test_controls_accompany_their_rounds_alone_and_come_after_the_ticket():
    found = rounds(WEIGHTS, 3, iter(CONTROLS), iter([2, 3, 7]))

    assert places(found) == [(1, "ticket"), *((level, variant) for level in (2, 3) for variant in ("ticket", *CONTROLS))]


def test_without_rounds_for_them_there_are_no_controls():
    for levels in ([], [3]):
        assert places(rounds(WEIGHTS, 2, CONTROLS, levels)) == [(1, "ticket"), (2, "ticket")]


@pytest.mark.parametrize("method", ["lr", "finetune"])
@pytest.mark.parametrize("control_levels", [[], [1, 3]])
def test_extended_training_accompanies_every_round_unasked_as_its_tickets_are_judged_against_it(method, control_levels):
    for controls in ([], ["reinit"]):
        found = rounds(Chain(1, method, 0), 5, controls, control_levels)

        assert [job.level for job in found if job.variant == "extended"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("method", ["weights", "init"])
def test_methods_that_rewind_weights_have_no_extended_training(method):
    assert {job.variant for job in rounds(Chain(1, method, 0), 5, ["shuffle"], [1, 3])} == {"ticket", "shuffle"}


def test_no_two_networks_of_a_chain_are_the_same():
    found = rounds(LR, 4, CONTROLS, [1, 2, 3, 4])

    assert len(set(found)) == len(found) == 4 * 5
    assert [job.level for job in found] == sorted(job.level for job in found)


@pytest.mark.parametrize(("variant", "step"), [("ticket", 90), ("shuffle", 90), ("extended", 90), ("reinit", 0), ("random", 0)])
def test_a_round_begins_in_the_schedule_where_its_chain_rewinds_and_from_scratch_at_0(variant, step):
    job = Round(LR, 3, variant)

    assert (job.replicate, job.step) == (2, step)


def test_a_ticket_waits_for_the_one_of_the_round_before():
    assert needed(Round(LR, 3, "ticket")) == Round(LR, 2, "ticket")
    assert needed(Round(LR, 1, "ticket")) is None


def test_extended_training_waits_for_its_own_round_before():
    assert needed(Round(LR, 3, "extended")) == Round(LR, 2, "extended")
    assert needed(Round(LR, 1, "extended")) is None


@pytest.mark.parametrize("variant", CONTROLS)
def test_a_control_waits_for_the_ticket_of_its_round(variant):
    assert needed(Round(LR, 3, variant)) == Round(LR, 3, "ticket")
    assert needed(Round(LR, 1, variant)) == Round(LR, 1, "ticket")


def test_a_one_shot_job_waits_for_none():
    for variant in ("ticket", *CONTROLS):
        assert needed(Job(1, Fraction(90), 0, variant)) is None


def test_whatever_a_network_of_a_chain_waits_for_comes_before_it():
    found = rounds(LR, 4, CONTROLS, [1, 3])

    for place, job in enumerate(found):
        before = needed(job)
        assert before is None or found.index(before) < place


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_the_parts_of_a_grid_are_all_of_it_and_share_nothing(count):
    jobs = one_shot([1, 2], [Fraction(80), Fraction(90)], [0, 45], CONTROLS, [Fraction(90)])

    parts = [Part(index, count).of(jobs) for index in range(1, count + 1)]

    assert sorted(str(job) for part in parts for job in part) == sorted(map(str, jobs))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_chain_of_rounds_is_not_divided():
    jobs = [*rounds(WEIGHTS, 3, ["reinit"], [2]), *rounds(LR, 2)]

    assert Part(1, 2).of(jobs) == rounds(WEIGHTS, 3, ["reinit"], [2])
    assert Part(2, 2).of(jobs) == rounds(LR, 2)
    assert Part(3, 3).of(jobs) == []


def test_side_by_side_are_one_shot_jobs_and_of_each_chain_a_ticket_and_a_control_of_each_kind():
    one_shots = one_shot([1, 2], [Fraction(80), Fraction(90)], [0, 45])

    assert side_by_side([]) == 0
    assert side_by_side(one_shots) == 8
    assert side_by_side(rounds(WEIGHTS, 18)) == 1
    assert side_by_side([*rounds(WEIGHTS, 18, ["reinit"], [2, 9]), *rounds(LR, 3)]) == 4


def test_a_part_is_written_as_a_fraction():
    assert Part.parse(" 3/20 ") == Part(3, 20)
    for text in ("", "3", "0/4", "5/4", "a/b", "-1/2", "1/0", "1/2/3"):
        with pytest.raises(InputError, match="write 3/20 for the third of twenty"):
            Part.parse(text)
