"""What outputs are made with: said before anything else is written, and never gone on with otherwise."""

import os

import pytest
from helpers import changed

from data_prep import files
from data_prep.errors import InputError
from lottery import identity, locks, recipe
from lottery.recipe import Recipe

RECIPES = [
    {},
    {"train": {"optimizer": "adam", "schedule": "step", "milestones": "2ep,5ep", "learning_rate": 1e-3}},
    {"model": {"name": "lenet_300_100"}, "thresholds": {"exclude": ["a/*", "ä/*"], "layerwise": True}},
    {"retrain": {"slots": "restore", "order": "same"}, "model": {"alpha": 1 / 3}},
    {"train": {"steps": 500, "evaluate": "7it"}, "rounds": {"rate": 0.1, "rates": ["é/*=0.1"], "finetune_rate": 1 / 3}},
]
STAGES = ["train", "thresholds", "retrain", "rounds", "finetune"]
ORIGINS = {"records": "a", "network": "b"}


def contents(folder):
    """Every file, hidden ones too, with its time and bytes."""
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "replicate-1" / "train"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("table", RECIPES)
def test_the_first_to_claim_a_folder_writes_what_its_outputs_depend_on(folder, stage, table):
    wanted = recipe.resolve(table)

    with identity.claimed(folder, wanted, stage, ORIGINS):
        content = files.read_json(folder / "made_with.json")

    made_with = {"folder": "replicate-1/train", "stage": stage, "values": recipe.depends(wanted, stage)}
    assert content == made_with | {"made_from": ORIGINS, "made_by": []}


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("records", "train was made from other images than those that are prepared now: name its own"),
        ("network", "train was made from another network than model.name builds now: build that one again"),
    ],
)
def test_what_was_begun_on_other_images_or_another_network_is_not_gone_on_with(folder, origin, words):
    for _ in range(2):
        with identity.claimed(folder, Recipe(), "train", ORIGINS):
            content = files.read_json(folder / "made_with.json")

    assert content["made_from"] == ORIGINS
    with pytest.raises(InputError, match=words), identity.claimed(folder, Recipe(), "train", ORIGINS | {origin: "c"}):
        raise AssertionError("claimed")
    assert files.read_json(folder / "made_with.json") == content


def test_nothing_comes_before_the_identity_and_the_lock_is_held_meanwhile(folder):
    with identity.claimed(folder, Recipe(), "train", ORIGINS):
        assert sorted(path.name for path in folder.iterdir()) == [".lock", "made_with.json"]
        assert f"process {os.getpid()} " in locks.holder(folder).who

    assert locks.holder(folder) is None
    assert [path.name for path in folder.iterdir()] == ["made_with.json"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("table", RECIPES)
def test_the_same_values_claim_a_folder_again(folder, stage, table):
    with identity.claimed(folder, recipe.resolve(table), stage, ORIGINS):
        (folder / "checkpoint.h5").write_bytes(b"half way")
    before = contents(folder)

    with identity.claimed(folder, recipe.resolve(table), stage, ORIGINS):
        pass

    assert contents(folder) == before


def test_a_wider_grid_claims_a_folder_again(folder):
    with identity.claimed(folder, Recipe(), "thresholds", ORIGINS):
        pass

    with identity.claimed(
        folder, recipe.resolve({"thresholds": {"quantiles": "60..99"}, "replicates": 5}), "thresholds", ORIGINS
    ):
        pass


def test_other_values_are_refused_and_leave_the_folder_as_it_was(folder):
    with identity.claimed(folder, Recipe(), "train", ORIGINS):
        (folder / "checkpoint.h5").write_bytes(b"half way")
    before = contents(folder)

    other = recipe.resolve({"seed": 3, "train": {"batch": 32}})
    with pytest.raises(InputError) as refusal, identity.claimed(folder, other, "train", ORIGINS):
        raise AssertionError("claimed")

    assert str(refusal.value) == (
        f"{folder} was made with another recipe (seed was 0, is 3; train.batch was 64, is 32): "
        "use the same values, or, for an experiment of its own, another --run"
    )
    assert contents(folder) == before
    assert locks.holder(folder) is None


def test_averages_of_weights_alone_are_not_mixed_with_those_of_statistics_too(folder):
    averaged = recipe.resolve({"train": {"ema": 0.9}})
    with identity.claimed(folder, averaged, "train", ORIGINS):
        pass
    identity.check_folder(folder, averaged)

    forget(folder, "averages")  # as it was before there were averaged statistics

    with pytest.raises(InputError, match="averages was None, is 'weights and statistics'"):
        identity.check_folder(folder, averaged)


def test_a_key_that_one_of_the_recipes_has_no_use_for_is_told_too(folder):
    with identity.claimed(folder, Recipe(), "train", ORIGINS):
        pass

    with pytest.raises(InputError, match=r"train\.momentum was 0\.9, is None; .*train\.optimizer was 'sgd', is 'adam'"):
        identity.check(folder.parents[1], recipe.resolve({"train": {"optimizer": "adam"}}))


def test_a_folder_that_another_process_holds_is_busy_and_stays_as_it_is(folder):
    with locks.writing(folder):
        before = contents(folder)
        with pytest.raises(locks.Busy, match=str(folder)), identity.claimed(folder, Recipe(), "train", ORIGINS):
            raise AssertionError("claimed")
        assert contents(folder) == before


def test_a_process_that_fails_leaves_the_folder_claimed_and_free(folder):
    with pytest.raises(ZeroDivisionError), identity.claimed(folder, Recipe(), "train", ORIGINS):
        raise ZeroDivisionError

    assert [path.name for path in folder.iterdir()] == ["made_with.json"]
    assert locks.holder(folder) is None


def test_an_identity_that_is_damaged_is_named(folder):
    folder.mkdir(parents=True)
    (folder / "made_with.json").write_text("{")

    with (
        pytest.raises(InputError, match=r"train/made_with\.json is damaged"),
        identity.claimed(folder, Recipe(), "train", ORIGINS),
    ):
        raise AssertionError("claimed")


def test_a_run_that_is_not_there_or_holds_nothing_suits_every_recipe(tmp_path):
    identity.check(tmp_path / "nowhere", Recipe())
    identity.check(tmp_path, Recipe())


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("replicate-1/train", "train"),
        ("replicate-2/masks", "thresholds"),
        ("replicate-7/retrain/q97.5-step-000045/shuffle", "retrain"),
        ("replicate-1/rounds/weights-step-000000/03", "rounds"),
        ("replicate-1/rounds/finetune-step-000045/12/ticket", "finetune"),
    ],
)
def test_every_output_of_a_run_is_compared_wherever_it_lies(tmp_path, name, stage):
    with identity.claimed(tmp_path / name, recipe.resolve({"seed": 1}), stage, ORIGINS):
        pass

    identity.check(tmp_path, recipe.resolve({"seed": 1}))
    with pytest.raises(InputError, match=f"^{tmp_path / name} was made with another recipe .seed was 1, is 2.:"):
        identity.check(tmp_path, recipe.resolve({"seed": 2}))


