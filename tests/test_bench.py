"""Each measurement runs small, says what it is of, and refuses in one line what it cannot measure. No test looks at a time."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import ROOT, clean_environment, large

from lottery import cli
from lottery.base.progress import Reporter
from lottery.bench import timing
from lottery.experiment.reading import resolve

LENET = ["--set=model.name=lenet_300_100", "--set=data.size=8", "--set=train.batch=64"]
LEARNING = [*LENET, "--set=train.epochs=1", "--set=train.warmup=0", "--set=train.schedule=constant"]
FEEDS = ["tf.data, 2 workers", "stream", "memory"]
# Of each measurement, the arguments with which it is smallest, and what its rows are called.
EVERY = {
    "limits.py": ([], ["copy, 1 thread", *(f"{dtype} product, 1 thread" for dtype in ("float32", "bfloat16", "float16"))]),
    "step.py": ([*LENET[:2], "--set=train.batch=6"], ["lenet_300_100, 8x8, batch 6, float32"]),
    "precision.py": (LENET, ["float32", "mixed_bfloat16", "mixed_float16"]),
    "fanout.py": ([*LENET, "--images=128", "--pairs=2", "--ranks=1"], ["one process, 1 thread"]),
    "cluster.py": ([], [f"{kind}, {count}" for kind in ("oneshot", "rounds") for count in ("1 node", "3 nodes")]),
    "bundle.py": ([*LENET, "--tickets=1,2"], ["one at a time", "bundles of 2"]),
    "feed.py": (
        ["--images=600", "--set=data.size=8", "--set=data.crop=1", "--set=data.flip=true", "--set=train.batch=50"],
        ["tf.data, one by one, then batched", "the same, parallel and prefetched", "stream", "memory"],
    ),
    "grid.py": (
        [*LEARNING, "--batch=64", "--rate=0.05", "--rate=1e30"],
        ["batch 64, learning rate 0.05", "batch 64, learning rate 1e+30"],
    ),
    "ladder.py": (
        [*LENET, "--batch=16"],
        [
            *("baseline: float32, small batch, a call a step", "+ mixed precision", "+ larger batch"),
            *("+ uint8 to the device, scaled there", "+ parsed by batches, in parallel, ahead"),
            *("+ images resident, our loop", "+ many steps a call", "+ XLA"),
        ],
    ),
    "loader.py": (LENET, FEEDS),
    "masks.py": (
        [*LENET, "--set=train.batch=320"],
        [
            *("our loop, no mask", "our loop, mask in the compiled step"),
            *("Keras fit, no mask", "Keras fit, mask by a callback after the batch"),
        ],
    ),
    "prepare.py": (
        ["--images=12", "--workers=1"],
        ["Pillow, decoded whole", "decoding alone, at reduced scale", "imp prepare, 1 worker"],
    ),
    "profile_step.py": (LENET, ["input", "forward", "backward", "update", "mask", "other", "host"]),
    "race.py": (["--set=model.name=lenet_300_100", "--target=100"], ["seed 1, epoch 1", "seed 1, epoch 2"]),
    "scaling.py": ([*LENET, "--devices=2", "--batch=40"], ["1 device, batch 40 each", "2 devices, batch 40 each"]),
    "thresholds.py": ([*LENET, "--quantiles=60..80:10,99.5"], ["lenet_300_100"]),
    "updates.py": (LENET, ["a mask that stays", "SET", "RigL", "GMP"]),
}
# Measurements of texts: those that differ in what they read, feed, or learn from.
RECIPE = ROOT / "pipelines/simcls-tiny.toml"
TEXTS = [
    *(f"--recipe={RECIPE}", "--set=texts.document=8", "--set=texts.candidate=6", "--set=texts.candidates=3"),
    *("--set=texts.vocabulary=300", "--set=train.batch=16", "--set=train.warmup=0"),
]
OF_TEXTS = {
    "profile_step.py": ([], ["input", "forward", "backward", "update", "mask", "other", "host"]),
    "grid.py": (
        ["--set=train.steps=0", "--batch=16", "--rate=0.01", "--set=train.epochs=1"],
        ["batch 16, learning rate 0.01"],
    ),
}


@pytest.fixture
def small(typed, in_process, monkeypatch):
    """A function that runs a measurement in its smallest form: what it printed, and what it wrote."""

    def run_here(line, cwd=None, **options):
        if line[1:3] != ["-m", "lottery"]:
            return run(line, cwd=cwd, **options)
        with contextlib.chdir(cwd), contextlib.redirect_stdout(sys.stderr):
            cli.app(line[3:], standalone_mode=False)
        return subprocess.CompletedProcess(line, 0)

    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", run_here)
    monkeypatch.setattr(timing, "cores", lambda: 1)
    monkeypatch.setenv("COLUMNS", "250")

    def small(here, name, *arguments):
        code, out, said = typed(name, *arguments, "--quick", "--out", "o")
        assert code == 0, said
        assert {path.name for path in here.iterdir()} <= {"o", "data"}
        (written,) = (here / "o").glob("*.json")
        assert {path.suffix for path in written.parent.iterdir() if path.is_file()} == {".json", ".md", ".png"}
        return out, json.loads(written.read_text())

    return small


def check(out, found, names):
    """Its title, its rows with their spreads, how often it was measured, and the machine are there, in print and written."""
    assert found["title"] in " ".join(out.split())  # which is broken where the table is narrow
    assert [row.get("name") or row["title"] for row in found["rows"]] == names
    for row in found["rows"]:
        values = list(row.values())
        if row.get("low") is not None:
            low = list(row).index("low")
            assert row["low"] <= values[low - 1] <= row["high"]
    assert any(word in " ".join(found["notes"]) for word in ("median", "means over", "reached"))
    assert all(remark in out for remark in found["remarks"])
    assert f"{found['machine']['cores']} cores" in found["remarks"][-1]
    assert len(found["cells"]) == len(names)


# They take long, most of them for what they compile: CI runs them second.
SLOW = ("feed.py", "grid.py", "ladder.py", "masks.py", "race.py", "scaling.py", "updates.py")


@pytest.mark.parametrize("name", [*(name for name in EVERY if name not in SLOW), *large(*SLOW)])
def test_a_measurement_is_a_table_that_says_what_was_measured_how_often_and_where(small, here, name):
    arguments, names = EVERY[name]

    check(*small(here, name, *arguments), names)


@pytest.mark.parametrize("name", OF_TEXTS)
def test_texts_are_called_examples(small, here, name):
    import noise

    from data_prep.prepare import TextSettings

    arguments, names = OF_TEXTS[name]
    settings = TextSettings("docstrings", document=8, candidate=6, candidates=3, vocabulary=300)
    (here / "data").mkdir()
    noise.make_noise(here / "data/docstrings-8-3x6", 40, settings, held=6)

    out, found = small(here, name, *arguments, *TEXTS)

    check(out, found, names)
    assert "image" not in " ".join([found["title"], *found["columns"].values(), *found["notes"]])
    assert "8 + 4x6 tokens" in found["title"]
    assert ("ROUGE-1" in found["title"]) == (name == "grid.py")


def test_every_measurement_is_tested_and_told(benchmarks):
    scripts = {path.name for path in benchmarks.glob("*.py") if "@measurement" in path.read_text()}
    page = (ROOT / "docs/performance.md").read_text().partition("\n## ")[0]
    rows = re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \|", page, re.MULTILINE)

    assert (
        EVERY.keys() | {"inference"} == {"inference"} | scripts == {name for row in rows for name in re.findall(r"[\w.]+", row)}
    )


def test_json_is_what_is_written(typed, in_process, here):
    code, out, _ = typed("limits.py", "--quick", "--json", "--out", "o")

    written = json.loads((here / "o/limits.json").read_text())
    assert code == 0
    assert json.loads(out).items() <= written.items()
    assert {"processor", "cores", "packages"} <= written["machine"].keys()


def test_contenders_take_turns_there_and_back_after_a_warm_up(benchmarks, monkeypatch):
    import turns

    monkeypatch.setattr(turns, "RUN_SECONDS", 1e-9)
    order = []

    walls = turns.in_turn({name: lambda name=name: order.append(name) for name in "abc"}, 3, Reporter(quiet=True))

    assert "".join(order) == "aabbcc" + "abc" + "cba" + "abc"
    assert {name: len(own) for name, own in walls.items()} == {"a": 3, "b": 3, "c": 3}


def test_what_is_quick_is_done_often_enough_to_be_timed(benchmarks, monkeypatch):
    import turns

    monkeypatch.setattr(turns, "RUN_SECONDS", 0.05)
    calls = []

    assert len(turns.runs(lambda: calls.append(time.sleep(0.001)), 2)) == 2

    assert len(calls) > 20


def test_as_many_steps_are_taken_as_last(benchmarks):
    import turns

    taken = []

    assert turns.lasting(taken.append, 10, most=6) == 6
    assert taken == [1, 2, 4, 6]
    assert turns.lasting(lambda count: time.sleep(0.002 * count), 0.005) in (2, 4)


def test_the_peak_of_memory_is_that_of_the_time_since():
    with timing.peak_memory() as peak:
        big = np.ones(100_000_000, np.uint8)
        del big
        assert 90e6 < peak() < 130e6
    with timing.peak_memory() as peak:
        assert peak() < 50e6


def test_an_overhead_is_the_median_over_pairs(benchmarks):
    import step

    walls = {"masked": [2.0, 4.0, 9.0], "unmasked": [1.0, 4.0, 8.0], "control": [1.0, 2.0, 8.0]}
    figures = step.figures(walls | {"fit": [8.0], "matmul": [0.5]}, batch=10, step_flops=40, product_flops=10)

    assert (figures["mask_overhead"], figures["control_overhead"]) == (0.125, 0.0)
    assert (figures["keras_ratio"], figures["peak_share"], figures["images_per_s"]) == (2.0, 0.5, 2.5)


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet20"])
def test_a_stock_network_has_the_variables_of_ours_in_the_precision_asked_for(tensorflow, benchmarks, name):
    import loops

    from lottery.engine import models, signature

    model = resolve({"model": {"name": name, "alpha": 0.35}}).model

    ours, stock = models.build(model, signature.images(32, 10)), loops.stock_network(model, 32, "mixed_bfloat16")

    assert sorted(map(str, (one.shape for one in stock.variables))) == sorted(map(str, (one.shape for one in ours.variables)))
    assert {layer.__class__.__module__.split(".")[0] for layer in stock.layers} == {"keras"}
    assert {layer.compute_dtype for layer in stock.layers if "conv" in layer.name.lower()} == {"bfloat16"}
    assert tensorflow.keras.config.dtype_policy().name == "float32"


def test_of_a_pair_what_is_not_spent_in_steps_is_not_training(benchmarks, tmp_path):
    import fanout

    made_with, result = tmp_path / "made_with.json", tmp_path / "result.json"
    made_with.write_text(json.dumps({"values": {"train.batch": 100}}))
    result.write_text("{}")
    timings = [{"images_per_second": 1000.0, "seconds": 2.5}, {"images_per_second": 500.0, "seconds": 6.25}]
    rows = [{"step": step, "timing": one} for step, one in zip((20, 50), timings, strict=True)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(made_with, (100, 100))
    os.utime(result, (110, 110))

    assert fanout.pair_times(result) == (100.0, 110.0, pytest.approx(2 + 6), pytest.approx(0.5 + 0.25))


def test_ctrl_c_ends_it_in_one_line(tmp_path):
    running = subprocess.Popen(
        [sys.executable, ROOT / "benchmarks/step.py"],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr.readline().startswith("measuring mobilenet_v2")
    time.sleep(1)
    os.kill(running.pid, signal.SIGINT)
    out, error = running.communicate(timeout=30)

    assert (running.returncode, out, error.count("\n")) == (130, "", 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["brew"], "brew"),
        (["limits.py", "--repeats", "0"], "--repeats"),
        (["limits.py", "--out", "/dev/null/there"], "/dev/null/there cannot take a measurement (Not a directory)"),
        (["loader.py", *LENET, "--images", "10"], "train.batch 64 is more than the 10 images of an epoch"),
        (["step.py", "--set", "model.name=lennet_300_100"], "did you mean 'lenet_300_100'?"),
        (["step.py", "--set", "train.batch=30000"], "train.batch 30000 is more than 21845"),
        (["step.py", *TEXTS], "`step` is of images, and docstrings has texts"),
        (["fanout.py", "--pairs", "2", "--ranks", "2"], "--pairs 4"),
        (["bundle.py", "--tickets", "four"], "--tickets 'four' is not a list of sizes"),
        (["feed.py", "--set", "train.batch=100", "--images", "50"], "train.batch 100 is more than --images 50"),
        (["prepare.py", "nowhere"], "nowhere is not a folder"),
        (["ladder.py", *LENET, "--batch", "65"], "--batch 65 is to be the smaller one"),
        (["grid.py", "--records", "nowhere"], "no records in nowhere"),
        *((["grid.py", "--rate", rate], f"--rate {rate} is no learning rate") for rate in ("0", "nan", "inf")),
        (["grid.py", *LENET, "--batch", "5000", "--batch", "4000"], "a batch of 4,000 is more than the 1,151 training images"),
        (["race.py", "--target", "nan"], "is no accuracy"),
        (["race.py", "--quick", "--vary", "train.emma=0"], "unknown key 'train.emma'; did you mean 'train.ema'"),
        (["race.py", "--quick", "--vary", "data.size=16"], "another prepared set"),
        (["race.py", "--quick", "--set", "train.steps=100"], "train.steps is not heeded here"),
        (["race.py"], "no records in data/tfds-cifar10-32"),
    ],
)
def test_what_cannot_be_measured_is_refused(typed, arguments, words):
    code, out, said = typed(*arguments)

    assert (code, out, said.count("\n")) == (2, "", 1), said
    assert words in said
