"""What `imp bench step` measures: its table, its arithmetic, and Keras's networks beside ours. No test looks at a time."""

import json

import keras
import pytest

from lottery import cli
from lottery.base.errors import Failed, InputError
from lottery.bench import step
from lottery.bench.loops import stock_fit, stock_network
from lottery.bench.step import multiply_adds
from lottery.engine import models, signature
from lottery.experiment.recipe import Model

pytestmark = pytest.mark.usefixtures("tensorflow")

KEYS = {
    *("title", "model", "alpha", "size", "classes", "batch", "precision", "remat", "threads", "repeats"),
    *("images_per_s", "low", "high", "ms_per_step", "peak_memory_bytes", "keras_fit_images_per_s", "keras_ratio"),
    *("mask_overhead", "control_overhead", "peak_share"),
}


def table(models=(), alpha=None, size=None, batches=(), precisions=(), remats=(False,)):
    return list(step.cases(models, alpha, size, batches, precisions, remats, threads=2))


def shapes(variables):
    return [tuple(variable.shape) for variable in variables]


def test_the_standard_rows():
    assert [step.told(case)["title"] for case in table()] == [
        "mobilenet_v2 alpha 1, 64x64, batch 96, float32",
        "mobilenet_v2 alpha 0.35, 32x32, batch 128, float32",
        "resnet20, 32x32, batch 128, float32",
        "lenet_300_100, 28x28, batch 60, float32",
    ]


def test_the_table_is_every_network_in_every_batch_precision_and_rematerialised():
    cases = table(["resnet20", "mobilenet_v2"], 0.5, 16, [8, 9], ["float32", "mixed_bfloat16"], [False, True])

    assert len(cases) == len({step.told(case)["title"] for case in cases}) == 16
    networks = {(case.model.name, step.told(case)["alpha"], case.data.size) for case in cases}
    assert networks == {("resnet20", None, 16), ("mobilenet_v2", 0.5, 16)}
    assert {(case.train.batch, case.train.precision, case.train.remat) for case in cases} == {
        (batch, precision, remat) for batch in (8, 9) for precision in ("float32", "mixed_bfloat16") for remat in (False, True)
    }


def test_what_is_not_said_is_as_in_the_models_standard_row():
    assert [(case.data.size, case.train.batch) for case in table(["lenet_300_100", "conv2"])] == [(28, 60), (32, 128)]


def test_as_many_images_are_made_up_as_fit_the_memory_set_aside():
    assert step.images_of(8) == 2**26 // 192
    with pytest.raises(InputError, match=r"--batch 6000 is more than the 5461 images of 64x64"):
        table(["conv2"], size=64, batches=[6000])


@pytest.mark.parametrize(
    ("name", "size"), [("resnet20", 32), ("mobilenet_v2", 32), ("resnext29_32x4d", 32), ("lenet_300_100", 28)]
)
def test_a_stock_network_has_the_variables_of_ours(name, size):
    model = Model(name=name, alpha=1.0)

    ours, stock = models.build(model, signature.images(size, 10)), stock_network(model, size, 10, "float32")

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

    stock_fit(stock, table(["lenet_300_100"], size=8, batches=[6])[0].train, 12, xla=False)()

    assert (stock.trainable_variables[0].numpy() != before).any()
    assert stock.optimizer.iterations == 2


@pytest.mark.parametrize(
    ("model", "size", "classes", "adds"),
    [
        (Model(name="lenet_300_100"), 28, 10, 28 * 28 * 3 * 300 + 300 * 100 + 100 * 10),
        (Model(name="mobilenet_v2", alpha=1.0), 224, 1000, pytest.approx(300e6, rel=0.01)),
    ],
    ids=["each weight once", "those of the paper"],
)
def test_the_multiply_adds_of_a_network(model, size, classes, adds):
    assert multiply_adds(models.build(model, signature.images(size, classes))) == adds


def test_a_convolution_uses_each_weight_at_each_position_of_its_output():
    inputs = x = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, 2, padding="same")(x)  # 4 x 4 positions
    x = keras.layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = keras.layers.Conv2D(6, 1, use_bias=False)(x)
    x = keras.layers.Conv2D(6, 3, groups=2, padding="valid")(x)  # 2 x 2 positions
    network = keras.Model(inputs, keras.layers.BatchNormalization()(x))

    assert multiply_adds(network) == 16 * (27 * 4) + 16 * (9 * 4) + 16 * (4 * 6) + 4 * (9 * 3 * 6)


def test_an_overhead_is_the_median_over_pairs():
    walls = {"masked": [2.0, 4.0, 9.0], "unmasked": [1.0, 4.0, 8.0], "control": [1.0, 2.0, 8.0]}
    figures = step.figures(walls | {"fit": [8.0], "matmul": [0.5]}, batch=10, step_flops=40, product_flops=10)

    assert (figures["mask_overhead"], figures["control_overhead"]) == (0.125, 0.0)
    assert (figures["keras_ratio"], figures["peak_share"], figures["images_per_s"]) == (2.0, 0.5, 2.5)


def test_a_row_is_measured_and_one_that_fails_is_one_line(in_process, monkeypatch, capsys):
    monkeypatch.setattr(step, "IMAGE_BYTES", 10_000)
    measure = step.time_contenders

    def fail_at_7(recipe, **how):
        if recipe.train.batch == 7:
            raise Failed("ResourceExhausted: out of memory")
        return measure(recipe, **how)

    monkeypatch.setattr(step, "time_contenders", fail_at_7)
    command = "bench step --model=lenet_300_100 --size=8 --batch=6 --batch=7 --repeats=3 --quick --json"

    assert cli.app(command.split(), standalone_mode=False) == 1

    out, said = capsys.readouterr()
    (row,) = json.loads(out)["rows"]
    assert row.keys() == KEYS
    assert (row["title"], row["batch"], row["repeats"]) == ("lenet_300_100, 8x8, batch 6, float32", 6, 3)
    assert 0 < row["low"] <= row["images_per_s"] <= row["high"]
    assert row["ms_per_step"] == pytest.approx(1000 * 6 / row["images_per_s"])
    assert row["keras_ratio"] == pytest.approx(row["images_per_s"] / row["keras_fit_images_per_s"])
    assert row["peak_memory_bytes"] > 1e6
    assert row["mask_overhead"] > -1
    assert "failed: lenet_300_100, 8x8, batch 7, float32: ResourceExhausted: out of memory\n" in said
