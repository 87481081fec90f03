"""Plans: a recipe in steps, once the number of training images is known."""

import re
from fractions import Fraction

import pytest

from data_prep.errors import InputError
from lottery import plan, recipe
from lottery.jobs import Chain, Round

BASE = {"epochs": 20, "batch": 64, "snapshots": "0,10it,1ep,2ep", "warmup": "0"}


def resolved(retrain=None, thresholds=None, rounds=None, replicates=1, pruning=("oneshot",), **train):
    """A recipe of 20 epochs in batches of 64, saved at 0, 10it, 1ep and 2ep, unless `train` says otherwise."""
    tables = {"train": {**BASE, **train}, "thresholds": thresholds or {}, "retrain": {"rewind": "0", **(retrain or {})}}
    return recipe.resolve({"replicates": replicates, "pruning": list(pruning), **tables, "rounds": rounds or {}})


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


def test_more_networks_than_a_grid_may_have_are_refused_before_they_are_listed():
    tenths = [Fraction(tenth, 10) for tenth in range(999)]
    everything = {"levels": 100, "methods": ["weights", "lr"], "rewind": "0,10it,1ep,2ep"}

    with pytest.raises(InputError, match=r"^2,997,000 networks are too many for one grid"):
        made().jobs(range(1, 1001), tenths, "0")
    with pytest.raises(InputError, match=r"^1,600,000 networks are too many for one grid"):
        plan.make(resolved(pruning=["rounds"], rounds=everything), 2900).rounds(range(1, 1001), 100)


def test_jobs_follow_the_recipe():
    planned = plan.make(resolved(replicates=2, retrain={"controls": ["reinit"], "control_quantiles": "90"}), 2900)

    found = planned.jobs([1, 2], [Fraction(80), Fraction(90)], "0,1ep")

    assert len(found) == 2 * (4 + 1)
    assert {job.step for job in found} == {0, 45}


def test_a_job_costs_the_epochs_that_are_left_from_its_rewind_point():
    planned = made()
    costs = {job.step: planned.epochs(job) for job in planned.jobs([1], [Fraction(90)], "0,10it,1ep")}

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


def test_training_may_be_so_many_steps_instead_of_epochs():
    planned = made(steps=100, snapshots="0,10it,1ep,100it", retrain={"rewind": "1ep"})

    assert planned.total_steps == 100
    assert planned.snapshot_steps() == [0, 10, 45, 100]
    assert planned.rewind_steps("1ep,10it") == [10, 45]
    costs = {job.step: planned.epochs(job) for job in planned.jobs([1], [Fraction(90)], "0,1ep")}
    assert costs == {0: pytest.approx(100 / 45), 45: pytest.approx(55 / 45)}


STEPS_END = r"lies past the end of training \(100 steps\): choose an earlier point, or raise train\.steps"


@pytest.mark.parametrize(
    ("settings", "point"),
    [
        ({"snapshots": "0,101it"}, "train.snapshots: 101it"),
        ({"snapshots": "0,2.3ep"}, "train.snapshots: 2.3ep"),  # 103.5 steps
        ({"snapshots": "0", "warmup": "3ep"}, "train.warmup: 3ep"),
        ({"snapshots": "0", "schedule": "step", "milestones": "10it,200it"}, "train.milestones: 200it"),
        ({"snapshots": "0", "retrain": {"rewind": "0,10ep"}}, "retrain.rewind: 10ep"),
    ],
)
def test_a_point_past_so_many_steps_is_refused_with_its_key(settings, point):
    with pytest.raises(InputError, match=f"^{re.escape(point)} {STEPS_END}$"):
        made(steps=100, **settings)


def test_with_so_many_steps_iterations_can_be_judged_before_the_length_of_an_epoch_is_known_and_epochs_cannot():
    plan.check_points(resolved(steps=100, snapshots="0,100it,2.3ep", warmup="9ep"))
    with pytest.raises(InputError, match=f"^train.snapshots: 101it {STEPS_END}$"):
        plan.check_points(resolved(steps=100, snapshots="0,101it"))
    with pytest.raises(InputError, match=r"^retrain.rewind: 100it leaves nothing to train: .* raise train\.steps$"):
        plan.check_points(resolved(steps=100, snapshots="0", retrain={"rewind": "100it"}))


