"""The networks: known counts and outputs, initialisation as a function of its seed, and what is refused."""

import sys
from itertools import pairwise
from math import prod

import keras
import numpy as np
import pytest
from helpers import large, lenet

from lottery.base.errors import InputError
from lottery.engine import models, signature
from lottery.experiment import networks, reading
from lottery.experiment.decisive import decisive
from lottery.experiment.recipe import Model, Recipe
from lottery.networks.topology import topology

pytestmark = pytest.mark.usefixtures("tensorflow")  # set up before a test here starts it

LARGE = ("mobilenet_v2", "resnet50", "resnet56", "resnext29_32x4d", "wrn_22_2")
SMALL = [name for name in networks.OURS if name not in LARGE]


def count(variables):
    return sum(prod(variable.shape) for variable in variables)


def trainable(name, size=32, classes=10, **settings):
    return count(models.build(Model(name=name, **settings), signature.images(size, classes)).trainable_variables)


def batch(size, count=4):
    return np.random.default_rng(0).uniform(-1, 1, (count, size, size, 3)).astype(np.float32)


def dense(*widths):
    return sum((incoming + 1) * units for incoming, units in pairwise(widths))


def test_mobilenet_v2_has_the_variables_of_keras_applications():
    ours = models.build(Model(alpha=1.0), signature.images(224, 1000))
    theirs = keras.applications.MobileNetV2((224, 224, 3), alpha=1.0, weights=None)

    assert len(ours.variables) == 262
    assert count(ours.variables) == 3_538_984
    assert {variable.path: variable.shape for variable in ours.variables} == {
        variable.path: variable.shape for variable in theirs.variables
    }


@pytest.mark.parametrize("size", [32, 45])
def test_mobilenet_v2_gives_the_outputs_of_keras_applications(size):
    theirs = keras.applications.MobileNetV2((size, size, 3), alpha=0.35, weights=None, classes=10, classifier_activation=None)
    ours = models.build(Model(alpha=0.35), signature.images(size, 10))
    rng = np.random.default_rng(0)
    values = {variable.path: rng.uniform(0.1, 0.6, variable.shape) for variable in theirs.variables}
    for network in (ours, theirs):
        for variable in network.variables:
            variable.assign(values[variable.path])

    np.testing.assert_allclose(ours(batch(size)), theirs(batch(size)), rtol=1e-4)


def test_networks_without_batchnorm_have_the_published_sizes():
    convolutions = np.cumsum([0, *(9 * before * after for before, after in ((3, 64), (64, 64), (64, 128), (128, 128)))])

    assert trainable("lenet_300_100", 28) == dense(28 * 28 * 3, 300, 100, 10)
    assert trainable("conv2") == convolutions[2] + 2 * 64 + dense(16 * 16 * 64, 256, 256, 10)
    assert trainable("conv4") == convolutions[4] + 2 * (64 + 128) + dense(8 * 8 * 128, 256, 256, 10)
    assert trainable("conv6") == 2_261_184 + 2 * (64 + 128 + 256) + 256 + 256 + 10  # weights as published, and biases
    assert trainable("cifar_tutorial") == 76 * 64 + (25 * 64 + 1) * 64 + dense(5 * 5 * 64, 120, 84, 10)


@pytest.mark.parametrize(
    ("name", "size", "channels", "published"),
    [
        *(("lenet_300_100", 28, 1, 266_610), ("resnet20", 32, 3, 272_474)),
        *(("resnet56", 32, 3, 855_770), ("wrn_22_2", 32, 3, 1_079_642)),
    ],
)
def test_networks_have_their_published_sizes(name, size, channels, published):
    assert count(models.build(Model(name=name), signature.images(size, 10, channels)).trainable_variables) == published


@pytest.mark.parametrize(("name", "stages"), [("resnet20", (2, 3)), ("wrn_22_2", (1, 2, 3))])
def test_there_is_a_projection_where_the_shape_changes(name, stages):
    kernels = topology(models.build(Model(name=name), signature.images(32, 10))).kernels

    expected = [f"stage{stage}_block1_shortcut/kernel" for stage in stages]
    assert sorted(path for path in kernels if "shortcut" in path) == expected


