"""Recipes: read strictly, refused in one line, written out whole, explained key by key."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, imp_here, refused, settings
from sklearn.datasets import load_digits

from lottery.base.errors import InputError
from lottery.experiment import plan, reading
from lottery.experiment.grids import parse_points
from lottery.experiment.plan import dry_run, estimated
from lottery.experiment.recipe import Recipe

PIPELINES = Path(__file__).parents[1] / "pipelines"


def refusal(table=None, overrides=(), origin="some.toml"):
    with pytest.raises(InputError) as caught:
        reading.resolve(table or {}, overrides, origin)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_empty_recipe_is_the_default_one():
    assert reading.resolve({}) == Recipe()


def test_the_defaults_are_written_out_whole_and_survive_being_read(tmp_path):
    (tmp_path / "recipe.toml").write_text(reading.to_toml(Recipe()))
    written = reading.load(tmp_path / "recipe.toml")

    assert reading.flat(written) == reading.flat(Recipe().model_dump())
    assert reading.resolve(written) == Recipe()


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
        ({"trian": {"epochs": 5}}, ["'trian'", "did you mean 'train'?"]),
        ({"batch": 5}, ["'batch'", "'train.batch'"]),
        ({"epochs": 5}, ["'epochs'", "did you mean 'train.epochs'?"]),
        ({"train": {"lr": 1}}, ["'train.lr'", "did you mean 'train.learning_rate'?"]),
        ({"train": {"wd": 1}}, ["'train.wd'", "did you mean 'train.weight_decay'?"]),
        ({"train": {"batchsize": 1}}, ["'train.batchsize'", "did you mean 'train.batch'?"]),
        ({"zzzzzz": 3}, ["'zzzzzz'", "known are name, task, seed, ", "train"]),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(table, words):
    message = refusal(table)

    assert message.startswith("some.toml: unknown key")
    assert all(word in message for word in words)


@pytest.mark.parametrize("table", [{"pruning": ["rounds"]}, {"thresholds": {"quantiles": "50"}}, {"rounds": {"levels": 3}}])
def test_a_recipe_of_the_first_version_is_told_what_has_changed(table):
    assert refusal(table).startswith("some.toml is a recipe of imp 0.1.0: write [families.NAME]")


WRONG = {
    "name": [5, "../elsewhere", "", "latest"],
    "data.source": ["mnist", "tfds:", "digits:8"],
    "data.size": [7],
    "data.channels": [2, "1"],
    "data.flip": [1, "yes"],
    "data.budget": [-1.0, float("inf")],
    "data.path": [5],
    "train": [5],
    "train.epochs": ["5", 5.0, True, 0],
    "train.steps": [-1, "1ep"],
    "train.optimizer": ["sdg"],
    "train.learning_rate": [float("nan"), float("inf"), -0.1, "0.1"],
    "train.milestones": [[0.5, 0.75], "10"],
    "train.evaluate": ["1", "1ep,2ep", 5],
    "train.ema": [1.0],
    "pruning": ["rounds"],
    "pruning.exclude": ["predictions/*"],
    "pruning.scope": ["dense"],
    "families": ["a"],
    "families.a": [3],
    "families.a.quantiles": [90, "90,80"],
    "families.a.rounds": [101],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_value_of_the_wrong_kind_is_refused_with_its_key_and_itself(key, value):
    table = value
    for part in reversed(key.split(".")):
        table = {part: table}

    message = refusal(table)

    assert message.startswith(f"some.toml: {key}: ")
    assert repr(value) in message


SHOT, ROUNDS = {"quantiles": "90"}, {"rounds": 3}
RIGL = SHOT | {"updates": "rigl", "scored_at": "0"}
FAMILIES = [
    ({}, "", "give either quantiles (one shot) or rounds"),
    (SHOT | ROUNDS, "", "give either quantiles (one shot) or rounds"),
    (ROUNDS | {"scored_at": "1ep"}, "", "leave scored_at out"),
    (SHOT | {"scored_at": "late"}, ".scored_at", "'late'"),
    (SHOT | {"criterion": "magnitud"}, ".criterion", "did you mean 'magnitude'?"),
    (SHOT | {"method": "rewind"}, ".method", "'rewind'"),
    (SHOT | {"rewind": "1epoch"}, ".rewind", "'1epoch'"),
    (SHOT | {"controls": ["renit"]}, ".controls.0", "did you mean 'reinit'?"),
    (SHOT | {"controls": ["extended"]}, ".controls.0", "'extended'"),
    (SHOT | {"controls": ["my:reinit"]}, ".controls.0", "cannot be called"),
    (SHOT | {"controls": ["a:one", "b:one"]}, "", "a:one and b:one are called alike"),
    (SHOT | {"controls_at": "0..101"}, ".controls_at", "'0..101'"),
    (ROUNDS | {"controls_at": "0..3"}, ".controls_at", "'0..3'"),
    (ROUNDS | {"rate": 100.0}, ".rate", "100.0"),
    (ROUNDS | {"rates": ["fc*=5", "predictions/*"]}, ".rates.1", "'predictions/*'"),
    (ROUNDS | {"rates": ["fc*=100"]}, ".rates.0", "100 leaves nothing of fc*"),
    (SHOT | {"densities": ["fc*=101"]}, ".densities.0", "'fc*=101' is not a density"),
    (SHOT | {"scored_on": "ten"}, ".scored_on", "'ten' does not say how many examples"),
    (SHOT | {"budget": "3dense"}, ".budget", "'3dense'"),
    *(
        (family | {"budget": 2.0}, "", 'budget is of tickets of one shot, by method = weights, with rewind = "0"')
        for family in (ROUNDS, SHOT | {"method": "llr"}, SHOT | {"rewind": "1ep"}, SHOT | {"rewind": "0,1ep"})
    ),
    (SHOT | {"budget": 2.0, "length": 2.0}, "", "length and budget exclude each other: leave one out"),
    *(
        (family | {"length": 2.0}, "", 'length is of tickets of one shot with rewind = "0", or of method = llr or allr')
        for family in (ROUNDS, SHOT | {"method": "finetune"}, SHOT | {"rewind": "0,1ep"})
    ),
    (SHOT | {"method": "llr", "rewind": "1ep"}, "", "method = llr rewinds nothing: leave rewind out"),
    (ROUNDS | {"method": "allr", "rewind": "0,1ep"}, "", "method = allr rewinds nothing: leave rewind out"),
    (SHOT | {"particles": 3}, "", "particles are of rounds"),
    (ROUNDS | {"method": "weights", "scored_at": "0"}, "", "rounds by method = weights begin with the trained network"),
    (SHOT | {"updates": "gmp", "update_from": 0.9}, "", "update_from must be less than update_until"),
    (SHOT | {"updates": "gmp", "criterion": "snip"}, "", "updates = gmp prunes by magnitude, at each update"),
    (SHOT | {"updates": "rigl"}, "", 'updates = rigl trains from scratch: set scored_at = "0", and criterion = "random"'),
    (RIGL | {"quantiles": "0,50"}, "", "updates = rigl has nothing to grow at quantile 0"),
    (RIGL | {"updates": "set", "controls": ["invert"]}, "", "control invert is of masks that stay as they are in training"),
    (SHOT | {"controls": ["rewound"]}, "", "control rewound is of masks that change in training"),
    (SHOT | {"updates": "gmp", "controls": ["refill"]}, "", "control refill is of masks that stay as they are in training"),
    (SHOT | {"units": "channels"}, ".units", "'channels' are not units"),
    (SHOT | {"units": "2:4"}, "", "units = 2:4 prunes 50 per cent, neither more nor less"),
    (SHOT | {"units": "channel", "rates": ["conv1/*=10"]}, "", "rates are of single weights"),
    (RIGL | {"units": "channel"}, "", "a channel that is gone gets no gradient"),
    (SHOT | {"units": "4x1", "controls": ["refill"]}, "", "control refill turns masks of single weights into channels"),
    (SHOT | {"per_mac": True, "updates": "gmp"}, "", "per_mac is of masks that stay as they are in training"),
    (SHOT | {"mask": "a.npz", "target": "macs"}, "", "densities, target, per_mac, rounds and updates out"),
    (
        SHOT | {"mask": "a.npz", "units": "channel", "controls": ["invert"]},
        "",
        "control invert of a mask in a file is of single weights",
    ),
]


@pytest.mark.parametrize(
    ("table", "key", "words"),
    [
        ({"data": {"source": "folder"}}, "data.source", "folder:DIR"),
        ({"data": {"crop": 0, "resized_crop": 1.0}}, "data.resized_crop", "1.0"),
        ({"data": {"resized_crop": 0.5}}, "data", "crop and resized_crop exclude each other: set one to 0"),
        ({"data": {"hardest": 5}}, "data", "hardest or easiest, one of them, goes with"),
        ({"data": {"scores": "a.csv"}}, "data", "hardest or easiest, one of them, goes with"),
        ({"data": {"scores": "a.csv", "hardest": 5, "easiest": 5}}, "data", "hardest or easiest, one of them, goes with"),
        ({"train": {"milestones": "10ep,15epochs"}}, "train.milestones", "'15epochs'"),
        *(
            ({"families": {name: {"rounds": 3}}}, f"families.{name}", f"{name!r} cannot name a family")
            for name in ("train", "replicate-2", "é", "a/b")
        ),
        *(({"families": {"a": family}}, f"families.a{key}", words) for family, key, words in FAMILIES),
    ],
)
def test_what_cannot_be_is_refused_with_its_key_and_why(table, key, words):
    message = refusal(table)

    assert message.startswith(f"some.toml: {key}: ")
    assert words in message


@pytest.mark.parametrize(
    "family",
    [
        SHOT | {"budget": 0.5, "rewind": "0"},
        SHOT | {"budget": 2.0, "scored_at": "1ep", "updates": "gmp"},
        SHOT | {"length": 0.1, "method": "allr"},
        ROUNDS | {"length": 0.1, "method": "llr"},
        *(ROUNDS | {"scored_at": "1ep", "method": method} for method in ("lr", "finetune", "llr", "allr")),
    ],
)
def test_a_family_may_have_a_length_or_a_budget_or_begin_its_rounds_early(tmp_path, family):
    recipe = reading.resolve({"families": {"a": family}})
    (tmp_path / "own.toml").write_text(reading.to_toml(recipe))

    assert family.items() <= recipe.families["a"].model_dump().items()
    assert reading.resolve(reading.load(tmp_path / "own.toml")) == recipe


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.epochs = 5", 5),
        ("train.learning_rate=1", 1.0),
        ("data.flip=true", True),
        ("train.optimizer=adam", "adam"),
        ("train.milestones='500it'", "500it"),
        ("families.oneshot.quantiles=60..80:5,90", "60..80:5,90"),
        ("families.oneshot.quantiles=90", "90"),
        ("families.oneshot.controls_at=", ""),
        ("data.source=folder:/a b/c=d", "folder:/a b/c=d"),
        ('pruning.exclude=["predictions/*", "a=b"]', ["predictions/*", "a=b"]),
    ],
)
def test_a_value_of_every_kind_can_be_set(override, expected):
    found = reading.flat(reading.resolve({}, [override]).model_dump())[override.split("=")[0].strip()]

    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.epochs", ["KEY=VALUE"]),
        ("train.epoch=5", ["'train.epoch'", "'train.epochs'"]),
        ("train=5", ["'train'"]),
        ("=5", ["''"]),
        ("train.epochs=5.5", ["train.epochs", "5.5"]),
        ("train.learning_rate=nan", ["train.learning_rate", "nan"]),
        ("data.flip=1", ["data.flip", "1"]),
        ("families.oneshot.quantile=90", ["'families.oneshot.quantiles'"]),
        ("families.imp.rate=50", ["give either quantiles (one shot) or rounds"]),
        ("families.train.rounds=3", ["cannot name a family"]),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_quoted(override, words):
    message = refusal(overrides=[override])

    assert all(word in message for word in words)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.learning_rate=fast", "--set 'train.learning_rate=fast': 'fast' is not a number"),
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


def test_a_later_setting_wins_over_an_earlier_one_and_over_the_file_which_stays_as_it_is():
    table = {"train": {"epochs": 7, "batch": 32}}

    resolved = reading.resolve(table, ["train.epochs=8", "train.epochs=9"])

    assert (resolved.train.epochs, resolved.train.batch) == (9, 32)
    assert table == {"train": {"epochs": 7, "batch": 32}}


@pytest.mark.parametrize("content", [b"[train\nepochs = 5\n", b"\xff\xfe\x00"])
def test_what_is_not_toml_is_refused_with_its_file(tmp_path, content):
    (tmp_path / "bad.toml").write_bytes(content)

    with pytest.raises(InputError, match=r"bad\.toml is not TOML"):
        reading.load(tmp_path / "bad.toml")


def test_a_missing_recipe_is_named_and_a_folder_refused(tmp_path):
    with pytest.raises(InputError, match=r"no recipe .*nowhere\.toml"):
        reading.load(tmp_path / "nowhere.toml")
    with pytest.raises(InputError, match="is a folder"):
        reading.load(tmp_path)


@pytest.mark.usefixtures("here")
def test_our_recipes_are_found_by_name_where_there_is_no_such_file():
    Path("digits").mkdir()
    assert reading.load(Path("digits")) == reading.load(ROOT / "pipelines/digits.toml")
    Path("smoke").write_text("seed = 7")
    assert reading.load(Path("smoke")) == {"seed": 7}

    with pytest.raises(InputError, match=r"no recipe pipelines/digits\.toml: did you mean digits\?"):
        reading.load(Path("pipelines/digits.toml"))
    with pytest.raises(
        InputError, match=r"no recipe nothing: name a file, or one of .*, digits, .*, why-resnet20, .*, zoo-mobilenet$"
    ):
        reading.load(Path("nothing"))


def test_a_recipe_says_how_its_records_are_made():
    data = {"source": "tfds:cifar10", "size": 16, "validation": 0.1, "test": 0.3, "split_seed": 3, "classes": 5, "channels": 1}
    data |= {"examples": 700, "label_noise": 0.2, "hardest": 0.5, "easiest": 0.0, "scores": "/some/where/el2n-1ep.csv"}

    assert dataclasses.asdict(reading.resolve({"data": data}).records()) == data


def test_a_family_is_added_beside_those_of_the_file_or_else_beside_the_default_one():
    added = ["families.imp.rounds=5", "families.imp.rate=50"]

    assert {name: one.grid[-1].label for name, one in reading.resolve({}, added).families.items()} == {
        "oneshot": "q95",
        "imp": "round-05",
    }
    assert reading.resolve({"families": {"a": {"quantiles": "97.5"}}}, added).families.keys() == {"a", "imp"}
    changed = reading.resolve({"families": {"a": {"quantiles": "90"}}}, ["families.a.quantiles=97.5"])
    assert str(changed.families["a"].quantiles) == "97.5"


def test_commands_about_one_way_to_prune_add_a_family_where_there_is_none():
    shot, rounds = (reading.resolve({"families": {"a": grid}}) for grid in ({"quantiles": "90"}, {"rounds": 3}))

    assert (shot.with_one_shot(), rounds.with_rounds()) == (shot, rounds)
    assert [*shot.with_rounds().families] == ["a", "rounds"]
    assert [*rounds.with_one_shot().families] == ["a", "oneshot"]


@pytest.mark.parametrize("snapshots", ["0,10it,2ep", "0it , 10it,2.0ep,2ep"])
def test_a_point_is_the_same_however_it_is_written(snapshots):
    rounds = reading.resolve({"families": {"a": {"rounds": 3}}, "train": {"snapshots": snapshots}})

    assert rounds.train.snapshots == parse_points("0,10it,2ep")
    assert rounds.with_one_shot().families["oneshot"].rewind == parse_points("0,2ep")  # all of its points, which are saved


def test_the_recipe_of_the_digits_is_its_head_and_then_every_key_explained_as_imp_recipe_prints_it():
    path = PIPELINES / "digits.toml"
    head, _, content = path.read_text().partition("\n\n")

    assert all(line.startswith("#") for line in head.splitlines())
    assert content == reading.explained(reading.resolve(reading.load(path)))


def test_the_margin_of_the_digits_is_a_whole_number_of_their_validation_images():
    recipe = reading.resolve(reading.load(PIPELINES / "digits.toml"))
    classes = np.bincount(load_digits().target)
    trained_on = classes - [round(recipe.data.test * count) for count in classes]
    images = sum(round(recipe.data.validation * count) for count in trained_on)

    assert (images, round(recipe.delta * images, 9)) == (600, 12)


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
    smoke, values = PIPELINES / "smoke.toml", ["train.epochs=7", "families.oneshot.quantiles=60"]

    printed = imp_here("recipe", str(smoke), *settings(*values), cwd=tmp_path).stdout

    assert printed == reading.explained(reading.resolve(reading.load(smoke), values))
    refused(imp_here("recipe", "--set", "train.epoch=7", cwd=tmp_path, check=False), "did you mean 'train.epochs'?")
    assert not list(tmp_path.iterdir())


def test_every_recipe_in_pipelines_resolves_and_plans():
    for path in sorted(PIPELINES.glob("*.toml")):
        resolved = reading.resolve(reading.load(path), origin=str(path))
        plan.check_points(resolved)
        assert dry_run(estimated(resolved, None))


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
