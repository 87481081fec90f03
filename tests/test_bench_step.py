"""The training loop is measured, small; a row that fails fails alone. No test looks at a time."""

import dataclasses
import json
import os
import signal
import subprocess
import time

import keras
import pytest
import typer
from helpers import IMP, clean_environment, imp, refused

from data_prep.errors import Failed, InputError
from lottery.bench import apart, measure, step
from lottery.bench.commands import steps
from lottery.bench.parts.arithmetic import multiply_adds, training_flops
from lottery.bench.parts.stock import stock_fit, stock_network
from lottery.bench.step import Case, Row
from lottery.bench.trials import step as trial
from lottery.engine import models
from lottery.progress import Reporter
from lottery.recipe import Model

pytestmark = pytest.mark.usefixtures("tensorflow")

KEYS = {
    *("model", "alpha", "size", "classes", "batch", "precision", "remat", "threads", "repeats"),
    *("images_per_s", "low", "high", "ms_per_step", "peak_memory_bytes", "keras_fit_images_per_s", "keras_ratio"),
    *("mask_overhead", "control_overhead", "peak_share"),
}
TINY = Case("lenet_300_100", None, 8, 3, 6, "float32", False, 1, 2)


def a_row(case: Case = TINY) -> Row:
    figures = dict.fromkeys(KEYS - vars(case).keys(), 1.0)
    return Row(**vars(case), **figures)


def table(models=(), alpha=None, size=None, batches=(), precisions=(), remat=False):
    return step.cases(models, alpha, size, 10, batches, precisions, remat, 2, 11)


def shapes(variables):
    return [tuple(variable.shape) for variable in variables]


def test_the_standard_rows():
    titles = [case.title for case in table()]

    assert titles == [
        "mobilenet_v2 alpha 1, 64x64, batch 96, float32",
        "mobilenet_v2 alpha 0.35, 32x32, batch 128, float32",
        "resnet20, 32x32, batch 128, float32",
        "lenet_300_100, 28x28, batch 60, float32",
    ]


def test_the_table_is_every_network_in_every_batch_precision_and_rematerialised():
    found = table(["resnet20", "mobilenet_v2"], 0.5, 16, [8, 9], ["float32", "mixed_bfloat16"], True)

    assert len(found) == len({case.title for case in found}) == 16
    assert {(case.model, case.alpha, case.size) for case in found} == {("resnet20", None, 16), ("mobilenet_v2", 0.5, 16)}
    assert {(case.batch, case.precision, case.remat) for case in found} == {
        (batch, precision, remat) for batch in (8, 9) for precision in ("float32", "mixed_bfloat16") for remat in (False, True)
    }


def test_what_is_not_said_is_as_in_the_models_standard_row():
    assert [(case.size, case.batch) for case in table(["lenet_300_100", "conv2"])] == [(28, 60), (32, 128)]


def test_as_many_images_are_made_up_as_fit_the_memory_set_aside():
    assert TINY.images == 2**26 // 192
    with pytest.raises(InputError, match=r"--batch 6000 is more than the 5461 images of 64x64"):
        table(["conv2"], size=64, batches=[6000])


@pytest.mark.parametrize(
    ("name", "size"), [("resnet20", 32), ("mobilenet_v2", 32), ("resnext29_32x4d", 32), ("lenet_300_100", 28)]
)
def test_a_stock_network_has_the_variables_of_ours(name, size):
    model = Model(name=name, alpha=1.0)

    ours, stock = models.build(model, size, 10), stock_network(model, size, 10, "float32")

    assert shapes(stock.trainable_variables) == shapes(ours.trainable_variables)
    assert sorted(shapes(stock.variables)) == sorted(shapes(ours.variables))
    assert {layer.__class__.__module__.split(".")[0] for layer in stock.layers} == {"keras"}


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_a_stock_network_computes_in_the_precision_asked_for(precision):
    stock = stock_network(Model(name="resnet20"), 8, 3, precision)

    assert stock.get_layer("conv1").compute_dtype == precision.removeprefix("mixed_")
    assert stock.get_layer("bn1").variable_dtype == "float32"
    assert keras.config.dtype_policy().name == "float32"


def test_fit_trains():
    stock = stock_network(Model(name="lenet_300_100"), 8, 3, "float32")
    before = stock.trainable_variables[0].numpy().copy()

    stock_fit(stock, TINY.recipe().train, 12, 8, 3, xla=False)()

    assert (stock.trainable_variables[0].numpy() != before).any()
    assert stock.optimizer.iterations == 2


def test_a_dense_layer_uses_each_weight_once():
    network = models.build(Model(name="lenet_300_100"), 28, 10)

    assert multiply_adds(network) == 28 * 28 * 3 * 300 + 300 * 100 + 100 * 10
    assert training_flops(network, 60) == 6 * 60 * 736_600


