"""Recipes: read strictly, explained in one line, written out whole."""

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest

from data_prep.errors import InputError
from lottery import plan, recipe
from lottery.recipe import Recipe

PIPELINES = Path(__file__).parents[1] / "pipelines"


def refusal(table=None, overrides=(), origin="some.toml"):
    with pytest.raises(InputError) as caught:
        recipe.resolve(table or {}, overrides, origin)
    message = str(caught.value)
    assert "\n" not in message
    return message


def value_of(override):
    key = override.split("=")[0].strip()
    return recipe.flat(recipe.resolve({}, [override]).model_dump())[key]


def test_an_empty_recipe_is_the_default_one():
    assert recipe.resolve({}) == Recipe()


def test_the_defaults_survive_being_written_and_read(tmp_path):
    (tmp_path / "recipe.toml").write_text(recipe.to_toml(Recipe()))

    assert recipe.resolve(recipe.load(tmp_path / "recipe.toml")) == Recipe()


def test_every_value_is_written_out(tmp_path):
    (tmp_path / "recipe.toml").write_text(recipe.to_toml(Recipe()))

    assert recipe.flat(recipe.load(tmp_path / "recipe.toml")) == recipe.flat(Recipe().model_dump())


def test_a_changed_recipe_survives_being_written_and_read(tmp_path):
    changed = recipe.resolve(
        {
            "name": "other",
            "train": {"milestones": "5it,7.5ep", "learning_rate": 1},
            "thresholds": {"exclude": ['a"b\\c/*', "é"]},
            "rounds": {"rates": ['a"b\\c/*=10', "é=0"], "methods": [], "control_levels": "1..3"},
        }
    )
    (tmp_path / "recipe.toml").write_text(recipe.to_toml(changed))

    assert recipe.resolve(recipe.load(tmp_path / "recipe.toml")) == changed


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"train": {"epoch": 5}}, ["'train.epoch'", "did you mean 'train.epochs'?"]),
        ({"train": {"learning-rate": 0.1}}, ["'train.learning-rate'", "'train.learning_rate'"]),
        ({"trian": {"epochs": 5}}, ["'trian'", "did you mean 'train'?"]),
        ({"batch": 5}, ["'batch'", "'train.batch'"]),
        ({"repliactes": 3}, ["'repliactes'", "'replicates'"]),
        ({"zzzzzz": 3}, ["'zzzzzz'", "train.epochs"]),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(table, words):
    message = refusal(table)

    assert message.startswith("some.toml: unknown key")
    assert all(word in message for word in words)


