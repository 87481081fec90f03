"""A dry run: every network that a recipe comes to, and its cost, before anything is trained."""

from collections import Counter

import pytest

from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.experiment.plan import dry_run, estimated

TRAIN = {"epochs": 20, "batch": 64, "snapshots": "0,10it,1ep,2ep", "warmup": "0"}
SHOT = {"quantiles": "80,90", "rewind": "0,1ep", "controls": ["reinit"], "controls_at": "90"}
CHAINED = {"rounds": 3, "method": "lr", "rewind": "0,1ep", "controls": ["reinit"], "controls_at": "2"}


def resolved(replicates=2, train=TRAIN, **families):
    return reading.resolve({"replicates": replicates, "families": families, "train": train})


BOTH = resolved(shot=SHOT, chained=CHAINED)


def costs(recipe, images=2900):
    return {cost.title: cost.epochs for cost in dry_run(estimated(recipe, images))}


def test_the_dense_networks_come_first_then_those_of_every_family():
    found = dry_run(estimated(BOTH, 2900))

    assert [cost.title for cost in found[:2]] == ["replicate-1 dense", "replicate-2 dense"]
    kinds = {"dense": 2, "shot ticket": 8, "shot reinit": 2, "chained ticket": 12, "chained extended": 12, "chained reinit": 4}
    assert Counter(cost.kind for cost in found) == kinds
    assert all(cost.certain for cost in found)
    epochs = costs(BOTH)
    assert len(epochs) == len(found)  # no two have the same name
    assert epochs["replicate-2 shot q90 ticket, rewound to 1ep"] == 19
    assert epochs["replicate-1 shot q90 reinit, rewound to 0"] == 20
    assert epochs["replicate-2 chained round-03 ticket, rewound to 1ep"] == 19
    assert epochs["replicate-1 chained round-02 extended, rewound to 0"] == 20
    assert epochs["replicate-1 chained round-02 reinit, rewound to 1ep"] == 20
    assert sum(epochs.values()) == 2 * (20 + 2 * (20 + 19) + 20 + 6 * (20 + 19) + 2 * 20)


def test_it_costs_about_the_same_before_the_records_are_there():
    assert costs(BOTH, None) == costs(BOTH)


@pytest.mark.parametrize("family", [SHOT, CHAINED], ids=["shot", "chained"])
def test_it_ends_with_the_controls_that_headlines_may_get(family):
    recipe = resolved(3, own={**family, "controls": ["reinit", "shuffle"], "controls_at": ""})

    found = dry_run(estimated(recipe, 2900))

    certain, perhaps = ([cost for cost in found if cost.certain is sure] for sure in (True, False))
    assert found == [*certain, *perhaps]
    fresh = 1 if family is SHOT else 2  # one for all rewind points, or of each chain
    assert len(perhaps) == 3 * (2 + fresh)
    epochs = {cost.title: cost.epochs for cost in perhaps}
    assert len(epochs) == len(perhaps)
    assert epochs["replicate-2 own headline shuffle, rewound to 1ep"] == 19
    assert epochs["replicate-2 own headline reinit, rewound to 0"] == 20
    assert not any("reinit" in cost.title for cost in certain)


def test_without_three_replicates_no_controls_are_to_come():
    assert all(cost.certain for cost in dry_run(estimated(resolved(2, shot={**SHOT, "controls_at": ""}), 2900)))


STEPS = {**TRAIN, "steps": 90, "snapshots": "0,10it"}


def test_so_many_steps_cost_what_they_come_to():
    own = {"quantiles": "90", "rewind": "0,10it", "controls": []}
    recipe = resolved(1, {**STEPS, "snapshots": "0,10it,1ep"}, own={**own, "rewind": "0,1ep"})

    assert costs(recipe) == {
        "replicate-1 dense": 2,
        "replicate-1 own q90 ticket, rewound to 0": 2,
        "replicate-1 own q90 ticket, rewound to 1ep": 1,
    }
    unknown = dry_run(estimated(resolved(1, STEPS, own=own), None))
    assert [cost.title for cost in unknown] == [*costs(resolved(1, STEPS, own=own))]
    assert {cost.epochs for cost in unknown} == {None}


def test_so_many_steps_and_points_in_epochs_want_the_records_first():
    with pytest.raises(InputError, match="imp prepare"):
        estimated(resolved(1, {**STEPS, "steps": 500, "snapshots": "0,2ep"}, own={"quantiles": "90", "rewind": "0,2ep"}), None)