def test_a_convolution_uses_each_weight_at_each_position_of_its_output():
    inputs = x = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, 2, padding="same")(x)  # 4 x 4 positions
    x = keras.layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = keras.layers.Conv2D(6, 1, use_bias=False)(x)
    x = keras.layers.Conv2D(6, 3, groups=2, padding="valid")(x)  # 2 x 2 positions
    network = keras.Model(inputs, keras.layers.BatchNormalization()(x))

    assert multiply_adds(network) == 16 * (27 * 4) + 16 * (9 * 4) + 16 * (4 * 6) + 4 * (9 * 3 * 6)


def test_mobilenet_v2_has_the_multiply_adds_of_its_paper():
    network = models.build(Model(name="mobilenet_v2", alpha=1.0), 224, 1000)

    assert multiply_adds(network) == pytest.approx(300e6, rel=0.01)


def test_turns_go_there_and_back(monkeypatch):
    monkeypatch.setattr(measure, "RUN_SECONDS", 1e-9)
    turns = []

    runs = measure.in_turn(
        {name: lambda name=name: turns.append(name) for name in "abc"}, 3, Reporter(quiet=True), there_and_back=True
    )

    assert "".join(turns) == "aabbcc" + "abc" + "cba" + "abc"
    assert {name: len(timings) for name, timings in runs.items()} == {"a": 3, "b": 3, "c": 3}


def test_an_overhead_is_the_median_over_pairs():
    assert trial._overhead([2.0, 4.0, 9.0], [1.0, 4.0, 8.0]) == 0.125


def test_a_row_is_measured(monkeypatch):
    monkeypatch.setattr(measure, "RUN_SECONDS", 1e-9)
    monkeypatch.setattr(trial, "GO_SECONDS", 1e-9)
    monkeypatch.setattr(step, "IMAGE_BYTES", 10_000)
    monkeypatch.setattr(trial.devices, "set_up_tensorflow", lambda train: ["CPU:0"])

    found = Row(**trial.measure_case(vars(TINY)))

    assert [getattr(found, field.name) for field in dataclasses.fields(Case)] == list(vars(TINY).values())
    assert 0 < found.low <= found.images_per_s <= found.high
    assert found.ms_per_step == pytest.approx(1000 * TINY.batch / found.images_per_s)
    assert found.keras_ratio == pytest.approx(found.images_per_s / found.keras_fit_images_per_s)
    assert found.peak_memory_bytes > 1e6
    assert found.mask_overhead > -1


@pytest.fixture
def failing(monkeypatch):
    """Every second row fails; what is measured, by title."""
    found = iter([a_row(), Failed("ResourceExhausted: out of memory"), a_row(), Failed("the same")])

    def call(function, case):
        result = next(found)
        if isinstance(result, Failed):
            raise result
        return vars(dataclasses.replace(result, **case))

    monkeypatch.setattr(apart, "call", call)


def test_a_row_that_fails_is_one_line_and_the_others_go_on(failing, capsys):
    table = [dataclasses.replace(TINY, batch=batch) for batch in (4, 5, 6, 7)]

    sheet, failed = step.bench_step(table, Reporter())

    assert failed == ["lenet_300_100, 8x8, batch 5, float32", "lenet_300_100, 8x8, batch 7, float32"]
    assert [row["batch"] for row in sheet.rows] == [4, 6]
    assert "failed: lenet_300_100, 8x8, batch 5, float32: ResourceExhausted: out of memory\n" in capsys.readouterr().err


def test_the_command_ends_with_1_where_a_row_failed(failing, capsys):
    with pytest.raises(typer.Exit) as ended:
        steps.step(model=["resnet20"], batch=[4, 5, 6, 7], as_json=True)

    found = json.loads(capsys.readouterr().out)
    assert ended.value.exit_code == 1
    assert [row.keys() for row in found["rows"]] == [KEYS | {"title"}] * 2
    assert {"processor", "cores", "packages"} <= found["machine"].keys()


def test_the_table_has_the_rows_and_what_they_mean(failing, capsys):
    steps.step(model=["resnet20"])

    out = capsys.readouterr().out
    assert "resnet20, 32x32, batch 128, float32" in out
    assert "+100.0%" in out
    assert "medians of 11 runs of each, in turn" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "lennet_300_100"), "did you mean 'lenet_300_100'?"),
        (("--size", "0"), "--size"),
        (("--alpha", "0", "--model", "mobilenet_v2"), "model.alpha"),
        (("--precision", "float8"), "train.precision"),
        (("--repeats", "0"), "--repeats"),
        (("--batch", "30000"), "--batch 30000 is more than"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(tmp_path, arguments, words):
    refused(imp("bench", "step", *arguments, cwd=tmp_path, check=False), words)


def test_ctrl_c_ends_it_in_one_line(tmp_path):
    running = subprocess.Popen(
        [IMP, "bench", "step"], cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr.readline().startswith("measuring mobilenet_v2")
    time.sleep(1)
    os.kill(running.pid, signal.SIGINT)
    out, error = running.communicate(timeout=30)

    assert (running.returncode, out, error.count("\n")) == (130, "", 1)