@pytest.mark.parametrize(
    ("table", "key", "given"),
    [
        ({"train": {"epochs": "5"}}, "train.epochs", "'5'"),
        ({"train": {"epochs": 5.0}}, "train.epochs", "5.0"),
        ({"train": {"epochs": True}}, "train.epochs", "True"),
        ({"train": {"epochs": 0}}, "train.epochs", "0"),
        ({"train": {"batch": -64}}, "train.batch", "-64"),
        ({"data": {"flip": 1}}, "data.flip", "1"),
        ({"data": {"flip": "yes"}}, "data.flip", "'yes'"),
        ({"data": {"size": 7}}, "data.size", "7"),
        ({"data": {"validation": 1.0}}, "data.validation", "1.0"),
        ({"data": {"validation": True}}, "data.validation", "True"),
        ({"data": {"source": "mnist"}}, "data.source", "'mnist'"),
        ({"data": {"source": "tfds:"}}, "data.source", "'tfds:'"),
        ({"data": {"source": "folder"}}, "data.source", "folder:DIR"),
        ({"data": {"source": "digits:8"}}, "data.source", "'digits:8'"),
        ({"data": {"classes": -1}}, "data.classes", "-1"),
        ({"data": {"channels": 2}}, "data.channels", "2"),
        ({"data": {"channels": "1"}}, "data.channels", "'1'"),
        ({"data": {"feed": "disk"}}, "data.feed", "'disk'"),
        ({"data": {"budget": -1.0}}, "data.budget", "-1.0"),
        ({"data": {"budget": float("inf")}}, "data.budget", "inf"),
        ({"data": {"shuffle": 0}}, "data.shuffle", "0"),
        ({"data": {"crop": -1}}, "data.crop", "-1"),
        ({"data": {"cutout": -1}}, "data.cutout", "-1"),
        ({"data": {"crop": 0, "resized_crop": 1.0}}, "data.resized_crop", "1.0"),
        ({"data": {"crop": 2, "resized_crop": 0.5}}, "data", "set one to 0"),
        ({"data": {"resized_crop": 0.5}}, "data", "crop and resized_crop exclude each other"),
        ({"data": {"path": 5}}, "data.path", "5"),
        ({"train": {"learning_rate": float("nan")}}, "train.learning_rate", "nan"),
        ({"train": {"learning_rate": float("inf")}}, "train.learning_rate", "inf"),
        ({"train": {"learning_rate": -0.1}}, "train.learning_rate", "-0.1"),
        ({"train": {"weight_decay": float("nan")}}, "train.weight_decay", "nan"),
        ({"train": {"learning_rate": "0.1"}}, "train.learning_rate", "'0.1'"),
        ({"train": {"milestones": [0.5, 0.75]}}, "train.milestones", "[0.5, 0.75]"),
        ({"train": {"milestones": "10"}}, "train.milestones", "'10'"),
        ({"train": {"milestones": "10ep,15epochs"}}, "train.milestones", "'15epochs'"),
        ({"train": {"warmup": 3}}, "train.warmup", "3"),
        ({"train": {"precision": "float16"}}, "train.precision", "'float16'"),
        ({"train": {"xla": True}}, "train.xla", "True"),
        ({"train": {"ema": 1.0}}, "train.ema", "1.0"),
        ({"train": {"label_smoothing": -0.1}}, "train.label_smoothing", "-0.1"),
        ({"train": {"clip_norm": -1.0}}, "train.clip_norm", "-1.0"),
        ({"train": {"checkpoint_share": 1.1}}, "train.checkpoint_share", "1.1"),
        ({"train": {"checkpoint_steps": -1}}, "train.checkpoint_steps", "-1"),
        ({"train": {"optimizer": "sdg"}}, "train.optimizer", "'sdg'"),
        ({"train": 5}, "train", "5"),
        ({"name": 5}, "name", "5"),
        ({"name": "../elsewhere"}, "name", "'../elsewhere'"),
        ({"name": ""}, "name", "''"),
        ({"thresholds": {"quantiles": 90}}, "thresholds.quantiles", "90"),
        ({"thresholds": {"quantiles": "90,80"}}, "thresholds.quantiles", "'90,80'"),
        ({"thresholds": {"exclude": "predictions/*"}}, "thresholds.exclude", "'predictions/*'"),
        ({"retrain": {"rewind": "1epoch"}}, "retrain.rewind", "'1epoch'"),
        ({"retrain": {"controls": ["reinit", "none"]}}, "retrain.controls.1", "'none'"),
        ({"seed": -1}, "seed", "-1"),
        ({"pruning": "rounds"}, "pruning", "'rounds'"),
        ({"pruning": ["iterative"]}, "pruning.0", "'iterative'"),
        ({"train": {"steps": -1}}, "train.steps", "-1"),
        ({"train": {"steps": "1ep"}}, "train.steps", "'1ep'"),
        ({"train": {"evaluate": "1"}}, "train.evaluate", "'1'"),
        ({"train": {"evaluate": "1ep,2ep"}}, "train.evaluate", "'1ep,2ep'"),
        ({"train": {"evaluate": 5}}, "train.evaluate", "5"),
        ({"thresholds": {"collapse": 1.5}}, "thresholds.collapse", "1.5"),
        ({"rounds": {"levels": 0}}, "rounds.levels", "0"),
        ({"rounds": {"levels": 101}}, "rounds.levels", "101"),
        ({"rounds": {"rate": 0.0}}, "rounds.rate", "0.0"),
        ({"rounds": {"rate": 100.0}}, "rounds.rate", "100.0"),
        ({"rounds": {"rates": ["fc*=5", "predictions/*"]}}, "rounds.rates", "'predictions/*'"),
        ({"rounds": {"rates": "fc*=5"}}, "rounds.rates", "'fc*=5'"),
        ({"rounds": {"rates": [5]}}, "rounds.rates.0", "5"),
        ({"rounds": {"methods": ["weights", "reinit"]}}, "rounds.methods.1", "'reinit'"),
        ({"rounds": {"rewind": "1epoch"}}, "rounds.rewind", "'1epoch'"),
        ({"rounds": {"finetune_rate": -0.1}}, "rounds.finetune_rate", "-0.1"),
        ({"rounds": {"controls": ["random", "none"]}}, "rounds.controls.1", "'none'"),
        ({"rounds": {"controls": ["extended"]}}, "rounds.controls.0", "'extended'"),
        ({"rounds": {"control_levels": "0..3"}}, "rounds.control_levels", "'0..3'"),
        ({"rounds": {"control_levels": 3}}, "rounds.control_levels", "3"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_its_key_and_itself(table, key, given):
    message = refusal(table)

    assert message.startswith(f"some.toml: {key}: ")
    assert given in message


def test_the_name_of_the_link_to_the_last_run_is_no_name_for_a_recipe():
    assert "latest" in refusal({"name": "latest"})


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.epochs=5", 5),
        ("train.epochs = 5", 5),
        ("train.learning_rate=0.5", 0.5),
        ("train.learning_rate=1", 1.0),
        ("train.learning_rate=1e-3", 0.001),
        ("data.flip=true", True),
        ("data.flip=false", False),
        ("train.optimizer=adam", "adam"),
        ('train.optimizer="adam"', "adam"),
        ("thresholds.quantiles=60..80:5,90", "60..80:5,90"),
        ("thresholds.quantiles=90", "90"),
        ("retrain.rewind=0", "0"),
        ("data.source=tfds:cifar10", "tfds:cifar10"),
        ("data.source=folder:/a b/c=d", "folder:/a b/c=d"),
        ("data.source=arrays:x.npz", "arrays:x.npz"),
        ("data.path=/some where", "/some where"),
        ("data.feed=stream", "stream"),
        ("data.budget=2", 2.0),
        ("data.shuffle=1000", 1000),
        ("train.milestones=10ep,15ep", "10ep,15ep"),
        ("train.milestones='500it'", "500it"),
        ("retrain.controls=['reinit']", ["reinit"]),
        ('thresholds.exclude=["predictions/*", "a=b"]', ["predictions/*", "a=b"]),
        ("seed=3", 3),
        ("delta=0", 0.0),
        ('pruning=["rounds"]', ["rounds"]),
        ("train.steps=500", 500),
        ("train.evaluate=7it", "7it"),
        ("rounds.levels=18", 18),
        ("rounds.rate=50", 50.0),
        ("rounds.rates=['predictions/*=10', 'a = 2.5']", ["predictions/*=10", "a = 2.5"]),
        ('rounds.methods=["lr", "finetune"]', ["lr", "finetune"]),
        ("rounds.control_levels=3,7,9..18:3", "3,7,9..18:3"),
        ("rounds.control_levels=", ""),
        ("rounds.finetune_rate=0.01", 0.01),
    ],
)
def test_a_value_of_every_kind_can_be_set(override, expected):
    found = value_of(override)

    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.epochs", ["KEY=VALUE"]),
        ("train.epoch=5", ["'train.epoch'", "'train.epochs'"]),
        ("train=5", ["'train'"]),
        ("=5", ["''"]),
        ("train.epochs=five", ["'five'"]),
        ("train.epochs=", ["''"]),
        ("train.epochs=5.5", ["train.epochs", "5.5"]),
        ("train.epochs=true", ["train.epochs", "True"]),
        ("train.epochs=nan", ["train.epochs", "nan"]),
        ("train.learning_rate=nan", ["train.learning_rate", "nan"]),
        ("train.learning_rate=true", ["train.learning_rate", "True"]),
        ("data.flip=1", ["data.flip", "1"]),
        ("data.flip=True", ["True"]),
        ("data.feed=disk", ["data.feed", "'disk'"]),
        ("data.cutout=-1", ["data.cutout", "-1"]),
        ("data.resized_crop=0.5", ["crop and resized_crop exclude each other", "set one to 0"]),
        ("train.milestones=0.5", ["train.milestones", "'0.5'"]),
        ("train.warmup=3", ["train.warmup", "'3'"]),
        ("thresholds.quantiles=90,80", ["thresholds.quantiles", "'90,80'"]),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_quoted(override, words):
    message = refusal(overrides=[override])

    assert all(word in message for word in words)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.learning_rate=fast", "--set 'train.learning_rate=fast': 'fast' is not a number"),
        ("train.batch=big", "--set 'train.batch=big': 'big' is not a whole number"),
        ("data.flip=yes", "--set 'data.flip=yes': 'yes' is not true or false"),
        (
            "retrain.controls=reinit",
            """--set 'retrain.controls=reinit': 'reinit' is not a list: write it as in --set 'KEY=["one", "two"]'""",
        ),
        ("train.batch=0", "--set: train.batch: Input should be greater than 0, not 0"),
        ("data.resized_crop=0.5", "--set: data: crop and resized_crop exclude each other: set one to 0"),
    ],
)
def test_a_setting_is_blamed_and_not_the_file_it_was_set_over(override, message):
    assert refusal({"train": {"epochs": 7}}, overrides=[override]) == message


