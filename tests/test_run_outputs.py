"""What lies in a run directory: outputs that must not be mixed, results, masks, and the jobs they come to."""

import dataclasses
import json
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from handmade import ORIGINS

from data_prep import files, records
from data_prep.errors import InputError
from lottery import environment, identity, plan, recipe, store
from lottery.jobs import Job
from lottery.run import Network, open_run
from lottery.stages import retrain

pytestmark = pytest.mark.usefixtures("here")


def end(network, **result):
    files.write_json(network.result, {"folder": identity.place(network.folder), **result})


def adopted(*overrides):
    """A run with its recipe in place; the values that the tests below change are written out."""
    plain = ["train.learning_rate=0.03", "train.batch=64", "data.size=32", "thresholds.exclude=[]", "retrain.slots=fresh"]
    run = open_run(Path("run"), overrides=[*plain, *overrides])
    run.adopt()
    return run


def made(run, stage, number=1):
    """The folder of an output of `stage` in `run`, made with its recipe."""
    replicate = run.replicate(number)
    folder = {
        "train": replicate.dense.folder,
        "thresholds": replicate.masks,
        "retrain": run.network(Job(number, Fraction(90), 0, "ticket")).folder,
    }[stage]
    with identity.claimed(folder, run.recipe, stage, ORIGINS):
        return folder


@pytest.mark.parametrize(
    ("stage", "override", "words"),
    [
        ("train", "train.learning_rate=0.5", "train.learning_rate was 0.03, is 0.5"),
        ("train", "seed=1", "seed was 0, is 1"),
        ("train", "data.size=16", "data.size was 32, is 16"),
        ("train", "data.shuffle=1000", "data.shuffle was 65536, is 1000"),
        ("train", "data.cutout=4", "data.cutout was 0, is 4"),
        ("retrain", "data.classes=4", "data.classes was 0, is 4"),
        ("thresholds", "thresholds.layerwise=true", "thresholds.layerwise was False, is True"),
        ("thresholds", "thresholds.exclude=['a/*']", r"thresholds.exclude was [], is ['a/*']"),
        ("retrain", "retrain.slots=restore", "retrain.slots was 'fresh', is 'restore'"),
        ("retrain", "train.batch=32", "train.batch was 64, is 32"),
    ],
)
def test_an_output_made_with_another_recipe_is_refused_with_the_key_and_both_values(stage, override, words):
    folder = made(adopted(), stage)

    with pytest.raises(InputError) as refusal:
        open_run(Path("run"), overrides=[override])

    assert str(refusal.value).startswith(f"{folder} was made with another recipe")
    assert words in str(refusal.value)


def test_every_key_that_differs_is_told():
    made(adopted(), "train")

    with pytest.raises(InputError, match=r"seed was 0, is 1; train\.batch was 64, is 32"):
        open_run(Path("run"), overrides=["seed=1", "train.batch=32"])


@pytest.mark.parametrize(
    ("stage", "override"),
    [
        ("train", "train.snapshots=0,10it,1ep,2ep,3ep"),
        ("train", "thresholds.scope=all"),
        ("train", "replicates=3"),
        ("train", "delta=0.01"),
        ("train", "track.wandb=offline"),
        ("train", "train.checkpoint_seconds=0"),
        ("train", "data.path=/else/where"),
        ("train", "data.feed=stream"),
        ("retrain", "data.budget=0.5"),
        ("thresholds", "thresholds.quantiles=60..99"),
        ("thresholds", "retrain.slots=restore"),
        ("retrain", "retrain.rewind=0,10it,1ep"),
        ("retrain", "retrain.controls=['random']"),
        ("retrain", "retrain.control_quantiles=60..99"),
        ("retrain", "thresholds.quantiles=60..99"),
    ],
)
def test_a_wider_grid_and_what_an_output_does_not_depend_on_are_no_hindrance(stage, override):
    made(adopted(), stage)

    open_run(Path("run"), overrides=[override])


@pytest.mark.parametrize("number", [2, 3, 12])
def test_outputs_of_every_replicate_folder_are_compared_also_beyond_the_recipes(number):
    made(adopted("replicates=2"), "train", number)

    with pytest.raises(InputError, match=rf"replicate-{number}/train .*seed was 0, is 1"):
        open_run(Path("run"), overrides=["seed=1"])


@pytest.mark.parametrize("stage", ["train", "retrain"])
def test_a_training_under_way_is_not_gone_on_with_under_another_recipe(stage):
    run = adopted()
    folder = made(run, stage)
    store.save_state(Network(folder).checkpoint, store.State(45, {"fc/kernel": np.ones(3, np.float32)}, {}, {}))

    with pytest.raises(InputError, match=r"train\.learning_rate"):
        open_run(Path("run"), overrides=["train.learning_rate=0.5"])