def test_blocks_of_wrn_22_2_are_activated_before_their_convolutions():
    network = models.build(Model(name="wrn_22_2"), signature.images(32, 10))

    def read(layer):
        inputs = network.get_layer(layer).input
        return [tensor._keras_history.operation.name for tensor in (inputs if isinstance(inputs, list) else [inputs])]

    order = ["conv1", "stage1_block1_bn1", "stage1_block1_relu1", "stage1_block1_conv1"]
    order += ["stage1_block1_bn2", "stage1_block1_relu2", "stage1_block1_conv2"]
    assert [read(layer) for layer in order[1:]] == [[layer] for layer in order[:-1]]
    assert read("stage1_block1_shortcut") == ["stage1_block1_relu1"]
    assert read("stage1_block1_add") == ["stage1_block1_shortcut", "stage1_block1_conv2"]
    assert read("stage1_block2_add") == ["stage1_block1_add", "stage1_block2_conv2"]
    assert read("out_bn") == ["stage3_block3_add"]


def test_the_width_of_a_resnet_is_the_channels_of_its_first_stage():
    assert trainable("resnet20", width=16) == 272_474
    network = models.build(Model(name="resnet20", width=4), signature.images(32, 10))
    assert [network.get_layer(f"stage{stage}_block1_conv2").output.shape[-1] for stage in (1, 2, 3)] == [4, 8, 16]
    network = models.build(Model(name="resnet9", width=8, whitening=True), signature.images(32, 10))
    stages = ("prep", "layer1", "layer2", "layer3")
    assert [network.get_layer(f"{stage}_conv").output.shape[-1] for stage in stages] == [8, 16, 32, 64]


@pytest.mark.smoke
def test_larger_resnets_have_the_published_sizes():
    assert trainable("resnet50", 224, 1000) == 25_557_032
    assert trainable("resnet9") == trainable("resnet9", width=64) == 6_573_120
    assert trainable("resnext29_32x4d") == 4_775_754


@pytest.mark.parametrize(("name", "layer"), [("mobilenet_v2", "Conv1_relu"), *large(("resnet50", "stage1_block1_relu1"))])
def test_a_small_stem_keeps_the_resolution(name, layer):
    def resolution(stem):
        return models.build(Model(name=name, stem=stem), signature.images(32, 10)).get_layer(layer).output.shape[1]

    assert resolution("standard") < 32
    assert resolution("small") == 32


@pytest.mark.parametrize(
    ("name", "size"),
    [("resnet20", 17), ("wrn_22_2", 17), *large(("mobilenet_v2", 33), ("resnet50", 33), ("resnext29_32x4d", 17))],
)
def test_symmetric_padding_is_same_where_maps_are_of_odd_size_and_another_where_they_are_even(name, size):
    def outputs(size, padding):
        network = models.build(Model(name=name, padding=padding), signature.images(size, 10))
        rng = np.random.default_rng(0)
        for variable in network.variables:
            drawn = rng.normal if variable.path.endswith("kernel") else rng.uniform
            variable.assign(drawn(0.2, 1, variable.shape) / np.sqrt(prod(variable.shape[:-1])))
        return {variable.path for variable in network.variables}, np.asarray(network(batch(size)))

    for pixels, is_same in ((size, True), (size - 1, False)):
        (paths, same), (its_paths, symmetric) = (outputs(pixels, padding) for padding in ("same", "symmetric"))
        assert paths == its_paths
        assert same.shape == symmetric.shape
        assert np.allclose(same, symmetric, rtol=1e-4) == is_same


def test_the_activation_of_resnet9_is_the_recipes():
    images = batch(32, 2)
    outputs = {
        activation: models.build(Model(name="resnet9", activation=activation), signature.images(32, 10))(images).shape
        for activation in ("relu", "elu", "gelu", "silu")
    }
    network = models.build(Model(name="resnet9", activation="silu"), signature.images(32, 10))

    assert set(outputs.values()) == {(2, 10)}
    assert network.get_layer("prep_silu").activation is keras.activations.silu


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, "mixed_bfloat16") for name in SMALL),
        *(("tiny:parts", policy) for policy in ("float32", "mixed_bfloat16", "mixed_float16")),
        *large(*((name, "mixed_float16") for name in LARGE)),
    ],
    indirect=["policy"],
)
def test_every_network_gives_finite_logits_in_the_dtype_of_its_variables(name, policy):
    network = models.build(Model(name=name), signature.images(32, 10))

    for training in (False, True):
        logits = network(batch(32, 2), training=training)
        assert logits.shape == (2, 10)
        assert logits.dtype.name == "float32"
        assert np.isfinite(logits).all()
    assert {variable.dtype for variable in network.variables} == {"float32"}