@pytest.mark.parametrize(
    ("table", "override"), [({"train": 5}, "train.batch=32"), ({"data": {"resized_crop": 0.5}}, "data.flip=true")]
)
def test_a_file_is_blamed_that_was_wrong_before_anything_was_set(table, override):
    assert refusal(table, overrides=[override]).startswith("some.toml: ")


def test_a_later_setting_wins_over_an_earlier_one_and_over_the_file():
    resolved = recipe.resolve({"train": {"epochs": 7, "batch": 32}}, ["train.epochs=8", "train.epochs=9"])

    assert (resolved.train.epochs, resolved.train.batch) == (9, 32)


def test_setting_a_value_leaves_the_table_it_is_set_over_as_it_is():
    table = {"train": {"epochs": 7}}

    recipe.resolve(table, ["train.epochs=8", "train.batch=5"])

    assert table == {"train": {"epochs": 7}}


def test_malformed_toml_is_refused_with_its_file(tmp_path):
    (tmp_path / "bad.toml").write_text("[train\nepochs = 5\n")

    with pytest.raises(InputError, match=r"bad\.toml is not TOML"):
        recipe.load(tmp_path / "bad.toml")


def test_a_binary_file_is_refused_as_a_recipe(tmp_path):
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(InputError, match=r"bad\.toml is not TOML"):
        recipe.load(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    "content",
    [
        ".".join("a" * 3000) + " = 1",
        "[" + ".".join("a" * 3000) + "]",
        "name = " + "[" * 3000 + "]" * 3000,
        "name = " + "{a = " * 3000 + "1" + "}" * 3000,
        "seed = " + "9" * 5000,
        "seed = 0x" + "f" * 5000,
    ],
)
def test_what_is_nested_ever_deeper_or_too_large_a_number_is_refused_in_a_line(tmp_path, content):
    (tmp_path / "bad.toml").write_text(content)

    with pytest.raises(InputError, match=r"bad\.toml is not a recipe: .*(nested too deep|64 bits|4300 digits)") as refusal:
        recipe.load(tmp_path / "bad.toml")

    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "setting", ["data.mean=" + "[" * 900 + "]" * 900, "seed=0x" + "f" * 5000, "train.epochs=" + "9" * 5000]
)
def test_a_setting_is_neither_nested_ever_deeper_nor_too_large_a_number(setting):
    with pytest.raises(InputError, match="is not a "):
        recipe.resolve({}, [setting])


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no recipe .*nowhere\.toml"):
        recipe.load(tmp_path / "nowhere.toml")


