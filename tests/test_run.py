"""The run directory: which one is meant, what it is named after, and what must not be mixed in it."""

import dataclasses
import json
import os
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from data_prep import files, records
from data_prep.errors import InputError
from lottery import identity, locks, plan, recipe, retrain, store
from lottery.grids import Job
from lottery.recipe import Recipe
from lottery.run import Network, Run, open_run


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty current folder, and an environment that names no run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IMP_RUN", raising=False)
    monkeypatch.delenv("IMP_DATA", raising=False)
    return tmp_path


def recipe_file(name="mine", **train):
    path = Path(f"{name}.toml")
    path.write_text(recipe.to_toml(recipe.resolve({"name": name, "train": train})))
    return path


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_every_file_has_a_readable_name():
    run = Run(Path("runs/digits"), Recipe())
    replicate = run.replicate(2)
    network = run.network(Job(2, Fraction("97.5"), 45, "shuffle"))

    assert str(replicate.dense.result) == "runs/digits/replicate-2/train/result.json"
    assert str(replicate.dense.metrics) == "runs/digits/replicate-2/train/metrics.jsonl"
    assert str(replicate.snapshot(45)) == "runs/digits/replicate-2/train/snapshots/step-000045.h5"
    assert str(replicate.snapshot(1_234_567)) == "runs/digits/replicate-2/train/snapshots/step-1234567.h5"
    assert str(replicate.thresholds) == "runs/digits/replicate-2/thresholds.json"
    assert str(replicate.mask(Fraction("97.5"))) == "runs/digits/replicate-2/masks/q97.5.h5"
    assert str(network.folder) == "runs/digits/replicate-2/retrain/q97.5-step-000045/shuffle"
    assert str(network.final) == f"{network.folder}/final.h5"
    assert str(network.checkpoint) == f"{network.folder}/checkpoint.h5"
    assert str(run.report) == "runs/digits/report"


def test_replicates_count_from_one():
    run = Run(Path("run"), recipe.resolve({"replicates": 3}))

    assert [replicate.folder.name for replicate in run.replicates()] == ["replicate-1", "replicate-2", "replicate-3"]


def test_records_lie_in_data_or_where_imp_data_says(monkeypatch):
    run = Run(Path("run"), recipe.resolve({"data": {"source": "tfds:cifar10", "size": 16}}))

    assert str(run.records()) == "data/tfds-cifar10-16"
    monkeypatch.setenv("IMP_DATA", "/somewhere")
    assert str(run.records()) == "/somewhere/tfds-cifar10-16"


def test_records_lie_where_the_recipe_says_before_all(monkeypatch):
    monkeypatch.setenv("IMP_DATA", "/somewhere")

    assert str(Run(Path("run"), recipe.resolve({"data": {"path": "/else/where"}})).records()) == "/else/where"


def test_without_records_there_is_no_plan_and_no_number_of_images():
    run = Run(Path("run"), Recipe())

    assert run.known_training_images() is None
    with pytest.raises(InputError, match="imp prepare"):
        run.plan()


def test_with_nothing_named_the_run_is_runs_digits():
    assert open_run().folder == Path("runs/digits")
    assert open_run().recipe == Recipe()
    assert not Path("runs").exists()


def test_the_run_last_used_comes_before_digits():
    open_run(recipe_file=recipe_file("mine", batch=32)).adopt()

    assert open_run().folder == Path("runs/mine")
    assert open_run().recipe.train.batch == 32


def test_a_recipe_names_its_run_before_the_run_last_used():
    open_run(recipe_file=recipe_file("mine")).adopt()

    assert open_run(recipe_file=recipe_file("other")).folder == Path("runs/other")


def test_imp_run_comes_before_the_name_of_a_recipe(monkeypatch):
    monkeypatch.setenv("IMP_RUN", "elsewhere/run")

    assert open_run(recipe_file=recipe_file("mine")).folder == Path("elsewhere/run")
    assert open_run().folder == Path("elsewhere/run")


def test_a_folder_given_comes_before_all(monkeypatch):
    monkeypatch.setenv("IMP_RUN", "elsewhere/run")

    assert open_run(Path("given"), recipe_file("mine")).folder == Path("given")


def test_a_name_that_is_set_names_the_run_of_a_recipe():
    assert open_run(recipe_file=recipe_file("mine"), overrides=["name=mine-too"]).folder == Path("runs/mine-too")


def test_an_empty_imp_run_names_nothing(monkeypatch):
    monkeypatch.setenv("IMP_RUN", "")

    assert open_run().folder == Path("runs/digits")


def test_opening_a_run_writes_nothing(here):
    open_run(Path("given"), overrides=["train.epochs=5"])

    assert list(here.iterdir()) == []