@pytest.mark.parametrize("name", [*SMALL, "VGG16", *large(*LARGE, "EfficientNetB0")])
def test_a_network_takes_one_channel_and_differs_in_its_first_kernel_alone(name):
    three, network = (models.build(Model(name=name, alpha=1.0), signature.images(32, 10, channels)) for channels in (3, 1))
    three, one = ({weight.path: np.array(weight) for weight in built.trainable_variables} for built in (three, network))
    different = [path for path in three if three[path].shape != one[path].shape]

    assert list(three) == list(one)
    assert different == [next(path for path in three if path.endswith("kernel"))]
    assert one[different[0]].size * 3 == three[different[0]].size
    assert np.isfinite(network(batch(32)[..., :1], training=True)).all()


def test_initial_weights_are_a_function_of_the_seed():
    first, again, other = (models.initial_weights(lenet(), signature.images(8, 10), seed).weights for seed in (1, 1, 2))

    assert all(np.array_equal(first[path], again[path]) for path in first)
    assert not np.array_equal(first["fc1/kernel"], other["fc1/kernel"])


def test_uniform_gammas_lie_between_nought_and_one():
    weights = models.initial_weights(Model(batchnorm_gamma="uniform"), signature.images(32, 10), 0).weights
    gammas = [array for path, array in weights.items() if path.endswith("/gamma")]

    values = np.concatenate(gammas)
    assert 0 <= values.min() < 0.1
    assert 0.9 < values.max() <= 1
    assert np.unique(values).size > 0.99 * values.size  # and no two layers have the same ones


def test_the_recipe_knows_every_network_and_no_other():
    applications = {name for name, value in vars(keras.applications).items() if callable(value) and name[0].isupper()}

    assert set(networks.APPLICATIONS) == applications
    assert set(networks.OURS) == set(models._OURS)


@pytest.mark.parametrize("name", ["resnet_20", "RESNET20"])
def test_a_misspelt_network_is_answered_with_the_nearest(name):
    with pytest.raises(InputError, match="did you mean 'resnet20'"):
        reading.resolve({"model": {"name": name}})


@pytest.mark.parametrize("name", ["xyz", "mine:", "mynet:build:again"])
def test_what_can_be_no_network_is_refused_with_the_recipe(name):
    with pytest.raises(InputError, match=r"package\.module:function") as caught:
        reading.resolve({"model": {"name": name}})

    assert "\n" not in str(caught.value)


def test_a_networks_identity_leaves_out_the_settings_that_it_does_not_use():
    def used(name):
        return {key for key in decisive(Recipe(model=Model(name=name))) if key.startswith("model.")}

    batchnorm = {"model.batchnorm", "model.batchnorm_momentum", "model.batchnorm_epsilon"}
    assert used("conv2") == {"model.name", "model.initializer"}
    assert used("resnet20") == {"model.name", "model.width", "model.initializer", "model.batchnorm_gamma", *batchnorm}
    assert decisive(Recipe(model=Model(name="resnet20", padding="symmetric")))["model.padding"] == "symmetric"
    assert used("MobileNet") == {"model.name", "model.alpha", *batchnorm}
    assert used("mynet:build") == {"model.name"}


