"""The run directory: which one is meant, what it is named after, and how a recipe becomes its own."""

import json
from pathlib import Path

import numpy as np
import pytest

from data_prep import records
from lottery.base import files, locks
from lottery.base.errors import InputError
from lottery.experiment import reading
from lottery.experiment.recipe import Recipe
from lottery.rundir.run import Run, open_run

pytestmark = pytest.mark.usefixtures("here")


def recipe_file(name="mine", **train):
    path = Path(f"{name}.toml")
    path.write_text(reading.to_toml(reading.resolve({"name": name, "train": train})))
    return path


def test_records_lie_in_data_or_where_imp_data_says_or_before_all_where_the_recipe_does(monkeypatch):
    run = Run(Path("run"), reading.resolve({"data": {"source": "tfds:cifar10", "size": 16}}))

    assert str(run.records()) == "data/tfds-cifar10-16"
    assert run.known_training_examples() is None
    with pytest.raises(InputError, match="imp prepare"):
        run.plan()
    monkeypatch.setenv("IMP_DATA", "/somewhere")
    assert str(run.records()) == "/somewhere/tfds-cifar10-16"
    assert str(Run(Path("run"), reading.resolve({"data": {"path": "/else/where"}})).records()) == "/else/where"


def test_a_run_is_the_folder_given_or_of_imp_run_or_called_like_its_recipe_or_the_last_used_or_digits(monkeypatch, here):
    monkeypatch.setenv("IMP_RUN", "")
    assert (open_run().folder, open_run().recipe) == (Path("runs/digits"), Recipe())
    assert list(here.iterdir()) == []

    mine, other, name = recipe_file("mine", batch=32), recipe_file("other"), ["name=mine-too"]
    open_run(recipe_file=mine).adopt()

    assert (open_run().folder, open_run().recipe.train.batch) == (Path("runs/mine"), 32)
    assert open_run(recipe_file=other).folder == Path("runs/other")
    assert open_run(recipe_file=mine, overrides=name).folder == Path("runs/mine-too")
    monkeypatch.setenv("IMP_RUN", "elsewhere/run")
    assert open_run().folder == open_run(recipe_file=mine).folder == Path("elsewhere/run")
    assert open_run(Path("given"), mine).folder == Path("given")


def test_records_name_a_run_before_the_last_used_but_after_its_folder_and_its_recipe(monkeypatch):
    mine, folder = recipe_file("mine", batch=32), prepared("set")
    open_run(recipe_file=mine).adopt()

    alone = open_run(records=folder)
    both = open_run(recipe_file=mine, records=folder)
    named = open_run(records=folder, overrides=["name=other"])

    assert (alone.folder, alone.recipe.train.batch) == (Path("runs/set"), Recipe().train.batch)
    assert (both.folder, both.recipe.name, both.recipe.train.batch) == (Path("runs/mine"), "mine", 32)
    assert both.recipe.data.source == MADE_WITH["source"]
    assert (named.folder, named.recipe.name) == (Path("runs/other"), "other")
    assert open_run(Path("given"), records=folder).folder == Path("given")
    monkeypatch.setenv("IMP_RUN", "elsewhere/run")
    assert open_run(records=folder).folder == Path("elsewhere/run")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"folder": Path("nowhere"), "must_exist": True}, "no run in nowhere"),
        ({"folder": Path("notes")}, "notes is a file"),
        ({"records": Path("empty")}, "no records in empty"),
        ({"overrides": ["train.epochs=1", "train.warmup=0"]}, r"train\.snapshots"),
    ],
)
def test_what_is_no_run_or_no_records_is_refused_by_name(given, words):
    Path("notes").write_text("")
    Path("empty").mkdir()

    with pytest.raises(InputError, match=words):
        open_run(**given)


MADE_WITH = {"source": "folder:/photos of mine", "size": 16, "validation": 0.0, "test": 1e-05, "split_seed": 3, "classes": 7}


def prepared(name="My set, 2", **made_with):
    """A folder of records that were made with `MADE_WITH`."""
    folder = Path("sets", name)
    folder.mkdir(parents=True)
    shard = records.Shard("train-00000.tfrecord", "train", 640, 1, "0" * 64)
    records.write_manifest(folder, records.Manifest((16, 16, 3), ["0"], [shard], {**MADE_WITH, **made_with}))
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


@pytest.mark.parametrize("first", [b"", b"# written by imp, format 1; change it with --set. sha256 0"])
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