def test_every_output_is_compared_and_not_only_the_first():
    run = adopted("replicates=2")
    made(run, "train")
    changed = dataclasses.replace(run, recipe=recipe.resolve({"thresholds": {"layerwise": True}}))
    made(changed, "thresholds", 2)

    with pytest.raises(InputError, match=r"replicate-2/masks .*thresholds\.layerwise was True, is False"):
        open_run(Path("run"))


def test_an_output_that_was_removed_is_no_hindrance():
    shutil.rmtree(made(adopted(), "train"))

    open_run(Path("run"), overrides=["seed=1"])


def test_a_damaged_identity_is_named():
    (made(adopted(), "train") / "made_with.json").write_text('{"stage": "tr')

    with pytest.raises(InputError, match=r"train/made_with\.json is damaged"):
        open_run(Path("run"))


def test_a_damaged_result_is_named():
    dense = adopted().replicate(1).dense
    dense.folder.mkdir(parents=True)
    dense.result.write_text('{"status": "do')

    with pytest.raises(InputError, match=r"train/result\.json is damaged"):
        dense.read_result()


@pytest.mark.parametrize(("status", "finished"), [(None, False), ("failed", False), ("diverged", True), ("done", True)])
def test_what_failed_or_never_ended_is_tried_again(status, finished):
    dense = adopted().replicate(1).dense
    if status:
        end(dense, status=status)

    assert dense.is_finished == finished


def mask(replicate, *quantiles):
    """Say of `replicate` that it has the masks of `quantiles`."""
    replicate.masks.mkdir(parents=True, exist_ok=True)
    for quantile in quantiles:
        replicate.mask(Fraction(str(quantile))).touch()
    files.write_json(replicate.thresholds, {"quantiles": [{"quantile": quantile} for quantile in quantiles]})


GRID = ("thresholds.quantiles=50,90", "retrain.controls=[]", "train.snapshots=0,10it,1ep,2ep")


@pytest.fixture
def masked():
    """A run of two replicates with masks of quantiles 80 and 97.5."""
    run = adopted("replicates=2", *GRID)
    for replicate in run.replicates():
        mask(replicate, 80, 97.5)
    return run


def jobs(run, **grids):
    """The quantiles and steps of each replicate's jobs."""
    return sorted((job.replicate, job.quantile, job.step) for job in run.jobs(plan.Plan(run.recipe, 45), **grids))


def test_the_quantiles_of_a_replicate_are_those_of_its_masks(masked):
    assert masked.replicate(1).quantiles() == [Fraction(80), Fraction("97.5")]


def test_before_thresholds_are_taken_a_replicate_has_no_quantiles():
    assert adopted().replicate(1).quantiles() == []


def test_without_the_folder_of_the_masks_a_replicate_has_no_quantiles(masked):
    shutil.rmtree(masked.replicate(1).masks)

    assert masked.replicate(1).quantiles() == []


def test_masks_that_were_removed_do_not_come_back_when_their_folder_is_begun_anew(masked):
    replicate = masked.replicate(1)
    shutil.rmtree(replicate.masks)

    with identity.claimed(replicate.masks, masked.recipe, "thresholds", ORIGINS):
        assert replicate.quantiles() == []


def test_masks_that_no_thresholds_list_are_none_yet(masked):
    masked.replicate(1).thresholds.unlink()

    assert masked.replicate(1).quantiles() == []


def test_the_jobs_of_a_run_are_its_masks_at_the_rewind_points_of_its_recipe(masked):
    steps = plan.Plan(masked.recipe, 45).rewind_steps(masked.recipe.retrain.rewind)

    assert steps == [0, 90]
    assert jobs(masked) == [
        (number, quantile, step) for number in (1, 2) for quantile in (80, Fraction("97.5")) for step in steps
    ]


def test_a_mask_that_any_replicate_has_is_a_job_of_all(masked):
    mask(masked.replicate(2), 80, 85)

    assert jobs(masked, rewind="0") == [(number, quantile, 0) for number in (1, 2) for quantile in (80, 85, Fraction("97.5"))]


def test_before_there_are_masks_the_jobs_are_those_of_the_recipe():
    assert jobs(adopted("replicates=2", *GRID), rewind="0") == [(1, 50, 0), (1, 90, 0), (2, 50, 0), (2, 90, 0)]


def test_jobs_can_be_asked_for_by_quantile_and_rewind_point(masked):
    found = masked.jobs(plan.Plan(masked.recipe, 45), quantiles="97.5", rewind="10it")

    assert found == [Job(replicate, Fraction("97.5"), 10, "ticket") for replicate in (1, 2)]