def test_a_dry_run_of_so_many_steps_costs_what_they_come_to():
    by_steps = resolved(
        steps=90, snapshots="0,1ep", thresholds={"quantiles": "90"}, retrain={"rewind": "0,1ep", "controls": []}
    )

    assert [(cost.title, cost.epochs) for cost in plan.dry_run(by_steps, 2900)] == [
        ("replicate-1 dense", 2),
        ("replicate-1 q90 ticket, rewound to 0", 2),
        ("replicate-1 q90 ticket, rewound to 1ep", 1),
    ]


def test_a_dry_run_of_so_many_steps_lists_the_same_networks_before_the_records_are_there():
    by_steps = resolved(steps=90, snapshots="0,10it", thresholds={"quantiles": "90"}, retrain={"rewind": "0,10it"})

    known, unknown = (plan.dry_run(by_steps, images) for images in (2900, None))

    assert [cost.title for cost in unknown] == [cost.title for cost in known]


ROUNDS = {
    "levels": 3,
    "methods": ["weights", "lr"],
    "rewind": "0,1ep",
    "controls": ["reinit"],
    "control_levels": "2",
}


def test_the_chains_of_rounds_are_the_methods_at_the_rewind_points():
    planned = plan.make(resolved(rounds={**ROUNDS, "methods": ["lr", "init"]}), 2900)

    assert planned.chains([2]) == [Chain(2, "lr", 0), Chain(2, "lr", 45), Chain(2, "init", 0)]


def test_a_rewind_point_of_rounds_without_a_snapshot_is_refused_with_the_way_out():
    planned = plan.make(resolved(rounds={"rewind": "3ep"}), 2900)

    with pytest.raises(InputError, match=r"rewind point 3ep .*--set train\.snapshots=0,10it,1ep,2ep,3ep"):
        planned.chains([1])


def test_the_networks_of_all_chains_come_round_by_round():
    planned = plan.make(resolved(rounds=ROUNDS), 2900)

    found = planned.rounds([1, 2], 3)

    assert [job.level for job in found] == sorted(job.level for job in found)
    assert len(set(found)) == len(found) == 8 * 3 + 8 + 4 * 3  # tickets of 8 chains, a reinit of each, extended of 4
    assert Round(Chain(1, "lr", 45), 2, "extended") in found
    assert {job.level for job in found if job.variant == "reinit"} == {2}


def test_a_round_costs_the_epochs_that_are_left_from_its_rewind_point():
    planned = made()

    assert planned.epochs(Round(Chain(1, "lr", 45), 3, "ticket")) == 19
    assert planned.epochs(Round(Chain(1, "finetune", 90), 3, "extended")) == 18
    assert planned.epochs(Round(Chain(1, "weights", 45), 3, "reinit")) == 20


PRUNED = resolved(
    replicates=2, pruning=["oneshot", "rounds"], thresholds={"quantiles": "90"}, retrain={"controls": []}, rounds=ROUNDS
)


def test_a_dry_run_lists_rounds_where_the_recipe_prunes_so():
    costs = plan.dry_run(PRUNED, 2900)

    titles = [cost.title for cost in costs]
    assert titles[:4] == [
        *("replicate-1 dense", "replicate-2 dense"),
        *("replicate-1 q90 ticket, rewound to 0", "replicate-2 q90 ticket, rewound to 0"),
    ]
    assert len(titles) == 4 + 44
    assert "replicate-2 weights from 1ep, round 03 ticket" in titles
    assert "replicate-1 lr from 0, round 02 extended" in titles
    assert {cost.title: cost.epochs for cost in costs}["replicate-2 lr from 1ep, round 03 ticket"] == 19
    assert [cost.rewound for cost in costs] == [False] * 2 + [True] * 46


def test_a_dry_run_of_rounds_costs_about_the_same_before_the_records_are_there():
    known, unknown = (plan.dry_run(PRUNED, images) for images in (2900, None))

    assert [(cost.title, cost.epochs) for cost in unknown] == [(cost.title, cost.epochs) for cost in known]


