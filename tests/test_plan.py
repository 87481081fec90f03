"""Plans: a recipe in steps, once the number of training images is known."""

import re
from fractions import Fraction

import pytest

from data_prep.errors import InputError
from lottery import plan, recipe

BASE = {"epochs": 20, "batch": 64, "snapshots": "0,10it,1ep,2ep", "warmup": "0"}


def resolved(retrain=None, thresholds=None, replicates=1, **train):
    """A recipe of 20 epochs in batches of 64, saved at 0, 10it, 1ep and 2ep, unless `train` says otherwise."""
    tables = {"train": {**BASE, **train}, "thresholds": thresholds or {}, "retrain": {"rewind": "0", **(retrain or {})}}
    return recipe.resolve({"replicates": replicates, **tables})


def made(images=2900, **train):
    """The plan of that recipe; 2,900 images are 45 whole batches."""
    return plan.make(resolved(**train), images)


def test_an_epoch_is_the_whole_batches_of_the_training_images():
    assert made(2880).steps_per_epoch == 45
    assert made(2943).steps_per_epoch == 45
    assert made(2944).steps_per_epoch == 46
    assert made(2900).total_steps == 900


def test_a_batch_larger_than_the_data_set_is_refused():
    with pytest.raises(InputError, match=r"train\.batch is 64, but there are 63 training images"):
        made(63)


def test_snapshots_are_the_points_of_the_grid_and_the_end():
    assert made(snapshots="0,10it,1ep,2ep").snapshot_steps() == [0, 10, 45, 90, 900]


def test_snapshots_written_in_any_order_or_twice_are_taken_once_in_order():
    assert made(snapshots="2ep,45it,1ep,0,20ep").snapshot_steps() == [0, 45, 90, 900]


def test_rewind_points_are_ascending_steps():
    assert made().rewind_steps("1ep,0,45it") == [0, 45]


def test_a_rewind_point_without_a_snapshot_is_refused_with_the_way_out():
    with pytest.raises(InputError, match=r"rewind point 3ep .*--set train\.snapshots=0,10it,1ep,2ep,3ep"):
        made().rewind_steps("0,3ep")


def test_jobs_follow_the_recipe():
    planned = plan.make(resolved(replicates=2, retrain={"controls": ["reinit"], "control_quantiles": "90"}), 2900)

    found = planned.jobs([Fraction(80), Fraction(90)], "0,1ep")

    assert len(found) == 2 * (4 + 1)
    assert {job.step for job in found} == {0, 45}


def test_a_job_costs_the_epochs_that_are_left_from_its_rewind_point():
    planned = made()
    costs = {job.step: planned.epochs(job) for job in planned.jobs([Fraction(90)], "0,10it,1ep")}

    assert costs == {0: 20, 10: pytest.approx(20 - 10 / 45), 45: 19}


PAST_END = r"lies past the end of training \(2 epochs\): choose an earlier point, or raise train\.epochs"
NOTHING_LEFT = r"leaves nothing to train: choose an earlier point, or raise train\.epochs"


@pytest.mark.parametrize(
    ("settings", "point", "problem"),
    [
        ({"snapshots": "0,3ep"}, "train.snapshots: 3ep", PAST_END),
        ({"snapshots": "2.5ep,1ep"}, "train.snapshots: 2.5ep", PAST_END),
        ({"retrain": {"rewind": "0,3ep"}}, "retrain.rewind: 3ep", PAST_END),
        ({"retrain": {"rewind": "2ep"}}, "retrain.rewind: 2ep", NOTHING_LEFT),
        ({"warmup": "3ep"}, "train.warmup: 3ep", PAST_END),
        ({"schedule": "step", "milestones": "1ep,3ep"}, "train.milestones: 3ep", PAST_END),
    ],
)
def test_a_point_past_the_end_of_training_is_refused_with_its_key(settings, point, problem):
    with pytest.raises(InputError, match=f"^{re.escape(point)} {problem}$"):
        plan.check_points(resolved(epochs=2, **settings))


