"""The layer that whitens patches: what comes out of it, what fills it, and that it is never trained."""

import numpy as np
import pytest
import tensorflow as tf
from tiny import CPUS, advance

from lottery.engine import whitening
from lottery.experiment.recipe import Model

pytestmark = pytest.mark.usefixtures("tensorflow")

WHITENED = Model(name="resnet9", whitening=True, width=4)


def correlated(count=40, size=16):
    """Images whose neighbouring pixels and channels vary together."""
    noise = np.random.default_rng(0).normal(size=(count, size, size, 3))
    return (noise + 2 * np.roll(noise, 1, axis=1) + noise.mean(axis=3, keepdims=True)).astype(np.float32)


def responses(images, kernel):
    return tf.nn.conv2d(images, kernel, 1, "VALID").numpy().reshape(-1, kernel.shape[-1])


def test_what_comes_out_is_uncorrelated_and_of_variance_one():
    images = correlated()
    kernel = whitening.kernel(images)

    assert (kernel.shape, kernel.dtype) == ((3, 3, 3, 27), np.float32)
    assert np.cov(responses(images, kernel), rowvar=False) == pytest.approx(np.eye(27), abs=0.1)


def test_what_does_not_vary_is_not_blown_up():
    grey = np.repeat(correlated()[..., :1], 3, axis=3)

    out = responses(grey, whitening.kernel(grey)).var(axis=0)

    assert out[:9] == pytest.approx(np.ones(9), abs=0.1)
    assert out[9:] == pytest.approx(np.zeros(18), abs=1e-3)
    assert np.isfinite(whitening.kernel(np.zeros((2, 8, 8, 1), np.float32))).all()


def test_a_drawn_network_whitens_the_images_it_is_fed(make_trainer):
    first, again, other = (make_trainer(WHITENED, maskable=()).drawn(seed) for seed in (1, 1, 2))
    kernels = [state.statistics[whitening.PATH] for state in (first, again, other)]

    assert kernels[0].any()
    assert kernels[0].tobytes() == kernels[1].tobytes() == kernels[2].tobytes()
    assert first.weights["prep_conv/kernel"].shape == (1, 1, 27, 4)
    assert first.weights["prep_conv/kernel"].tobytes() != other.weights["prep_conv/kernel"].tobytes()
    assert whitening.PATH not in first.weights


def test_it_is_not_trained_on_one_device_or_on_three(make_trainer):
    for devices in (CPUS[:1], CPUS[:3]):
        trainer = make_trainer(WHITENED, devices, maskable=(), weight_decay=0.1, batch=6)
        begun = trainer.drawn(0)
        trainer.load(begun)
        advance(trainer, 0, 2)
        ended = trainer.state(2)

        assert ended.statistics[whitening.PATH].tobytes() == begun.statistics[whitening.PATH].tobytes()
        assert ended.weights["prep_conv/kernel"].tobytes() != begun.weights["prep_conv/kernel"].tobytes()
