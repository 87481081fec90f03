"""What the scripts in benchmarks/ compare and find, beyond what test_bench.py has of every measurement."""

import importlib
import itertools
import json
import sys

import numpy as np
import pytest
from helpers import ROOT

from data_prep import records
from data_prep.prepare import TextSettings
from lottery.base.errors import Failed
from lottery.bench.process import Process
from lottery.experiment.reading import load, resolve
from lottery.results import grouping

LENET = ["--set=model.name=lenet_300_100", "--set=data.size=8", "--set=train.batch=64", "--set=train.learning_rate=0.05"]
TEXTS = TextSettings("docstrings", document=8, candidate=6, candidates=3, vocabulary=300)


@pytest.fixture
def script(benchmarks):
    """A function that returns a script as a module."""
    return importlib.import_module


@pytest.fixture
def race(script):
    return script("race")


@pytest.fixture
def learning(script):
    return script("learning")


def training(*accuracies, seconds=2.0):
    return [{"epoch": epoch, "accuracy": accuracy, "seconds": seconds} for epoch, accuracy in enumerate(accuracies, 1)]


def test_noise_is_as_the_settings_have_it_without_a_tokenizer(script, tmp_path, monkeypatch):
    noise = script("noise")

    monkeypatch.setitem(sys.modules, "tokenizers", None)

    manifest = noise.make_noise(tmp_path, 20, TEXTS, held=2)

    assert manifest == records.read_manifest(tmp_path)
    assert (manifest.shape, manifest.fields, manifest.made_by) == (TEXTS.shape, TEXTS.fields, {"ids": "300"})
    assert [manifest.count(split) for split in records.SPLITS] == [20, 2, 2]
    examples, labels = records.read_split(tmp_path, manifest, "train")
    document, texts, rouge = records.unpack(examples, manifest.fields).values()
    for tokens in (document, texts):
        assert tokens.min() >= 4
        assert 250 < tokens.max() < 300
    assert 0 <= rouge.min() < rouge.max() <= 1
    assert labels.tolist() == rouge[:, 1:].mean(axis=2).argmax(axis=1).tolist()


def test_a_tutorials_batch_is_what_the_records_hold(tensorflow, script, tmp_path):
    from lottery.engine.decoding import Decoder

    noise, tfdata = script("noise"), script("tfdata")
    recipe = resolve(load(ROOT / "pipelines/simcls-tiny.toml"), ["texts.document=8", "texts.candidate=6", "texts.candidates=3"])
    manifest = noise.make_noise(tmp_path, 20, recipe.records())
    examples, labels = records.read_split(tmp_path, manifest, "train")
    tfdata.write(tmp_path / "examples", recipe.records(), 20)

    (batch,) = tfdata.one_by_one(tmp_path / "examples", tfdata.parser(recipe), 16, 2)

    constant = tensorflow.constant
    expected = Decoder(manifest, recipe.data).batch(constant(examples[:16]), constant(labels[:16]))
    assert batch.keys() == expected.keys()
    for name, values in batch.items():
        np.testing.assert_array_equal(values, expected[name])
        assert name == "label" or values.dtype == expected[name].dtype


def test_a_rung_that_fails_or_is_slower_is_not_stood_on(typed, script, monkeypatch):
    ladder, calls = script("ladder"), itertools.count()

    def time_rung(recipe, **how):
        if next(calls) % 2:
            raise Failed("ResourceExhausted: out of memory")
        return [recipe.train.batch / 1000] * 3, 0.5  # 1,000 images/s each

    monkeypatch.setattr(Process, "call", lambda self, function, **arguments: time_rung(**arguments))

    code, out, said = typed("ladder.py", *LENET, "--batch", "16", "--json")

    assert code == 1
    assert said.count(": ResourceExhausted: out of memory\n") == 4
    rows = json.loads(out)["rows"]
    assert [row["name"] for row in rows] == [
        *(ladder.BASE, "+ larger batch", "+ parsed by batches, in parallel, ahead", "+ many steps a call")
    ]
    assert [row["kept"] for row in rows] == [True, False, False, False]
    assert [(row["precision"], row["batch"], row["feed"]) for row in rows] == [
        *(("float32", 16, "scaled"), ("float32", 64, "scaled"), ("float32", 16, "together"), ("float32", 16, "many"))
    ]


def test_a_batch_that_is_never_filled_is_one_line_and_the_others_go_on(typed, monkeypatch):
    epochs = [{"seconds": 1.0, "images": 1120, "accuracy": 50.0}] * 2
    monkeypatch.setattr(Process, "call", lambda self, function, **arguments: [epochs])
    sizes = ["--devices", "2", "--batch", "40", "--batch", "600"]

    code, out, said = typed("scaling.py", "--set=data.size=8", *sizes, "--repeats", "1", "--json")

    assert code == 1
    assert [(row["devices"], row["each"]) for row in json.loads(out)["rows"]] == [(1, 40), (2, 40), (1, 600)]
    refused = "a batch of 1,200 is more than the 1,151 training images: take a smaller one"
    assert f"failed: 2 devices, batch 600 each: {refused}\n" in said


def test_a_target_is_reached_at_the_end_of_the_first_epoch_that_has_it(learning):
    never = training(50, 93.99)

    assert learning.reached([training(50, 94, 93), never], 94) == {"reached": 1, "epochs": 2, "seconds": 4.0}
    assert learning.reached([never, []], 94) == {"reached": 0, "epochs": None, "seconds": None}


def test_ends_are_those_of_the_trainings_that_did_not_diverge(learning):
    ends = learning.ends([training(50, 94, 92), training(60, 80, 90), training(10)], 3)

    assert ends == {"accuracy": 91, "low": 90, "high": 92, "diverged": 1}


def test_each_technique_is_left_out_where_the_network_knows_it(race):
    recipe = resolve(load(race.RECIPE))

    changes = set(race.ablations(recipe))

    left_out = {"data.crop=0", "data.flip=false", "model.whitening=false", "train.ema=0.0", "train.label_smoothing=0.0"}
    assert left_out < changes
    assert {"train.batch=256", "train.batch=1024", "model.activation=relu", "train.schedule=cosine"} < changes
    assert not {"data.cutout=0", "model.activation=gelu", "train.schedule=linear"} & changes
    assert all(race.changed(recipe, change) != recipe for change in changes)
    assert not any(change.startswith("model.") for change in race.ablations(resolve({"model": {"name": "lenet_300_100"}})))
    assert not any(change.startswith("data.") for change in race.ablations(resolve(load(ROOT / "pipelines/simcls-tiny.toml"))))


def test_the_simulated_headline_is_that_of_reports(script):
    simulation = script("verdict_power")
    sides = np.random.default_rng(0).integers(-1, 2, (300, 5))

    class Ticket:
        def __init__(self, place, side):
            self.place, self.verdict = place, simulation.RULE.verdict(side)

    reported = [grouping.sparsest_matching([Ticket(*one) for one in enumerate(series)]) for series in sides]

    assert simulation.headlines(sides).tolist() == [-1 if one is None else one.place for one in reported]
