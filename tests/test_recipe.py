"""Recipes: read strictly, refused in one line, written out whole, explained key by key."""

import dataclasses
from pathlib import Path

import pytest
from helpers import imp_here, refused

from data_prep.errors import InputError
from lottery.experiment import plan, reading
from lottery.experiment.dry_run import dry_run
from lottery.experiment.recipe import Recipe, decisive

PIPELINES = Path(__file__).parents[1] / "pipelines"


def refusal(table=None, overrides=(), origin="some.toml"):
    with pytest.raises(InputError) as caught:
        reading.resolve(table or {}, overrides, origin)
    message = str(caught.value)
    assert "\n" not in message
    return message


def value_of(override):
    key = override.split("=")[0].strip()
    return reading.flat(reading.resolve({}, [override]).model_dump())[key]


def test_an_empty_recipe_is_the_default_one():
    assert reading.resolve({}) == Recipe()


def test_the_defaults_survive_being_written_and_read(tmp_path):
    (tmp_path / "recipe.toml").write_text(reading.to_toml(Recipe()))

    assert reading.resolve(reading.load(tmp_path / "recipe.toml")) == Recipe()


def test_every_value_is_written_out(tmp_path):
    (tmp_path / "recipe.toml").write_text(reading.to_toml(Recipe()))

    assert reading.flat(reading.load(tmp_path / "recipe.toml")) == reading.flat(Recipe().model_dump())


