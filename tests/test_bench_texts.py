"""Measurements with a recipe of texts: on noise, on the recipe's own records where something is learnt, or one clear line."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from data_prep import records
from data_prep.prepare import TextSettings
from lottery.bench import race
from lottery.experiment.reading import load, resolve

tf = pytest.importorskip("tensorflow")
noise = pytest.importorskip("lottery.bench.noise")
tfdata = pytest.importorskip("lottery.bench.tfdata")
pytestmark = pytest.mark.usefixtures("tensorflow")

SETTINGS = TextSettings("docstrings", document=8, candidate=6, candidates=3, vocabulary=300)
RECIPE = Path(__file__).parents[1] / "pipelines/simcls-tiny.toml"
TINY = [
    *("--recipe", str(RECIPE), "--set=texts.document=8", "--set=texts.candidate=6", "--set=texts.candidates=3"),
    *("--set=texts.vocabulary=300", "--set=train.batch=16"),
]
SIZE = "8 + 4x6 tokens"


@pytest.fixture
def typed(typed, in_process):
    """A function that runs `imp bench` in this process, small: its exit code, what it printed, and what it said."""
    return lambda *arguments: typed(*arguments, *TINY, "--quick")


@pytest.fixture
def quick(typed):
    """A function that measures: what is found, which says nothing of images."""

    def quick(*arguments):
        code, out, _ = typed(*arguments, "--json")
        found = json.loads(out)
        assert code == 0
        assert "image" not in " ".join([found["title"], *found["columns"].values(), *found["notes"]])
        return found

    return quick


@pytest.fixture
def prepared(here):
    """A set of noise in place of the docstrings, where the recipe looks for it."""
    (here / "data").mkdir()
    return noise.make_noise(here / "data/docstrings-8-3x6", 40, SETTINGS, held=6)


def test_noise_is_as_the_settings_have_it_without_a_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)

    manifest = noise.make_noise(tmp_path, 20, SETTINGS, held=2)

    assert manifest == records.read_manifest(tmp_path)
    assert (manifest.shape, manifest.fields, manifest.made_by) == (SETTINGS.shape, SETTINGS.fields, {"ids": "300"})
    assert [manifest.count(split) for split in records.SPLITS] == [20, 2, 2]
    examples, labels = records.read_split(tmp_path, manifest, "train")
    document, texts, rouge = records.unpack(examples, manifest.fields).values()
    for tokens in (document, texts):
        assert tokens.min() >= 4
        assert 250 < tokens.max() < 300
    assert 0 <= rouge.min() < rouge.max() <= 1
    assert labels.tolist() == rouge[:, 1:].mean(axis=2).argmax(axis=1).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_tutorials_batch_is_what_the_records_hold(tmp_path, workers):
    from lottery.engine.decoding import Decoder

    recipe = resolve(load(RECIPE), [argument.removeprefix("--set=") for argument in TINY[2:]])
    manifest = noise.make_noise(tmp_path, 20, recipe.records())
    examples, labels = records.read_split(tmp_path, manifest, "train")
    tfdata.write(tmp_path / "examples", recipe.records(), 20)

    (batch,) = tfdata.one_by_one(tmp_path / "examples", tfdata.parser(recipe), 16, workers)

    expected = Decoder(manifest, recipe.data).batch(tf.constant(examples[:16]), tf.constant(labels[:16]))
    assert batch.keys() == expected.keys()
    for name, values in batch.items():
        np.testing.assert_array_equal(values, expected[name])
        assert name == "label" or values.dtype == expected[name].dtype


def test_loader(quick):
    found = quick("loader", "--images", "64")

    assert found["title"] == f"An epoch of 64 examples of {SIZE}: transformer_tiny, batch 16"
    assert [row["name"] for row in found["rows"]] == ["tf.data, 0 workers", "tf.data, 2 workers", "stream", "memory"]
    assert all(0 <= row["load_s"] < row["epoch_s"] for row in found["rows"])


def test_precision(quick):
    found = quick("precision")

    assert found["title"] == f"Precision: transformer_tiny, {SIZE}"
    assert [row["name"] for row in found["rows"]] == ["float32", "mixed_bfloat16", "mixed_float16"]
    assert all(row["update_ms"] > 0 and row["step_ms"] > 0 for row in found["rows"])
    assert found["columns"]["images_per_s"] == "examples/s"


def test_remat(quick):
    found = quick("remat", "--largest", "32")

    assert found["title"] == f"Rematerialisation: transformer_tiny, {SIZE}"
    assert [row["batch"] for row in found["rows"]] == [16, 32, 16, 32]


def test_other_measurements_of_a_step(quick):
    assert f"transformer_tiny, {SIZE}" in quick("profile")["title"]
    assert len(quick("updates")["rows"]) == 4
    (row,) = quick("thresholds", "--quantiles", "50,80")["rows"]
    assert (row["name"], row["masks"]) == ("transformer_tiny", 2)


def test_a_transformer_trains_in_no_bundle(typed):
    code, out, said = typed("bundle", "--tickets", "1,2", "--json")

    assert code == 1
    assert [row["title"] for row in json.loads(out)["rows"]] == ["one at a time"]
    assert "failed: bundles of 2: transformer_tiny cannot train in a bundle: its layer embedding_tokens has no" in said


EPOCHS = ["--set=train.steps=0", "--set=train.epochs=2", "--set=train.warmup=0"]


def test_changes_are_raced_by_the_metric_that_decides(quick, prepared):
    found = quick("race", *EPOCHS, "--vary", "train.remat=true")

    assert found["title"].endswith(f"transformer_tiny, docstrings at {SIZE}, by ROUGE-1")
    assert [row["name"] for row in found["rows"]] == ["nothing", "train.remat=true"]
    assert all(0 < row["accuracy"] < 100 for row in found["rows"])


def test_texts_are_not_varied():
    recipe = resolve(load(RECIPE))

    changes = race.ablations(recipe)

    assert {"train.warmup=0", "train.batch=64"} < set(changes)
    assert all(race.changed(recipe, change) != recipe for change in changes)


def test_grid_and_scaling_learn_from_records_of_texts(quick, prepared):
    folder = ["--records", "data/docstrings-8-3x6"]

    grid = quick("grid", *EPOCHS, *folder, "--batch", "16", "--rate", "0.01")
    scaling = quick("scaling", *EPOCHS, *folder, "--batch", "16", "--devices", "1")

    assert grid["title"].startswith("ROUGE-1 after 2 epochs: transformer_tiny, docstrings")
    assert any("the validation ROUGE-1" in note for note in scaling["notes"])
    for (row,) in (grid["rows"], scaling["rows"]):
        assert 0 < row["accuracy"] < 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ladder"], "`imp bench ladder` is of images, and docstrings has texts"),
        (["masks"], "`imp bench masks` is of images, and docstrings has texts"),
        (["loader", "--images", "8"], "train.batch 16 is more than the 8 examples of an epoch"),
        (["race"], "train.steps is not heeded here"),
        (["race", *EPOCHS], "no records in data/docstrings-8-3x6: run `imp prepare` first"),
    ],
)
def test_what_texts_are_not_measured_by_is_one_line(typed, arguments, words):
    code, _, said = typed(*arguments)

    assert (code, said.count("\n")) == (2, 1)
    assert words in said


def test_a_batch_that_no_texts_fill_is_refused(typed, prepared):
    code, _, said = typed("grid", *EPOCHS, "--batch", "50")

    assert code == 2
    assert "a batch of 50 is more than the 40 training examples" in said