def test_a_recipe_that_is_wrong_is_refused_with_the_name_of_its_file():
    Path("bad.toml").write_text("[train]\nepoch = 5\n")

    with pytest.raises(InputError, match=r"^bad\.toml: unknown key 'train\.epoch'; did you mean 'train\.epochs'"):
        open_run(recipe_file=Path("bad.toml"))
    with pytest.raises(InputError, match=r"^bad\.toml: unknown key 'train\.epoch'"):
        open_run(Path("given"), Path("bad.toml"))


def test_a_run_that_must_be_there_is_asked_for_by_name():
    with pytest.raises(InputError, match="no run in nowhere"):
        open_run(Path("nowhere"), must_exist=True)


def test_a_file_is_no_run():
    Path("notes").write_text("")

    with pytest.raises(InputError, match="notes is a file"):
        open_run(Path("notes"))


MADE_WITH = {"source": "folder:/photos of mine", "size": 16, "validation": 0.0, "test": 1e-05, "split_seed": 3, "classes": 7}


def prepared(name="My set, 2", **made_with):
    """A folder of records that were made with `MADE_WITH`."""
    folder = Path("sets", name)
    folder.mkdir(parents=True)
    records.write_manifest(folder, records.Manifest((16, 16, 3), ["0"], [], {**MADE_WITH, **made_with}))
    return folder


def test_records_name_their_run_and_say_what_its_data_are(here):
    run = open_run(records=prepared())

    assert run.folder == Path("runs/My-set--2")
    assert run.recipe.name == "My-set--2"
    assert {key: getattr(run.recipe.data, key) for key in MADE_WITH} == MADE_WITH
    assert run.recipe.data.path == str(here / "sets/My set, 2")
    assert run.records() == here / "sets/My set, 2"
    assert run.manifest().made_with == MADE_WITH
    assert not Path("runs").exists()


def test_a_run_on_records_is_gone_on_with_from_anywhere(monkeypatch, here):
    run = open_run(records=prepared("set"), overrides=["train.epochs=7"])
    run.adopt()

    assert open_run() == run
    assert open_run(records=Path("sets/set")) == run
    monkeypatch.chdir("sets")
    assert open_run(here / "runs/set").manifest() == run.manifest()


def test_records_come_before_the_run_last_used():
    open_run(recipe_file=recipe_file("mine", batch=32)).adopt()

    run = open_run(records=prepared("set"))

    assert (run.folder, run.recipe.train.batch) == (Path("runs/set"), Recipe().train.batch)


def test_a_recipe_keeps_its_name_and_gets_the_data_of_the_records():
    run = open_run(recipe_file=recipe_file("mine", batch=32), records=prepared("set"))

    assert (run.folder, run.recipe.name, run.recipe.train.batch) == (Path("runs/mine"), "mine", 32)
    assert run.recipe.data.source == MADE_WITH["source"]


def test_a_run_that_is_named_comes_before_the_name_of_the_records(monkeypatch):
    folder = prepared("set")

    assert open_run(Path("given"), records=folder).folder == Path("given")
    monkeypatch.setenv("IMP_RUN", "elsewhere/run")
    assert open_run(records=folder).folder == Path("elsewhere/run")


def test_a_name_that_is_set_names_the_run_of_records():
    run = open_run(records=prepared("set"), overrides=["name=other"])

    assert (run.folder, run.recipe.name) == (Path("runs/other"), "other")


@pytest.mark.parametrize(("name", "run"), [("2nd.set_x", "2nd.set_x"), ("...", "records"), ("été", "t-")])
def test_a_run_can_be_called_like_any_folder_of_records(name, run):
    assert open_run(records=prepared(name)).folder == Path("runs", run)


def test_values_that_are_not_those_of_the_records_are_refused():
    run = open_run(records=prepared("set"), overrides=["data.size=32"])

    with pytest.raises(InputError, match=r"data\.size 16 there, 32 wanted"):
        run.plan()


def test_a_folder_without_records_is_refused():
    Path("empty").mkdir()

    for folder in (Path("empty"), Path("nowhere")):
        with pytest.raises(InputError, match=f"no records in {folder}"):
            open_run(records=folder)


def test_records_that_do_not_say_what_they_were_made_from_are_refused():
    with pytest.raises(InputError, match="prepare them anew"):
        open_run(records=prepared("set", colour="blue"))


def test_points_past_the_end_are_refused_when_a_run_is_opened():
    with pytest.raises(InputError, match=r"train\.snapshots"):
        open_run(overrides=["train.epochs=1", "train.warmup=0"])


def test_adopting_writes_the_recipe_the_environment_and_the_link():
    run = open_run(overrides=["train.epochs=5"])

    run.adopt()

    assert recipe.resolve(recipe.load(Path("runs/digits/recipe.toml"))).train.epochs == 5
    assert json.loads(Path("runs/digits/environment.json").read_text())["packages"]["numpy"] == np.__version__
    assert str(Path("runs/latest").readlink()) == "digits"
    assert sorted(path.name for path in Path("runs").iterdir()) == ["digits", "latest"]