def test_jobs_can_be_asked_for_before_their_masks_are_there(masked):
    assert jobs(masked, quantiles="80,85", rewind="0") == [(1, 80, 0), (1, 85, 0), (2, 80, 0), (2, 85, 0)]


def test_retraining_asks_for_masks_that_are_not_there_by_quantile(masked):
    with pytest.raises(InputError, match=r"replicate-1 has no mask of 85,90: run `imp thresholds --quantiles 85,90` first"):
        retrain._check_masks(masked, "80,85,90,97.5")


@pytest.mark.parametrize("quantiles", [None, "50"])
def test_retraining_asks_for_masks_before_there_are_any(quantiles):
    with pytest.raises(InputError, match=r"replicate-1 has no masks: run `imp thresholds` first"):
        retrain._check_masks(adopted(*GRID), quantiles)


def test_retraining_asks_for_the_masks_of_a_replicate_that_has_none(masked):
    shutil.rmtree(masked.replicate(2).masks)

    with pytest.raises(InputError, match=r"replicate-2 has no masks: run `imp thresholds` first"):
        retrain._check_masks(masked, None)


@pytest.mark.parametrize("quantiles", [None, "80,97.5"])
def test_retraining_asks_for_a_mask_that_one_replicate_lacks(masked, quantiles):
    mask(masked.replicate(2), 80)

    with pytest.raises(InputError, match=r"replicate-2 has no mask of 97\.5: run `imp thresholds --quantiles 97\.5` first"):
        retrain._check_masks(masked, quantiles)


@pytest.mark.parametrize("quantiles", [None, "80", "97.5", "80,97.5"])
def test_retraining_goes_on_when_every_replicate_has_the_masks(masked, quantiles):
    retrain._check_masks(masked, quantiles)


def trained_on(sha256, number=1):
    """A run of which a dense network is trained, on the shard of that sum."""
    run = adopted()
    shards = [records.Shard("train-00000.tfrecord", "train", 2900, 0, sha256)]
    manifest = records.Manifest((32, 32, 3), ["0", "1"], shards, dataclasses.asdict(run.recipe.records()))
    run.records().mkdir(parents=True, exist_ok=True)
    records.write_manifest(run.records(), manifest)
    dense = run.replicate(number).dense
    with identity.claimed(dense.folder, run.recipe, "train", ORIGINS | {"records": manifest.digest}):
        end(dense, status="done")
    return run


def test_what_was_trained_on_other_images_is_not_built_upon():
    run = trained_on("aa")
    run.check_trained()
    trained_on("bb", number=2)  # prepared anew, from other files

    for chosen in (1, 2):  # the second goes with its images, but not with the first
        with pytest.raises(InputError, match=r"replicate-1/train was made from other images than those that are prepared now"):
            dataclasses.replace(run, chosen=(chosen,)).check_trained()


def test_what_does_not_say_what_it_was_trained_on_is_refused():
    run = trained_on("aa")
    path = run.replicate(1).dense.folder / identity.FILE
    path.write_text(json.dumps({"stage": "train", "values": recipe.depends(run.recipe, "train")}))  # as of earlier versions

    with pytest.raises(InputError, match=r"train/made_with\.json .* has no sha256, as earlier versions wrote none"):
        run.check_trained()


def test_a_run_has_its_environment_before_its_recipe(monkeypatch):
    monkeypatch.setattr(environment, "describe", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        adopted()

    assert not Path("run/recipe.toml").exists()  # so that the next command writes both


def test_copies_that_somebody_keeps_beside_networks_are_none():
    replicate = adopted().replicate(1)
    names = ["retrain/q97.5-step-000034/ticket", "rounds/weights-step-000000/01/reinit"]
    copies = [
        "retrain/q97.5-step-000034.bak/ticket",
        "retrain/q97.5-step-000034/ticket.old",
        "rounds/weights-step-0.1/01/reinit",
    ]
    for name in [*names, *copies]:
        (replicate.folder / name).mkdir(parents=True)
        (replicate.folder / name).parent.joinpath("round.json").touch()

    assert [network.folder for network in replicate.networks()] == [replicate.folder / name for name in names]
    assert [level.folder for level in replicate.levels()] == [replicate.folder / "rounds/weights-step-000000/01"]


def test_a_replicate_that_is_a_copy_of_another_is_refused():
    run = adopted()
    end(run.replicate(1).dense, status="done", replicate=1)
    open_run(run.folder)
    shutil.copytree(run.replicate(1).folder, run.replicate(2).folder)

    with pytest.raises(
        InputError, match=r"replicate-2/train/result\.json is the copy of another folder's \(replicate-1/train\): remove "
    ):
        open_run(run.folder)
