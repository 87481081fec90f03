"""Plans: a recipe in steps, once the number of training images is known, and what a command selects of it."""

import re

import pytest
from helpers import selected

from lottery.base.errors import InputError
from lottery.experiment import plan, reading
from lottery.experiment.grids import parse_points

BASE = {"epochs": 20, "batch": 64, "snapshots": "0,10it,1ep,2ep", "warmup": "0"}
ROUNDS = {"rounds": 3, "controls": []}


def resolved(replicates=1, families=None, own=None, **train):
    """A recipe of 20 epochs in batches of 64, saved at 0, 10it, 1ep and 2ep, unless `train` says otherwise; its family `own`
    prunes 90 % in one shot, unless `own` says otherwise."""
    own = {"quantiles": "90", "controls": [], **(own or {})}
    return reading.resolve({"replicates": replicates, "families": families or {"own": own}, "train": {**BASE, **train}})


def made(images=2900, **tables):
    """The plan of that recipe; 2,900 images are 45 whole batches."""
    return plan.make(resolved(**tables), images)


def tickets(planned, replicates=(1,), **selection):
    return planned.tickets(replicates, selected(**selection).of(planned.recipe))


@pytest.mark.parametrize("every", ["1ep", "0.001ep"])
def test_updates_are_planned_where_an_epoch_is_long_unknown_or_longer_than_they_are_apart(every):
    own = {"quantiles": "90", "updates": "set", "scored_at": "0", "update_every": every}
    recipe = reading.resolve({"train": {"steps": 3400, "warmup": "0"}, "families": {"own": own}})

    planned = plan.make(recipe, 17 * 64)
    [mask] = planned.masks([1], recipe.families)

    assert planned.updates(mask).every == max(1, round(17 * float(every.removesuffix("ep"))))


def test_an_epoch_is_the_whole_batches_of_the_training_images_of_which_there_must_be_one():
    assert [made(images).steps_per_epoch for images in (2880, 2943, 2944)] == [45, 45, 46]
    assert made(2900).total_steps == 900
    with pytest.raises(InputError, match=r"train\.batch is 64, but there are 63 training examples"):
        made(63)


def test_snapshots_are_the_points_of_the_grid_and_the_end_each_once_in_order():
    assert made().snapshot_steps() == [0, 10, 45, 90, 900]
    assert made(snapshots="2ep,45it,1ep,0,20ep").snapshot_steps() == [0, 45, 90, 900]


def test_a_point_without_a_snapshot_is_refused_with_the_way_out():
    told = r"^rewind point 3ep .*--set train\.snapshots=0,10it,1ep,2ep,3ep"

    assert made().rewind_steps(parse_points("1ep,0,45it")) == [0, 45]
    with pytest.raises(InputError, match=told):
        made().rewind_steps(parse_points("0,3ep"))
    for grid in ({}, ROUNDS | {"quantiles": ""}):
        with pytest.raises(InputError, match=told):
            tickets(made(own={"rewind": "3ep", **grid}))
    with pytest.raises(InputError, match=r"^scored_at 5it is not among .*--set train\.snapshots=0,10it,1ep,2ep,5it"):
        tickets(made(own={"scored_at": "5it"}))
    with pytest.raises(InputError, match=r"^rewind point: 21ep lies past the end of training \(20 epochs\)"):
        made().rewind_steps(parse_points("21ep"))


def test_a_network_costs_the_epochs_that_are_left_from_where_it_begins_in_the_schedule():
    planned = made(own={"rewind": "0,10it,1ep", "controls": ["reinit"], "controls_at": "90"})
    costs = {(one.variant, one.rewind): planned.epochs(one) for one in tickets(planned)}

    left = {("ticket", 0): 20, ("ticket", 10): pytest.approx(20 - 10 / 45), ("ticket", 45): 19}
    assert costs == left | {("reinit", 0): 20}


FAMILIES = {
    "shot": {"quantiles": "80,90", "rewind": "0", "controls": []},
    "chained": {"rounds": 3, "rewind": "0", "controls": []},
}


