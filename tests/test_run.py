"""The run directory: which one is meant, what it is named after, and how a recipe becomes its own."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from data_prep import files, records
from data_prep.errors import InputError
from lottery.experiment import reading
from lottery.experiment.recipe import Recipe
from lottery.rundir import locks
from lottery.rundir.run import Run, open_run

pytestmark = pytest.mark.usefixtures("here")


def recipe_file(name="mine", **train):
    path = Path(f"{name}.toml")
    path.write_text(reading.to_toml(reading.resolve({"name": name, "train": train})))
    return path


def test_replicates_count_from_one():
    run = Run(Path("run"), reading.resolve({"replicates": 3}))

    assert [replicate.folder.name for replicate in run.replicates()] == ["replicate-1", "replicate-2", "replicate-3"]


def test_records_lie_in_data_or_where_imp_data_says(monkeypatch):
    run = Run(Path("run"), reading.resolve({"data": {"source": "tfds:cifar10", "size": 16}}))

    assert str(run.records()) == "data/tfds-cifar10-16"
    monkeypatch.setenv("IMP_DATA", "/somewhere")
    assert str(run.records()) == "/somewhere/tfds-cifar10-16"


def test_records_lie_where_the_recipe_says_before_all(monkeypatch):
    monkeypatch.setenv("IMP_DATA", "/somewhere")

    assert str(Run(Path("run"), reading.resolve({"data": {"path": "/else/where"}})).records()) == "/else/where"


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


def test_a_recipe_that_is_given_takes_the_place_of_a_damaged_one():
    open_run(recipe_file=recipe_file("mine", batch=32)).adopt()
    own = Path("runs/mine/recipe.toml")
    own.write_bytes(own.read_bytes() + b"\x80")
    with pytest.raises(InputError, match="name its recipe with --recipe, which replaces this one"):
        open_run()

    open_run(recipe_file=Path("mine.toml")).adopt()

    assert open_run().recipe.train.batch == 32


@pytest.mark.parametrize("first", [b"", b"name = 5", b"# written by imp, format 1; change it with --set. sha256 0"])
def test_a_run_of_another_format_is_refused_in_one_line_whatever_recipe_is_given(first):
    open_run(recipe_file=recipe_file("mine", batch=32)).adopt()
    own = Path("runs/mine/recipe.toml")
    own.write_bytes(first + b"\n" + own.read_bytes().partition(b"\n")[2])

    for given in (None, Path("mine.toml")):
        with pytest.raises(
            InputError, match=r"this one reads format 2\): use that version, .* first line is damaged, remove it"
        ):
            open_run(recipe_file=given)

    own.unlink()
    open_run(recipe_file=Path("mine.toml")).adopt()
    assert open_run().recipe.train.batch == 32


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

    assert reading.resolve(reading.load(Path("runs/digits/recipe.toml"))).train.epochs == 5
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
    assert reading.load(Path("runs/mine/recipe.toml"))["train"]["epochs"] == 7
    assert sorted(path.name for path in Path("runs").iterdir()) == ["latest", "mine"]


def test_a_run_reached_through_a_link_elsewhere_is_linked_by_its_own_name(monkeypatch):
    open_run(recipe_file=recipe_file("one")).adopt()
    open_run(recipe_file=recipe_file("two")).adopt()
    Path("shortcut").symlink_to("runs/one")

    open_run(Path("shortcut")).adopt()

    assert str(Path("runs/latest").readlink()) == "one"


def test_a_run_that_another_process_adopts_for_long_is_busy(monkeypatch):
    monkeypatch.setattr("lottery.rundir.run.ADOPT_SECONDS", 0.2)
    open_run().adopt()
    before = Path("runs/digits/recipe.toml").read_text()

    with locks.writing(Path("runs/digits")), pytest.raises(locks.Busy, match="runs/digits is being written"):
        open_run(overrides=["train.epochs=7"]).adopt()

    assert Path("runs/digits/recipe.toml").read_text() == before


def test_the_run_is_locked_while_it_is_adopted_and_free_afterwards(monkeypatch):
    holders = []
    write = files.write_bytes

    def watched(path, content):
        holders.append(locks.holder(Path("runs/digits")))
        write(path, content)

    monkeypatch.setattr(files, "write_bytes", watched)
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
    files.write_json(Path("runs/digits/environment.json"), {"host": "the first"})

    run.adopt()

    assert files.read_json(Path("runs/digits/environment.json")) == {"host": "the first"}


def test_a_folder_called_latest_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "runs" / "latest"
    mine.mkdir(parents=True)

    open_run().adopt()

    assert mine.is_dir()
    assert not mine.is_symlink()
    assert sorted(path.name for path in mine.parent.iterdir()) == ["digits", "latest"]