def test_a_changed_recipe_survives_being_written_and_read(tmp_path):
    changed = reading.resolve(
        {
            "name": "other",
            "train": {"milestones": "5it,7.5ep", "learning_rate": 1},
            "pruning": {"exclude": ['a"b\\c/*', "é"]},
            "families": {
                "lr-1": {"rounds": 3, "rates": ['a"b\\c/*=10', "é=0"], "method": "lr", "controls_at": "1..3"},
                "0": {"quantiles": "90"},
            },
        }
    )
    (tmp_path / "recipe.toml").write_text(reading.to_toml(changed))

    assert reading.resolve(reading.load(tmp_path / "recipe.toml")) == changed


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
        ({"families": {"a": {"quantiles": 90}}}, "families.a.quantiles", "90"),
        ({"families": {"a": {"quantiles": "90,80"}}}, "families.a.quantiles", "'90,80'"),
        ({"families": {"a": {}}}, "families.a", "give either quantiles (one shot) or rounds"),
        ({"families": {"a": {"quantiles": "90", "rounds": 3}}}, "families.a", "give either quantiles (one shot) or rounds"),
        ({"families": {"a": {"rounds": 3, "scored_at": "1ep"}}}, "families.a", "leave scored_at out"),
        ({"families": {"a": {"quantiles": "90", "scored_at": "late"}}}, "families.a.scored_at", "'late'"),
        ({"families": {"a": {"quantiles": "90", "allocation": "uniform"}}}, "families.a.allocation", "'uniform'"),
        (
            {"families": {"a": {"quantiles": "90", "criterion": "magnitud"}}},
            "families.a.criterion",
            "did you mean 'magnitude'?",
        ),
        ({"families": {"a": {"quantiles": "90", "criterion": "my:"}}}, "families.a.criterion", "package.module:function"),
        ({"families": {"a": {"quantiles": "90", "method": "rewind"}}}, "families.a.method", "'rewind'"),
        ({"families": {"a": {"quantiles": "90", "rewind": "1epoch"}}}, "families.a.rewind", "'1epoch'"),
        ({"families": {"a": {"quantiles": "90", "finetune_rate": -0.1}}}, "families.a.finetune_rate", "-0.1"),
        ({"families": {"a": {"quantiles": "90", "controls": ["reinit", "none"]}}}, "families.a.controls.1", "'none'"),
        ({"families": {"a": {"quantiles": "90", "controls": ["renit"]}}}, "families.a.controls.0", "did you mean 'reinit'?"),
        ({"families": {"a": {"quantiles": "90", "controls": ["extended"]}}}, "families.a.controls.0", "'extended'"),
        ({"families": {"a": {"quantiles": "90", "controls": ["my:ticket"]}}}, "families.a.controls.0", "cannot be called"),
        ({"families": {"a": {"quantiles": "90", "controls": ["my:reinit"]}}}, "families.a.controls.0", "cannot be called"),
        (
            {"families": {"a": {"quantiles": "90", "controls": ["a:one", "b:one"]}}},
            "families.a.controls",
            "a:one and b:one are called alike",
        ),
        ({"families": {"a": {"quantiles": "90", "controls_at": "0..101"}}}, "families.a", "'0..101'"),
        ({"families": {"a": {"rounds": 101}}}, "families.a.rounds", "101"),
        ({"families": {"a": {"rounds": 3, "rate": 0.0}}}, "families.a.rate", "0.0"),
        ({"families": {"a": {"rounds": 3, "rate": 100.0}}}, "families.a.rate", "100.0"),
        ({"families": {"a": {"rounds": 3, "rates": ["fc*=5", "predictions/*"]}}}, "families.a.rates", "'predictions/*'"),
        ({"families": {"a": {"rounds": 3, "rates": "fc*=5"}}}, "families.a.rates", "'fc*=5'"),
        ({"families": {"a": {"rounds": 3, "rates": [5]}}}, "families.a.rates.0", "5"),
        ({"families": {"a": {"rounds": 3, "controls_at": "0..3"}}}, "families.a", "'0..3'"),
        ({"families": {"a": {"rounds": 3, "controls_at": 3}}}, "families.a.controls_at", "3"),
        ({"families": {"train": {"rounds": 3}}}, "families.train", "'train' cannot name a family"),
        ({"families": {"replicate-2": {"rounds": 3}}}, "families.replicate-2", "'replicate-2' cannot name a family"),
        ({"families": {"é": {"rounds": 3}}}, "families.é", "'é' cannot name a family"),
        ({"families": {"a/b": {"rounds": 3}}}, "families.a/b", "'a/b' cannot name a family"),
        ({"families": {"a": 3}}, "families.a", "3"),
        ({"families": "a"}, "families", "'a'"),
        ({"pruning": "rounds"}, "pruning", "'rounds'"),
        ({"pruning": {"exclude": "predictions/*"}}, "pruning.exclude", "'predictions/*'"),
        ({"pruning": {"scope": "dense"}}, "pruning.scope", "'dense'"),
        ({"pruning": {"collapse": 1.5}}, "pruning.collapse", "1.5"),
        ({"retrain": {"order": "own"}}, "retrain.order", "'own'"),
        ({"seed": -1}, "seed", "-1"),
        ({"train": {"steps": -1}}, "train.steps", "-1"),
        ({"train": {"steps": "1ep"}}, "train.steps", "'1ep'"),
        ({"train": {"evaluate": "1"}}, "train.evaluate", "'1'"),
        ({"train": {"evaluate": "1ep,2ep"}}, "train.evaluate", "'1ep,2ep'"),
        ({"train": {"evaluate": 5}}, "train.evaluate", "5"),
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
        ("families.oneshot.quantiles=60..80:5,90", "60..80:5,90"),
        ("families.oneshot.quantiles=90", "90"),
        ("families.oneshot.rewind=0", "0"),
        ("data.source=tfds:cifar10", "tfds:cifar10"),
        ("data.source=folder:/a b/c=d", "folder:/a b/c=d"),
        ("data.source=arrays:x.npz", "arrays:x.npz"),
        ("data.path=/some where", "/some where"),
        ("data.feed=stream", "stream"),
        ("data.budget=2", 2.0),
        ("data.shuffle=1000", 1000),
        ("train.milestones=10ep,15ep", "10ep,15ep"),
        ("train.milestones='500it'", "500it"),
        ("families.oneshot.controls=['reinit']", ["reinit"]),
        ('pruning.exclude=["predictions/*", "a=b"]', ["predictions/*", "a=b"]),
        ("seed=3", 3),
        ("delta=0", 0.0),
        ("train.steps=500", 500),
        ("train.evaluate=7it", "7it"),
        ("families.imp.rounds=18", 18),
        ("families.oneshot.rate=50", 50.0),
        ("families.oneshot.rates=['predictions/*=10', 'a = 2.5']", ["predictions/*=10", "a = 2.5"]),
        ("families.oneshot.method=lr", "lr"),
        ("families.oneshot.controls_at=", ""),
        ("families.oneshot.finetune_rate=0.01", 0.01),
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
        ("families.oneshot.quantiles=90,80", ["families.oneshot.quantiles", "'90,80'"]),
        ("families.oneshot.quantile=90", ["'families.oneshot.quantiles'"]),
        ("families.imp.rate=50", ["give either quantiles (one shot) or rounds"]),
        ("families.train.rounds=3", ["cannot name a family"]),
        ("families.é.rounds=3", ["unknown key"]),
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
            "families.oneshot.controls=reinit",
            """--set 'families.oneshot.controls=reinit': 'reinit' is not a list: write it as in --set 'KEY=["one", "two"]'""",
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
    resolved = reading.resolve({"train": {"epochs": 7, "batch": 32}}, ["train.epochs=8", "train.epochs=9"])

    assert (resolved.train.epochs, resolved.train.batch) == (9, 32)