def test_a_folder_is_refused_as_a_recipe(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        recipe.load(tmp_path)


def test_no_output_depends_on_how_many_outputs_there_are():
    grids = {"train.snapshots", "thresholds.quantiles", "retrain.rewind", "retrain.controls", "retrain.control_quantiles"}
    grids |= {f"rounds.{key}" for key in ("levels", "methods", "rewind", "controls", "control_levels")}
    others = {"replicates", "name", "delta", "pruning", "thresholds.collapse", "track.wandb", "track.project"}
    others |= {f"train.checkpoint_{key}" for key in ("seconds", "steps", "share")}

    for stage in get_args(recipe.Stage):
        assert not (grids | others) & recipe.depends(Recipe(), stage).keys()


def test_no_output_depends_on_where_the_records_lie_or_how_they_get_to_the_network():
    for stage in get_args(recipe.Stage):
        keys = recipe.depends(Recipe(), stage).keys()
        assert not {"data.path", "data.feed", "data.budget"} & keys
        assert {"data.shuffle", "data.crop", "data.resized_crop", "data.flip", "data.cutout", "data.classes"} <= keys


@pytest.mark.parametrize(
    ("train", "without"),
    [
        ({"schedule": "cosine"}, {"milestones", "gamma"}),
        ({"schedule": "step"}, set()),
        ({"schedule": "step", "optimizer": "adam"}, {"momentum", "nesterov"}),
        ({"schedule": "step", "momentum": 0.0}, {"nesterov"}),
        ({"schedule": "step", "weight_decay": 0.0}, {"decay", "decays"}),
        ({"schedule": "step", "steps": 500}, set()),
    ],
)
def test_no_output_depends_on_what_its_optimizer_and_schedule_do_not_use(train, without):
    keys = recipe.depends(recipe.resolve({"train": train}), "train").keys()

    used = {key.removeprefix("train.") for key in keys if key.startswith("train.")}
    sometimes = {"milestones", "gamma", "momentum", "nesterov", "decay", "decays"}
    assert sometimes - used == without


def test_images_are_cropped_one_way_or_the_other():
    assert recipe.resolve({"data": {"crop": 0, "resized_crop": 0.5}}).data.resized_crop == 0.5
    assert recipe.resolve({}, ["data.crop=0", "data.resized_crop=0.5"]).data.crop == 0


@pytest.mark.parametrize(("steps", "named"), [(0, "train.epochs"), (500, "train.steps")])
def test_the_length_of_a_training_is_its_steps_or_its_epochs(steps, named):
    keys = recipe.depends(recipe.resolve({"train": {"steps": steps}}), "train").keys()

    assert keys & {"train.epochs", "train.steps"} == {named}


def test_each_stage_depends_on_what_comes_before_it_and_on_its_own_keys():
    train, thresholds, retrain, rounds, finetune = (recipe.depends(Recipe(), stage) for stage in get_args(recipe.Stage))

    assert train.items() < thresholds.items() < retrain.items() < rounds.items() < finetune.items()
    assert {
        "seed",
        "data.source",
        "model.initializer",
        "train.learning_rate",
        "train.threads",
        "train.evaluate",
    } <= train.keys()
    assert {key for key in thresholds if key not in train} == {"thresholds.scope", "thresholds.exclude", "thresholds.layerwise"}
    assert {key for key in retrain if key not in thresholds} == {"retrain.slots", "retrain.order"}
    assert {key for key in rounds if key not in retrain} == {"rounds.rate", "rounds.rates"}
    assert {key for key in finetune if key not in rounds} == {"rounds.finetune_rate"}


def test_a_recipe_says_how_its_records_are_made():
    data = {"source": "tfds:cifar10", "size": 16, "validation": 0.1, "test": 0.3, "split_seed": 3, "classes": 5, "channels": 1}

    assert dataclasses.asdict(recipe.resolve({"data": data}).records()) == data


def test_quantiles_of_a_recipe_are_exact():
    assert recipe.resolve({"thresholds": {"quantiles": "97.5,99"}}).quantiles() == [Fraction("97.5"), Fraction(99)]


def test_the_recipe_of_the_digits_has_every_key():
    written, known = (recipe.flat(table) for table in (recipe.load(PIPELINES / "digits.toml"), recipe.Recipe().model_dump()))

    assert set(written) == set(known)


def test_every_recipe_in_pipelines_resolves_and_plans():
    for path in sorted(PIPELINES.glob("*.toml")):
        resolved = recipe.resolve(recipe.load(path), origin=str(path))
        plan.check_points(resolved)
        assert plan.dry_run(resolved, None)
