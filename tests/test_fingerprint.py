"""What tells networks of the same variables from each other."""

import keras
import pytest
from helpers import large, lenet
from tiny import local, subclassed

from lottery.engine import models, signature
from lottery.engine.models.fingerprint import fingerprint
from lottery.experiment.recipe import Model

pytestmark = pytest.mark.usefixtures("tensorflow")

SHAPE = (8, 8, 3)
SIGNATURE = signature.images(8, 3)


def dense(activation="relu", bias=True):
    images = keras.Input(SHAPE)
    x = keras.layers.Flatten()(images)
    x = keras.layers.Dense(4, activation=activation, use_bias=bias)(x)
    return keras.Model(images, keras.layers.Dense(3)(x))


class Own(keras.Model):
    """A network that Keras cannot describe."""

    def __init__(self, activation):
        super().__init__()
        self.flatten, self.dense, self.last = keras.layers.Flatten(), keras.layers.Dense(4), keras.layers.Dense(3)
        self.activation = activation

    def call(self, images):
        return self.last(self.activation(self.dense(self.flatten(images))))


def own(activation):
    network = Own(activation)
    network(keras.Input(SHAPE))
    return network


def test_another_network_has_another_fingerprint():
    others = [dense("tanh"), dense(bias=False), local(8, 3)]

    assert fingerprint(dense(), SIGNATURE) not in [fingerprint(other, SIGNATURE) for other in others]


def test_automatic_names_do_not_count():
    assert fingerprint(dense(), SIGNATURE) == fingerprint(dense(), SIGNATURE)


@pytest.mark.parametrize("name", ["lenet_300_100", "tiny:parts", *large("mobilenet_v2", "EfficientNetV2B0")])
def test_a_network_built_again_has_the_same_one_whatever_it_computes_in(name):
    found = []
    for dtype in ("float32", "mixed_bfloat16"):
        with models.policy(dtype):
            found.append(fingerprint(models.build(Model(name=name), signature.images(32, 10)), signature.images(32, 10)))

    assert found[0] == found[1]


def test_settings_of_the_recipe_count():
    narrow, wide = (models.build(Model(name="resnet20", width=width), signature.images(32, 10)) for width in (4, 8))
    slow = models.build(Model(name="resnet20", width=4, batchnorm_momentum=0.99), signature.images(32, 10))

    assert len({fingerprint(network, signature.images(32, 10)) for network in (narrow, wide, slow)}) == 3


def test_a_network_that_keras_cannot_describe_is_told_by_its_operations():
    assert fingerprint(own(keras.activations.relu), SIGNATURE) == fingerprint(own(keras.activations.relu), SIGNATURE)
    assert fingerprint(own(keras.activations.relu), SIGNATURE) != fingerprint(own(keras.activations.tanh), SIGNATURE)
    assert fingerprint(own(keras.activations.relu), SIGNATURE) != fingerprint(built(subclassed(8, 3)), SIGNATURE)


def test_a_number_that_such_a_network_multiplies_by_counts():
    half, third, again = (fingerprint(own(lambda x, by=by: x * by), SIGNATURE) for by in (1 / 2, 1 / 3, 1 / 2))

    assert half == again
    assert half != third


@pytest.mark.parametrize("dtype", ["mixed_float16", "float64"])
def test_in_what_such_a_network_computes_does_not_count(dtype):
    with models.policy(dtype):
        other = fingerprint(own(keras.activations.relu), SIGNATURE)

    assert other == fingerprint(own(keras.activations.relu), SIGNATURE)


class Odd(keras.layers.Flatten):
    def get_config(self):
        return super().get_config() | {"odd": object()}


LAYERS = {
    "odd": Odd,
    "lambda": lambda: keras.layers.Lambda(lambda images: images),
    "drawn": lambda: keras.layers.RandomCrop(4, 4),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_describes_itself_otherwise_each_time_does_no_harm(layer):
    def network(activation):
        images = keras.Input(SHAPE)
        x = keras.layers.Flatten()(LAYERS[layer]()(images))
        return keras.Model(images, keras.layers.Dense(3, activation=activation)(x))

    assert fingerprint(network("relu"), SIGNATURE) == fingerprint(network("relu"), SIGNATURE)
    assert fingerprint(network("relu"), SIGNATURE) != fingerprint(network("tanh"), SIGNATURE)


def built(network):
    network(keras.Input(SHAPE))
    return network


def test_it_begins_with_the_version_of_keras():
    assert fingerprint(models.build(lenet(), signature.images(8, 3)), SIGNATURE).startswith(f"keras-{keras.__version__} ")