@pytest.mark.parametrize(
    ("selection", "labels"),
    [
        ({}, ["q80", "q90", "round-01", "round-02", "round-03"]),
        ({"quantiles": "50,85"}, ["q50", "q85"]),
        ({"families": ("chained",), "rounds": 5}, [f"round-{number:02d}" for number in range(1, 6)]),
    ],
)
def test_a_command_may_be_about_some_families_and_other_grids(selection, labels):
    planned = made(families=FAMILIES)

    found = tickets(planned, rewind="1ep", **selection)

    assert sorted(one.mask.label for one in found) == labels
    assert {one.rewind for one in found} == {45}


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ({"families": ("shut",)}, "--family shut is not in the recipe, which has shot, chained"),
        ({"families": ("chained",), "quantiles": "90"}, "--quantiles: no selected family prunes in one shot"),
        ({"families": ("shot",), "rounds": 2}, "--rounds: no selected family prunes in rounds"),
    ],
)
def test_a_selection_of_nothing_is_refused(selection, words):
    with pytest.raises(InputError, match=re.escape(words)):
        selected(**selection).of(resolved(families=FAMILIES))


def ends(unit, length):
    past = rf"lies past the end of training \({length} {unit}\): choose an earlier point, or raise train\.{unit}"
    return past, f"leaves nothing to train: choose an earlier point, or raise train\\.{unit}"


PAST_EPOCHS, NO_EPOCHS = ends("epochs", 2)
PAST_STEPS, _ = ends("steps", 100)


@pytest.mark.parametrize(
    ("settings", "point", "problem"),
    [
        ({"snapshots": "0,3ep"}, "train.snapshots: 3ep", PAST_EPOCHS),
        ({"own": {"rewind": "0,3ep"}}, "families.own.rewind: 3ep", PAST_EPOCHS),
        ({"own": {"rewind": "2ep"}}, "families.own.rewind: 2ep", NO_EPOCHS),
        ({"schedule": "step", "milestones": "1ep,3ep"}, "train.milestones: 3ep", PAST_EPOCHS),
        ({"steps": 100, "snapshots": "0,2.3ep"}, "train.snapshots: 2.3ep", PAST_STEPS),  # 103.5 steps
        ({"steps": 100, "warmup": "3ep"}, "train.warmup: 3ep", PAST_STEPS),
        ({"steps": 100, "own": {"rewind": "0,10ep"}}, "families.own.rewind: 10ep", PAST_STEPS),
    ],
)
def test_a_point_past_the_end_of_training_is_refused_with_its_key(settings, point, problem):
    known = {"steps_per_epoch": 45} if "steps" in settings else {}

    with pytest.raises(InputError, match=f"^{re.escape(point)} {problem}$"):
        plan.check_points(resolved(epochs=2, **{"snapshots": "0", **settings}), **known)


def test_a_snapshot_and_a_warmup_may_end_where_training_does():
    at_end = resolved(epochs=2, snapshots="0,2ep", warmup="2ep")

    plan.check_points(at_end)
    plan.check_points(resolved(epochs=2, schedule="cosine", milestones="3ep"))  # which has none
    plan.check_points(at_end, steps_per_epoch=45)
    plan.check_points(resolved(epochs=2, snapshots="0,90it", warmup="90it"), steps_per_epoch=45)
    assert made(epochs=2, snapshots="0,2ep", warmup="2ep").snapshot_steps() == [0, 90]


def test_iterations_are_judged_once_the_length_of_an_epoch_is_known():
    late = resolved(snapshots="0,1ep,901it")

    plan.check_points(late)
    plan.check_points(late, steps_per_epoch=46)
    with pytest.raises(InputError, match=r"train\.snapshots: 901it"):
        plan.check_points(late, steps_per_epoch=45)
    with pytest.raises(InputError, match=r"train\.snapshots: 901it"):
        plan.make(late, 2900)


