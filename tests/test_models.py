"""The networks: Keras's variables and outputs, and initialisation as a function of its seed."""

import numpy as np
import pytest
from helpers import lenet

from lottery import models
from lottery.recipe import Model

keras = pytest.importorskip("keras")


def test_mobilenet_v2_has_the_variables_of_keras_applications():
    ours = models.build(Model(alpha=1.0), 224, 1000)
    theirs = keras.applications.MobileNetV2((224, 224, 3), alpha=1.0, weights=None)

    assert len(ours.variables) == 262
    assert sum(int(np.prod(variable.shape)) for variable in ours.variables) == 3_538_984
    assert {variable.path: variable.shape for variable in ours.variables} == {
        variable.path: variable.shape for variable in theirs.variables
    }


@pytest.mark.parametrize("size", [32, 45])
def test_mobilenet_v2_gives_the_outputs_of_keras_applications(size):
    theirs = keras.applications.MobileNetV2((size, size, 3), alpha=0.35, weights=None, classes=10, classifier_activation=None)
    ours = models.build(Model(alpha=0.35), size, 10)
    rng = np.random.default_rng(0)
    values = {variable.path: rng.uniform(0.1, 0.6, variable.shape) for variable in theirs.variables}
    for network in (ours, theirs):
        for variable in network.variables:
            variable.assign(values[variable.path])
    images = rng.uniform(-1, 1, (4, size, size, 3)).astype(np.float32)

    np.testing.assert_allclose(ours(images), theirs(images), rtol=1e-4)


def test_a_small_stem_keeps_the_resolution():
    def resolution(stem):
        return models.build(Model(stem=stem), 32, 10).get_layer("Conv1_relu").output.shape[1]

    assert resolution("standard") == 16
    assert resolution("small") == 32


def test_initial_weights_are_a_function_of_the_seed():
    first, again, other = (models.initial_weights(lenet(), 8, 10, seed).weights for seed in (1, 1, 2))

    assert all(np.array_equal(first[path], again[path]) for path in first)
    assert not np.array_equal(first["fc1/kernel"], other["fc1/kernel"])


def test_batch_norm_moves_its_statistics_by_its_momentum():
    network = models.build(Model(batchnorm_momentum=0.75), 32, 10)
    layer = network.get_layer("bn_Conv1")
    inputs = np.random.default_rng(0).normal(3, 2, (8, 16, 16, layer.gamma.shape[0])).astype(np.float32)

    layer(inputs, training=True)

    np.testing.assert_allclose(layer.moving_mean, 0.25 * inputs.mean((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(layer.moving_variance, 0.75 + 0.25 * inputs.var((0, 1, 2), ddof=1), rtol=1e-4)


def test_uniform_gammas_lie_between_nought_and_one():
    weights = models.initial_weights(Model(batchnorm_gamma="uniform"), 32, 10, 0).weights
    gammas = [array for path, array in weights.items() if path.endswith("/gamma")]

    values = np.concatenate(gammas)
    assert 0 <= values.min() < 0.1
    assert 0.9 < values.max() <= 1
    assert np.unique(values).size > 0.99 * values.size  # and no two layers have the same ones