def test_setting_a_value_leaves_the_table_it_is_set_over_as_it_is():
    table = {"train": {"epochs": 7}}

    reading.resolve(table, ["train.epochs=8", "train.batch=5"])

    assert table == {"train": {"epochs": 7}}


def test_malformed_toml_is_refused_with_its_file(tmp_path):
    (tmp_path / "bad.toml").write_text("[train\nepochs = 5\n")

    with pytest.raises(InputError, match=r"bad\.toml is not TOML"):
        reading.load(tmp_path / "bad.toml")


def test_a_binary_file_is_refused_as_a_recipe(tmp_path):
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(InputError, match=r"bad\.toml is not TOML"):
        reading.load(tmp_path / "bad.toml")


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
        reading.load(tmp_path / "bad.toml")

    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "setting", ["data.mean=" + "[" * 900 + "]" * 900, "seed=0x" + "f" * 5000, "train.epochs=" + "9" * 5000]
)
def test_a_setting_is_neither_nested_ever_deeper_nor_too_large_a_number(setting):
    with pytest.raises(InputError, match="is not a "):
        reading.resolve({}, [setting])


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no recipe .*nowhere\.toml"):
        reading.load(tmp_path / "nowhere.toml")


def test_a_folder_is_refused_as_a_recipe(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        reading.load(tmp_path)


OUTPUTS = ("dense", "mask", "ticket")
FAMILIES = {"shot": {"quantiles": "90"}, "chained": {"rounds": 3}, "tuned": {"rounds": 3, "method": "finetune"}}


def depends(output, family="shot", **tables):
    return decisive(reading.resolve({"families": FAMILIES, **tables}), output, "" if output == "dense" else family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_no_output_depends_on_how_many_outputs_there_are_nor_on_how_it_comes_about(output, family):
    aside = {"train.snapshots", "replicates", "name", "delta", "pruning.collapse", "track.wandb", "track.project"}
    aside |= {f"families.{family}.{key}" for key in ("quantiles", "rounds", "rewind", "controls", "controls_at")}
    aside |= {f"train.checkpoint_{key}" for key in ("seconds", "steps", "share")} | {"data.path", "data.feed", "data.budget"}

    keys = depends(output, family).keys()

    assert not aside & keys
    assert {"data.shuffle", "data.crop", "data.resized_crop", "data.flip", "data.cutout", "data.classes"} <= keys
    assert not any(key.startswith(("sweep.", "track.")) for key in keys)


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
    used = {key.removeprefix("train.") for key in depends("dense", train=train) if key.startswith("train.")}

    sometimes = {"milestones", "gamma", "momentum", "nesterov", "decay", "decays"}
    assert sometimes - used == without


def test_images_are_cropped_one_way_or_the_other():
    assert reading.resolve({"data": {"crop": 0, "resized_crop": 0.5}}).data.resized_crop == 0.5
    assert reading.resolve({}, ["data.crop=0", "data.resized_crop=0.5"]).data.crop == 0


@pytest.mark.parametrize(("steps", "named"), [(0, "train.epochs"), (500, "train.steps")])
def test_the_length_of_a_training_is_its_steps_or_its_epochs(steps, named):
    assert depends("dense", train={"steps": steps}).keys() & {"train.epochs", "train.steps"} == {named}


@pytest.mark.parametrize(
    ("family", "of_masks", "of_tickets"),
    [
        ("shot", {"criterion", "scored_at", "allocation"}, {"method"}),
        ("chained", {"criterion", "allocation", "rate", "rates"}, {"method"}),
        ("tuned", {"criterion", "allocation", "rate", "rates"}, {"method", "finetune_rate"}),
    ],
)
def test_each_output_depends_on_what_it_is_made_from_and_on_the_keys_of_its_own_family(family, of_masks, of_tickets):
    dense, mask, ticket = (depends(output, family) for output in OUTPUTS)

    assert dense.items() < mask.items() < ticket.items()
    assert {
        "seed",
        "data.source",
        "model.initializer",
        "train.learning_rate",
        "train.threads",
        "train.evaluate",
    } <= dense.keys()
    own = {"pruning.scope", "pruning.exclude", *(f"families.{family}.{key}" for key in of_masks)}
    assert mask.keys() - dense.keys() == own
    own = {"retrain.optimizer_state", "retrain.order", *(f"families.{family}.{key}" for key in of_tickets)}
    assert ticket.keys() - mask.keys() == own


def test_a_recipe_says_how_its_records_are_made():
    data = {"source": "tfds:cifar10", "size": 16, "validation": 0.1, "test": 0.3, "split_seed": 3, "classes": 5, "channels": 1}

    assert dataclasses.asdict(reading.resolve({"data": data}).records()) == data


def test_a_family_is_added_beside_those_of_the_file_or_else_beside_the_default_one():
    added = ["families.imp.rounds=5", "families.imp.rate=50"]

    assert {name: one.labels[-1] for name, one in reading.resolve({}, added).families.items()} == {
        "oneshot": "q95",
        "imp": "round-05",
    }
    assert reading.resolve({"families": {"a": {"quantiles": "97.5"}}}, added).families.keys() == {"a", "imp"}
    assert reading.resolve({"families": {"a": {"quantiles": "90"}}}, ["families.a.quantiles=97.5"]).families["a"].labels == [
        "q97.5"
    ]


def test_commands_about_one_way_to_prune_add_a_family_where_there_is_none():
    shot, rounds = (reading.resolve({"families": {"a": grid}}) for grid in ({"quantiles": "90"}, {"rounds": 3}))

    assert (shot.with_one_shot(), rounds.with_rounds()) == (shot, rounds)
    assert [*shot.with_rounds().families] == ["a", "rounds"]
    assert [*rounds.with_one_shot().families] == ["a", "oneshot"]


def test_the_recipe_of_the_digits_is_its_head_and_then_every_key_explained_as_imp_recipe_prints_it():
    head, _, content = (PIPELINES / "digits.toml").read_text().partition("\n\n")

    assert all(line.startswith("#") for line in head.splitlines())
    assert content == reading.explained(Recipe())


@pytest.mark.parametrize("table", [{}, {"families": {"a-1": {"rounds": 3, "rates": ['"é" x=5']}, "b_2": {"quantiles": "90"}}}])
def test_an_explained_recipe_is_the_recipe(tmp_path, table):
    recipe = reading.resolve({"name": "tété", "pruning": {"exclude": ["x" * 60, "😀" + "y" * 60]}, **table})
    (tmp_path / "own.toml").write_text(reading.explained(recipe))

    assert reading.resolve(reading.load(tmp_path / "own.toml")) == recipe
    assert all(len(line) <= 128 for line in reading.explained(recipe).splitlines() if not line.startswith("    "))


def test_every_key_says_what_it_means():
    keys = [line.strip() for line in reading.explained(Recipe()).splitlines() if " = " in line]

    lists = [line for line in keys if line.endswith("[") or line == 'controls = ["reinit", "shuffle"]']
    assert [line for line in keys if "# " not in line and line not in lists] == []


def test_a_recipe_is_printed_with_what_each_key_means(tmp_path):
    printed = imp_here("recipe", "--set", "train.epochs=7", cwd=tmp_path).stdout

    assert printed == reading.explained(reading.resolve({}, ["train.epochs=7"]))
    refused(imp_here("recipe", "--set", "train.epoch=7", cwd=tmp_path, check=False), "did you mean 'train.epochs'?")
    assert not list(tmp_path.iterdir())


def test_every_recipe_in_pipelines_resolves_and_plans():
    for path in sorted(PIPELINES.glob("*.toml")):
        resolved = reading.resolve(reading.load(path), origin=str(path))
        plan.check_points(resolved)
        assert dry_run(resolved, None)


@pytest.mark.parametrize("change", [lambda text: text.replace("digits", "digit", 1), lambda text: text + "# mine\n"])
def test_a_runs_own_recipe_is_sealed_and_of_one_format(tmp_path, change):
    path = tmp_path / "recipe.toml"
    path.write_text(reading.sealed(Recipe()))
    reading.check_format(path)
    assert reading.resolve(reading.load_sealed(path)) == Recipe()

    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match="is damaged or was changed by hand: change a run's values with --set"):
        reading.load_sealed(path)

    path.write_text(reading.sealed(Recipe()).replace("format 2", "format 1"))
    with pytest.raises(
        InputError, match=r"another version of imp \(this one reads format 2\): use that version, or begin another"
    ):
        reading.check_format(path)