def test_a_dry_run_lists_only_what_the_recipe_prunes_by():
    oneshot, rounds, neither = (
        [cost.title for cost in plan.dry_run(PRUNED.model_copy(update={"pruning": pruning}), 2900) if cost.rewound]
        for pruning in (["oneshot"], ["rounds"], [])
    )

    assert len(oneshot) == 2
    assert len(rounds) == 44
    assert not any("round" in title.split() for title in oneshot)
    assert all("round" in title.split() for title in rounds)
    assert neither == []


def test_points_are_judged_of_what_the_recipe_prunes_by_alone():
    late = {"retrain": {"rewind": "30ep"}, "rounds": {"rewind": "40ep"}}

    plan.check_points(resolved(**late, pruning=[]))
    with pytest.raises(InputError, match=r"^retrain\.rewind: 30ep"):
        plan.check_points(resolved(**late, pruning=["oneshot"]))
    with pytest.raises(InputError, match=r"^rounds\.rewind: 40ep"):
        plan.check_points(resolved(**late, pruning=["rounds"]))
    with pytest.raises(InputError, match=r"^rounds\.rewind: 20ep leaves nothing to train"):
        plan.check_points(resolved(rounds={"rewind": "20ep"}, pruning=["rounds"]))


def test_finetuning_is_at_the_last_rate_of_the_schedule_unless_the_recipe_has_one():
    step = {"learning_rate": 0.5, "schedule": "step", "milestones": "5ep,10ep", "gamma": 0.1}

    assert made(**step).finetune_rate == pytest.approx(0.005)
    assert made(**step, rounds={"finetune_rate": 0.02}).finetune_rate == 0.02
    assert made(schedule="constant", learning_rate=0.25).finetune_rate == 0.25
    assert made(**{**step, "milestones": "50it", "snapshots": "0"}, steps=51).finetune_rate == pytest.approx(0.05)
    assert 0 < made(schedule="cosine", learning_rate=1.0).finetune_rate < 1e-5


def test_a_dry_run_of_so_many_steps_wants_the_records_first():
    by_steps = resolved(steps=500, thresholds={"quantiles": "90"}, retrain={"rewind": "0,2ep"})

    with pytest.raises(InputError, match="imp prepare"):
        plan.dry_run(by_steps, None)


def test_rounds_that_go_back_to_initialisation_ask_for_its_snapshot():
    planned = plan.make(resolved(snapshots="1ep", rounds={"methods": ["init"], "rewind": "1ep"}), 2900)

    with pytest.raises(InputError, match=r"rewind point 0 is not among the snapshots .*--set train\.snapshots=1ep,0"):
        planned.chains([1])


HEADLINES = resolved(
    replicates=3, pruning=["rounds"], rounds={**ROUNDS, "controls": ["reinit", "shuffle"], "control_levels": ""}
)


def test_a_dry_run_ends_with_the_controls_that_headlines_may_get():
    costs = plan.dry_run(HEADLINES, 2900)

    certain, perhaps = ([cost for cost in costs if cost.certain is sure] for sure in (True, False))
    assert costs == [*certain, *perhaps]
    assert len(perhaps) == 3 * 4 * 2  # replicates, chains, controls
    assert {cost.title: cost.epochs for cost in perhaps}["replicate-2 weights from 1ep, headline reinit"] == 20
    assert {cost.title: cost.epochs for cost in perhaps}["replicate-2 weights from 1ep, headline shuffle"] == 19
    assert not any("reinit" in cost.title for cost in certain)


@pytest.mark.parametrize("change", [{"replicates": 2}, {"pruning": ["oneshot"]}])
def test_without_three_replicates_or_rounds_no_controls_are_to_come(change):
    assert all(cost.certain for cost in plan.dry_run(HEADLINES.model_copy(update=change), 2900))
    assert all(cost.certain for cost in plan.dry_run(PRUNED, 2900))


@pytest.mark.parametrize("recipe", [PRUNED, HEADLINES], ids=["levels", "headlines"])
def test_no_two_networks_of_a_dry_run_have_the_same_name(recipe):
    titles = [cost.title for cost in plan.dry_run(recipe, 2900)]

    assert len(set(titles)) == len(titles)