@pytest.mark.parametrize(("name", "run"), [("2nd.set_x", "2nd.set_x"), ("...", "records"), ("été", "t-")])
def test_a_run_can_be_called_like_any_folder_of_records(name, run):
    assert open_run(records=prepared(name)).folder == Path("runs", run)


def test_values_that_are_not_those_of_the_records_and_records_that_do_not_say_theirs_are_refused():
    with pytest.raises(InputError, match=r"data\.size 16 there, 32 wanted"):
        open_run(records=prepared("set"), overrides=["data.size=32"]).plan()
    with pytest.raises(InputError, match="prepare them anew"):
        open_run(records=prepared("blue", colour="blue"))


def test_records_never_say_that_labels_are_noisy_and_a_recipe_that_disagrees_with_them_is_refused():
    noisy, clean = prepared("noisy", label_noise=0.2), prepared("clean")

    assert open_run(records=noisy, overrides=["data.label_noise=0.2"]).manifest().made_with["label_noise"] == 0.2
    with pytest.raises(InputError, match=r"data\.label_noise 0\.2 there, 0\.0 wanted"):
        open_run(records=noisy).plan()
    Path("noise.toml").write_text("data.label_noise = 0.2")
    with pytest.raises(InputError, match=r"data\.label_noise 0\.0 there, 0\.2 wanted"):
        open_run(recipe_file=Path("noise.toml"), records=clean).plan()


def test_adopting_writes_the_recipe_the_environment_and_the_link():
    run = open_run(overrides=["train.epochs=5"])

    run.adopt()

    assert reading.resolve(reading.load(Path("runs/digits/recipe.toml"))).train.epochs == 5
    assert json.loads(Path("runs/digits/environment.json").read_text())["packages"]["numpy"] == np.__version__
    assert str(Path("runs/latest").readlink()) == "digits"
    assert sorted(path.name for path in Path("runs").iterdir()) == ["digits", "latest"]


def link():
    return str(Path("runs/latest").readlink())


def refused(run, adopting):
    """Let `run`, within which another one is `adopting` its recipe, end as one that is refused."""
    with pytest.raises(InputError, match="refused"), run.adopting():
        _refuse(adopting)


def _refuse(adopting):
    adopting.adopt()
    raise InputError("refused")


def test_a_recipe_that_fails_is_put_back_with_the_link_and_another_process_s_stays():
    folder, run = Path("runs/two"), open_run("runs/two")
    open_run("runs/one").adopt()

    refused(run, adopting=run)

    assert link() == "one"
    assert not (folder / "recipe.toml").exists()
    assert not (folder / "environment.json").exists()

    refused(run, adopting=open_run("runs/two", overrides=["seed=5"]))  # as another process would

    assert "seed = 5" in (folder / "recipe.toml").read_text()


def test_the_link_follows_the_run_last_adopted_and_none_elsewhere():
    open_run(Path("elsewhere/run")).adopt()
    assert not Path("runs").exists()

    for name in ("one", "two", "one"):
        open_run(recipe_file=recipe_file(name)).adopt()
        assert link() == name
    open_run(Path("elsewhere/run")).adopt()

    assert link() == "one"
    assert not Path("elsewhere/latest").exists()


def test_a_run_that_is_reached_through_a_link_is_linked_by_its_own_name():
    open_run(recipe_file=recipe_file("mine")).adopt()

    open_run(Path("runs/latest"), overrides=["train.epochs=7"]).adopt()

    assert link() == "mine"
    assert open_run(Path("runs/mine")).recipe.train.epochs == 7
    assert sorted(path.name for path in Path("runs").iterdir()) == ["latest", "mine"]


def test_a_run_that_another_process_adopts_for_long_is_busy(monkeypatch):
    monkeypatch.setattr("lottery.rundir.run.ADOPT_SECONDS", 0.2)
    open_run().adopt()
    before = Path("runs/digits/recipe.toml").read_text()

    with locks.writing(Path("runs/digits")), pytest.raises(locks.Busy, match="runs/digits is being written"):
        open_run(overrides=["train.epochs=7"]).adopt()

    assert Path("runs/digits/recipe.toml").read_text() == before


def test_adopting_what_is_adopted_already_writes_nothing_and_keeps_the_environment_of_the_first_time():
    run = open_run()
    run.adopt()
    files.write_json(Path("runs/digits/environment.json"), {"host": "the first"})
    before = {path: path.stat().st_mtime_ns for path in Path("runs/digits").iterdir()}

    with locks.writing(Path("runs/digits")):
        run.adopt()

    assert {path: path.stat().st_mtime_ns for path in Path("runs/digits").iterdir()} == before