def test_each_output_is_compared_by_what_its_own_stage_depends_on(tmp_path):
    with identity.claimed(tmp_path / "replicate-1" / "train", Recipe(), "train", ORIGINS):
        pass
    changed = recipe.resolve({"thresholds": {"layerwise": True}, "retrain": {"slots": "restore"}})

    identity.check(tmp_path, changed)
    with identity.claimed(tmp_path / "replicate-1" / "masks", Recipe(), "thresholds", ORIGINS):
        pass
    with pytest.raises(InputError, match=r"masks .*\(thresholds\.layerwise was False, is True\)"):
        identity.check(tmp_path, changed)


def claim(folder, stage, **tables):
    with identity.claimed(folder, recipe.resolve(tables), stage, ORIGINS):
        pass


def forget(folder, key):
    """Let an output be from before there was this key."""
    values = files.read_json(folder / "made_with.json")["values"]
    del values[key]
    changed(folder / "made_with.json", values=values)


@pytest.mark.parametrize("key", ["data.channels", "data.crop", "train.evaluate", "train.momentum", "model.width"])
def test_a_key_that_an_output_does_not_know_is_a_difference(folder, key):
    claim(folder, "train", model={"name": "resnet9"})
    forget(folder, key)

    with pytest.raises(InputError, match=f"{key} was None, is"):
        identity.check(folder.parents[1], recipe.resolve({"model": {"name": "resnet9"}}))


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ({"rate": 10.0}, r"rounds\.rate was 20\.0, is 10\.0"),
        ({"rates": ["fc*=10"]}, r"rounds\.rates was \[\], is \['fc\*=10'\]"),
    ],
)
@pytest.mark.parametrize("stage", ["rounds", "finetune"])
def test_rounds_of_another_rate_are_refused(folder, stage, rounds, words):
    claim(folder, stage)

    with pytest.raises(InputError, match=rf"\({words}\)"):
        claim(folder, stage, rounds=rounds)


@pytest.mark.parametrize("stage", ["train", "thresholds", "retrain"])
def test_what_is_no_round_does_not_depend_on_rounds(folder, stage):
    claim(folder, stage)

    claim(folder, stage, rounds={"rate": 10.0, "rates": ["fc*=10"], "finetune_rate": 0.5})


@pytest.mark.parametrize("stage", ["rounds", "finetune"])
def test_more_rounds_other_methods_and_controls_claim_a_folder_again(folder, stage):
    claim(folder, stage)

    wider = {"levels": 20, "methods": ["lr", "finetune", "init"], "rewind": "0,10it,1ep"}
    claim(folder, stage, pruning=["rounds"], rounds={**wider, "controls": ["random", "shuffle"], "control_levels": "1..18:3"})


def test_the_rate_of_finetuning_is_what_finetuned_rounds_are_made_with_and_no_others(folder):
    claim(folder / "rounds", "rounds")
    claim(folder / "finetune", "finetune")
    other = {"rounds": {"finetune_rate": 0.01}}

    claim(folder / "rounds", "rounds", **other)
    with pytest.raises(InputError, match=r"\(rounds\.finetune_rate was 0\.0, is 0\.01\)"):
        claim(folder / "finetune", "finetune", **other)


def test_so_many_steps_instead_of_epochs_are_a_difference(folder):
    claim(folder, "train")

    with pytest.raises(InputError, match=r"\(train\.epochs was 20, is None; train\.steps was None, is 900\)"):
        claim(folder, "train", train={"steps": 900})


def test_epochs_are_no_matter_where_there_are_so_many_steps(folder):
    claim(folder, "train", train={"steps": 900, "epochs": 5})

    claim(folder, "train", train={"steps": 900, "epochs": 7})