def test_the_link_follows_the_run_last_adopted():
    for name in ("one", "two", "one"):
        open_run(recipe_file=recipe_file(name)).adopt()

    assert str(Path("runs/latest").readlink()) == "one"


def test_a_run_elsewhere_does_not_move_the_link():
    open_run().adopt()
    open_run(Path("elsewhere/run")).adopt()

    assert str(Path("runs/latest").readlink()) == "digits"
    assert not Path("elsewhere/latest").exists()


def test_a_run_elsewhere_makes_no_link():
    open_run(Path("elsewhere/run")).adopt()

    assert not Path("runs").exists()


def test_naming_the_link_itself_adopts_the_run_it_points_to():
    open_run().adopt()

    open_run(Path("runs/latest"), overrides=["train.epochs=7"]).adopt()

    assert str(Path("runs/latest").readlink()) == "digits"
    assert open_run(Path("runs/digits")).recipe.train.epochs == 7


def test_imp_run_may_name_the_link_and_leaves_it_as_it_is(monkeypatch):
    open_run(recipe_file=recipe_file("mine")).adopt()
    monkeypatch.setenv("IMP_RUN", "runs/latest")

    open_run(overrides=["train.epochs=7"]).adopt()

    assert str(Path("runs/latest").readlink()) == "mine"
    assert recipe.load(Path("runs/mine/recipe.toml"))["train"]["epochs"] == 7
    assert sorted(path.name for path in Path("runs").iterdir()) == ["latest", "mine"]


def test_a_run_reached_through_a_link_elsewhere_is_linked_by_its_own_name(monkeypatch):
    open_run(recipe_file=recipe_file("one")).adopt()
    open_run(recipe_file=recipe_file("two")).adopt()
    Path("shortcut").symlink_to("runs/one")

    open_run(Path("shortcut")).adopt()

    assert str(Path("runs/latest").readlink()) == "one"


def test_a_run_that_another_process_adopts_at_this_moment_is_busy():
    open_run().adopt()
    before = Path("runs/digits/recipe.toml").read_text()

    with locks.writing(Path("runs/digits")), pytest.raises(locks.Busy, match="runs/digits is being written"):
        open_run(overrides=["train.epochs=7"]).adopt()

    assert Path("runs/digits/recipe.toml").read_text() == before


def test_the_run_is_locked_while_it_is_adopted_and_free_afterwards(monkeypatch):
    holders = []
    write = files.write_text

    def watched(path, content):
        holders.append(locks.holder(Path("runs/digits")))
        write(path, content)

    monkeypatch.setattr(files, "write_text", watched)
    open_run().adopt()

    assert len(holders) == 2  # the recipe and the environment
    assert all(f"process {os.getpid()} " in str(holder) for holder in holders)
    assert sorted(path.name for path in Path("runs/digits").iterdir()) == ["environment.json", "recipe.toml"]


def test_adopting_what_is_adopted_already_writes_nothing():
    run = open_run()
    run.adopt()
    before = {path: path.stat().st_mtime_ns for path in Path("runs/digits").iterdir()}

    with locks.writing(Path("runs/digits")):
        run.adopt()

    assert {path: path.stat().st_mtime_ns for path in Path("runs/digits").iterdir()} == before


def test_the_environment_is_of_the_first_time_a_run_was_adopted():
    run = open_run()
    run.adopt()
    Path("runs/digits/environment.json").write_text("{}")

    run.adopt()

    assert Path("runs/digits/environment.json").read_text() == "{}"


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
    with identity.claimed(folder, run.recipe, stage):
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


@pytest.mark.parametrize(
    ("content", "finished"),
    [(None, False), ({"status": "failed"}, False), ({"status": "diverged"}, True), ({"status": "done"}, True)],
)
def test_what_failed_or_never_ended_is_tried_again(content, finished):
    dense = adopted().replicate(1).dense
    if content:
        write_json(dense.result, content)

    assert dense.is_finished == finished


def mask(replicate, *quantiles):
    """Say of `replicate` that it has the masks of `quantiles`."""
    replicate.masks.mkdir(parents=True, exist_ok=True)
    for quantile in quantiles:
        replicate.mask(Fraction(str(quantile))).touch()
    write_json(replicate.thresholds, {"quantiles": [{"quantile": quantile} for quantile in quantiles]})


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

    with identity.claimed(replicate.masks, masked.recipe, "thresholds"):
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


def test_a_folder_called_latest_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "runs" / "latest"
    mine.mkdir(parents=True)

    open_run().adopt()

    assert mine.is_dir()
    assert not mine.is_symlink()
    assert sorted(path.name for path in mine.parent.iterdir()) == ["digits", "latest"]