@pytest.mark.parametrize("name", ["MobileNetV3Small", *large("EfficientNetB0")])
def test_an_application_has_the_recipes_batchnorm_and_the_same_paths_each_time(name):
    model = Model(name=name, alpha=1.0, batchnorm_momentum=0.8, batchnorm_epsilon=0.01)
    keras.layers.Conv2D(3, 3)  # counted by Keras
    first, again = (models.build(model, signature.images(32, 10)) for _ in range(2))

    assert [variable.path for variable in first.variables] == [variable.path for variable in again.variables]
    assert [layer.name for layer in first.layers] == [layer.name for layer in again.layers]
    normalisations = [layer for layer in first.layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert {(layer.momentum, layer.epsilon) for layer in normalisations} == {(0.8, 0.01)}
    assert not any(layer.scale != 1 for layer in first.layers if isinstance(layer, keras.layers.Rescaling))
    assert np.isfinite(first(batch(32), training=True)).all()


OWN = """
import keras

def network(size, classes, *before, channels=3, **options):
    layers = [*before, keras.layers.Flatten(), keras.layers.Dense(classes, **options)]
    return keras.Sequential([keras.Input((size, size, channels)), *layers])

def unnamed(size, classes):
    return network(size, classes, keras.layers.Conv2D(4, 3), keras.layers.Conv2D(4, 3))

def wide(size, classes):
    return network(size, classes + 1)

def regularised(size, classes):
    return network(size, classes, kernel_regularizer="l2")

class Penalty(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            self.add_loss(keras.ops.sum(x))
        return x

def penalised(size, classes):
    return network(size, classes, keras.layers.Dropout(0.5), Penalty())

class Stepping(keras.Model):
    def train_step(self, data):
        return {}

def stepping(size, classes):
    plain = network(size, classes)
    return Stepping(plain.inputs[0], plain.outputs[0])

def grey(size, classes):
    return network(size, classes, channels=1)

class Subclassed(keras.Model):
    def __init__(self, classes, names=(None,)):
        super().__init__()
        self.flatten, self.dense = keras.layers.Flatten(), [keras.layers.Dense(classes, name=name) for name in names]

    def call(self, images):
        return sum(dense(self.flatten(images)) for dense in self.dense)

def subclassed(size, classes):
    return Subclassed(classes)

def twins(size, classes):
    return Subclassed(classes, ("fc", "fc"))

def number(size, classes):
    return 3

def unary(size):
    return None
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's own in the current folder."""
    (tmp_path / "own_networks.py").write_text(OWN)
    (tmp_path / "broken_networks.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_networks", None)


@pytest.mark.parametrize("function", ["unnamed", "subclassed"])
def test_a_network_of_the_users_own_is_found_in_the_current_folder(own, function):
    first, again = (
        models.initial_weights(Model(name=f"own_networks:{function}"), signature.images(8, 3), seed).weights for seed in (1, 1)
    )

    assert list(first) == list(again)
    assert all(np.array_equal(first[path], again[path]) for path in first)


@pytest.mark.filterwarnings("ignore:`build..` was called")
@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("no_networks:build", 8, "no_networks cannot be imported"),
        ("broken_networks:build", 8, "No module named 'no_such_package'"),
        ("own_networks:unary", 8, r"does not take \(size, classes\)"),
        ("own_networks:number", 8, "returned int: let it return a keras.Model"),
        ("own_networks:wide", 8, r"returns \(None, 4\), not \[batch, 3\]: fix its last layer"),
        ("own_networks:twins", 8, "2 variables called .*fc/kernel"),
        ("own_networks:regularised", 8, r"regularisers or constraints, .*: use train\.weight_decay"),
        ("own_networks:penalised", 8, "own_networks:penalised has losses of its layers .*, which are not heeded"),
        ("own_networks:stepping", 8, "own_networks:stepping has a train_step of its own, which is not heeded"),
        ("own_networks:unnamed", 4, "4x4 images"),
        ("own_networks:grey", 8, r"takes inputs of shape \(None, 8, 8, 1\), and is given 8x8 images of 3 channels"),
        ("cifar_tutorial", 8, "cifar_tutorial cannot be built for 8x8 images"),
        ("resnet9", 4, "resnet9 cannot be built for 4x4 images"),
    ],
)
def test_a_network_that_cannot_work_is_refused_in_one_line(own, name, size, words):
    with pytest.raises(InputError, match=words) as caught:
        models.build(Model(name=name), signature.images(size, 3))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("function", ["grey", "subclassed"])
def test_a_network_of_the_users_own_can_be_of_one_channel(own, function):
    weights = models.initial_weights(Model(name=f"own_networks:{function}"), signature.images(8, 3, 1), 0).weights

    assert sum(array.size for array in weights.values()) == dense(64, 3)