def test_a_snapshot_and_a_warmup_may_end_where_training_does():
    at_end = resolved(epochs=2, snapshots="0,2ep", warmup="2ep")

    plan.check_points(at_end)
    plan.check_points(at_end, steps_per_epoch=45)
    plan.check_points(resolved(epochs=2, snapshots="0,90it", warmup="90it"), steps_per_epoch=45)
    assert made(epochs=2, snapshots="0,2ep", warmup="2ep").snapshot_steps() == [0, 90]


def test_milestones_past_the_end_of_training_are_no_matter_where_no_schedule_has_them():
    plan.check_points(resolved(epochs=2, schedule="cosine", milestones="3ep"))


def test_iterations_are_judged_once_the_length_of_an_epoch_is_known():
    late = resolved(snapshots="0,1ep,901it")

    plan.check_points(late)
    plan.check_points(late, steps_per_epoch=46)
    with pytest.raises(InputError, match=r"train\.snapshots: 901it"):
        plan.check_points(late, steps_per_epoch=45)
    with pytest.raises(InputError, match=r"train\.snapshots: 901it"):
        plan.make(late, 2900)


def test_a_rewind_to_the_last_step_is_refused_in_iterations_too():
    with pytest.raises(InputError, match=f"^retrain.rewind: 900it {NOTHING_LEFT}"):
        made(snapshots="0,900it", retrain={"rewind": "900it"})


@pytest.mark.parametrize("point", ["3ep", "135it", "2.99ep"])
def test_a_rewind_to_the_last_step_is_refused_also_when_it_only_rounds_to_it(point):
    planned = made(epochs=3, snapshots=f"0,134it,{point}")  # of 45 steps: 2.99 epochs are 134.55 steps

    assert planned.snapshot_steps() == [0, 134, 135]
    with pytest.raises(InputError, match=f"^rewind point: {point} {NOTHING_LEFT}"):
        planned.rewind_steps(f"0,{point}")
    with pytest.raises(InputError, match=f"^retrain.rewind: {point} {NOTHING_LEFT}"):
        made(epochs=3, snapshots=f"0,{point}", retrain={"rewind": point})


def test_a_rewind_to_the_last_but_one_step_is_taken():
    planned = made(epochs=3, snapshots="0,134it,2.98ep")  # 134.1 steps

    assert planned.rewind_steps("134it") == planned.rewind_steps("2.98ep") == [134]


def test_a_rewind_past_the_end_is_refused_before_a_snapshot_is_asked_for():
    with pytest.raises(InputError, match=r"^rewind point: 21ep lies past the end of training \(20 epochs\)"):
        made().rewind_steps("21ep")


DRY = resolved(
    replicates=2,
    thresholds={"quantiles": "80,90"},
    retrain={"rewind": "0,1ep", "controls": ["reinit"], "control_quantiles": "90"},
)


def test_a_dry_run_lists_the_dense_networks_then_those_under_masks():
    costs = plan.dry_run(DRY, 2900)

    assert [cost.title for cost in costs[:2]] == ["replicate-1 dense", "replicate-2 dense"]
    assert [cost.rewound for cost in costs] == [False] * 2 + [True] * 10
    assert sum(cost.epochs for cost in costs) == 2 * 20 + 2 * (2 * 20 + 2 * 19 + 20)
    assert "replicate-2 q90 ticket, rewound to 1ep" in [cost.title for cost in costs]
    assert "replicate-1 q90 reinit, rewound to 0" in [cost.title for cost in costs]


def test_a_dry_run_costs_about_the_same_before_the_records_are_there():
    known, unknown = (plan.dry_run(DRY, images) for images in (2900, None))

    assert [(cost.title, cost.epochs) for cost in unknown] == [(cost.title, cost.epochs) for cost in known]


def test_a_dry_run_refuses_what_a_run_would_refuse():
    with pytest.raises(InputError, match="rewind point 4ep"):
        plan.dry_run(resolved(retrain={"rewind": "4ep"}), None)