@pytest.mark.parametrize("point", ["3ep", "2.99ep"])
def test_a_rewind_to_the_last_step_is_refused_also_when_it_only_rounds_to_it(point):
    planned = made(epochs=3, snapshots=f"0,134it,{point}")  # of 45 steps: 2.99 epochs are 134.55 steps

    assert planned.snapshot_steps() == [0, 134, 135]
    assert planned.rewind_steps(parse_points("134it")) == planned.rewind_steps(parse_points("2.98ep")) == [134]  # 134.1 steps
    with pytest.raises(InputError, match=f"^rewind point: {point} {NO_EPOCHS}"):
        planned.rewind_steps(parse_points(f"0,{point}"))
    with pytest.raises(InputError, match=f"^families.own.rewind: {point} {NO_EPOCHS}"):
        made(epochs=3, snapshots=f"0,{point}", own={"rewind": point})


def test_training_may_be_so_many_steps_instead_of_epochs():
    planned = made(steps=100, snapshots="0,10it,1ep,100it", own={"rewind": "0,1ep"})

    assert planned.total_steps == 100
    assert planned.snapshot_steps() == [0, 10, 45, 100]
    assert planned.rewind_steps(parse_points("1ep,10it")) == [10, 45]
    costs = {one.rewind: planned.epochs(one) for one in tickets(planned)}
    assert costs == {0: pytest.approx(100 / 45), 45: pytest.approx(55 / 45)}


def test_finetuning_is_at_the_last_rate_of_the_schedule_unless_the_family_has_one():
    def rate(own=None, **train):
        planned = made(own=own, **train)
        return planned.finetune_rate(planned.recipe.families["own"])

    step = {"learning_rate": 0.5, "schedule": "step", "milestones": "5ep,10ep", "gamma": 0.1}
    assert rate(**step) == pytest.approx(0.005)
    assert rate({"finetune_rate": 0.02}, **step) == 0.02
    assert rate(schedule="constant", learning_rate=0.25) == 0.25
    assert rate(**{**step, "milestones": "50it", "snapshots": "0"}, steps=51) == pytest.approx(0.05)
    assert 0 < rate(schedule="cosine", learning_rate=1.0) < 1e-5


def test_tickets_end_after_their_length_and_fresh_weights_beside_those_that_go_on_where_the_dense_network_does():
    def ends(**own):
        planned = made(own={"controls": ["reinit", "shuffle"], "length": 0.5, **own})
        return {(one.mask.label, one.variant): planned.last_step(one) for one in tickets(planned)}

    alone = {"scored_at": "0", "criterion": "random", "controls_at": "90"}
    assert ends(**alone) == {("q90", variant): 450 for variant in ("ticket", "reinit", "shuffle")}
    for method in ("llr", "allr"):
        shot = {("q90", "ticket"): 450, ("q90", "shuffle"): 450, ("q90", "reinit"): 900}
        assert ends(method=method, controls_at="90") == shot
        rounds = {(label.replace("q90", "round-02"), variant): last for (label, variant), last in shot.items()}
        found = ends(method=method, quantiles="", rounds=2, controls_at="2")
        assert found == rounds | {("round-01", "ticket"): 450}


@pytest.mark.parametrize("grid", [{}, {"quantiles": "", "rounds": 2}], ids=["one shot", "rounds"])
def test_a_length_of_no_step_is_refused(grid):
    with pytest.raises(InputError, match=r"^families\.own\.length: 0\.0005 leaves nothing to train: raise it$"):
        made(own={"method": "llr", "length": 0.0005, **grid})  # of 900 steps
    assert made(own={"method": "llr", "length": 0.0006, **grid})


def test_rigl_that_would_only_look_is_refused():
    own = {"updates": "rigl", "criterion": "random", "scored_at": "0"}
    with pytest.raises(
        InputError, match=r"^families\.own\.update_every: rigl spends a step on each change: write at least 2it$"
    ):
        made(own={**own, "update_every": "1it"})
    assert made(own={**own, "update_every": "2it"})
