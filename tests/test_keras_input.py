"""What is wrong with a model or an argument of `lottery.keras` is said in one line."""

from functools import partial

import keras
import numpy as np
import pytest
from keras_networks import GRADUAL, fit, network

from lottery.base.errors import InputError
from lottery.keras import Cubic, compact, prune, rewind, strip

pytestmark = pytest.mark.usefixtures("any_backend")


def unbuilt():
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    return model


def uncompiled():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])


def twins():
    images, layer = keras.Input((3,)), partial(keras.layers.Dense, 3, name="same")
    inside = keras.Model(images, layer()(images), name="inside")
    model = keras.Model(images, layer()(inside(images)))
    model.compile("sgd", "mse")
    return model


def halfway(tmp_path):
    prune(network(), 0.8, schedule=GRADUAL).save(tmp_path / "halfway.keras")
    return keras.models.load_model(tmp_path / "halfway.keras")


WRONG = {
    "unbuilt": (lambda _: prune(unbuilt(), 0.5), "has no weights yet"),
    "uncompiled": (lambda _: prune(uncompiled(), 0.5), "call model.compile"),
    "per cent": (lambda _: prune(network(), 90), "write 0.9"),
    "no number": (lambda _: prune(network(), "much"), "not a number"),
    "no sparsity": (lambda _: prune(network()), "sparsity"),
    "all": (lambda _: prune(network(), 1.0), "leaves nothing"),
    "criterion": (lambda _: prune(network(), 0.5, criterion="magnitud"), "known are magnitude"),
    "allocation": (lambda _: prune(network(), 0.5, allocation="even"), "known are global"),
    "scope": (lambda _: prune(network(), 0.5, scope="kernel"), "known are kernels"),
    "nothing": (lambda _: prune(network(), 0.5, exclude=["*kernel"]), "nothing to prune"),
    "pattern": (lambda _: prune(network(), 0.5, exclude=["*kernels"]), "matches no variable"),
    "twins": (lambda _: prune(twins(), 0.5), "two variables named same/kernel"),
    "schedule": (lambda _: prune(network(), 0.5, schedule=Cubic(end=50)), "every"),
    "start": (lambda _: prune(network(), 0.5, schedule=Cubic(end=100, start=0.6)), "lower start"),
    "unreachable": (lambda _: prune(network(), 0.8, schedule=Cubic(end=100), densities={"dense/*": 0.5}), "cannot be reached"),
    "no images": (lambda _: prune(network(), 0.5, criterion="snip"), "images=(x, y)"),
    "scores": (lambda _: prune(network(), 0.5, criterion=lambda state, mask, probe: {}), "finite score"),
    "again": (lambda _: prune(prune(network(), 0.5), 0.5), "already"),
    "running": (lambda _: prune(prune(network(), 0.5, schedule=GRADUAL), 0.9), "still change"),
    "masks and schedule": (lambda _: prune(network(), masks={}, schedule=GRADUAL), "leave schedule out"),
    "masks": (lambda _: prune(network(), masks={"dense/kernel": np.ones((3, 3), bool)}), "dense/kernel"),
    "dense": (lambda _: strip(network()), "has no masks"),
    "compact twins": (lambda _: compact(twins()), "two variables named same/kernel"),
    "unfollowed": (lambda _: compact(unbuilt()), "is not a built functional or Sequential model"),
    "rewind": (lambda _: rewind(prune(network(), 0.5), {}), "conv/kernel"),
    "rewind early": (lambda _: rewind(prune(network(), 0.8, schedule=GRADUAL), {}), "still change"),
    "no file": (lambda folder: rewind(prune(network(), 0.5), folder / "x.weights.h5"), "cannot be loaded"),
    "not resumed": (lambda folder: fit(halfway(folder)), "lottery.keras.resume(model)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_line(case, tmp_path):
    wrong, words = WRONG[case]

    with pytest.raises(InputError) as error:
        wrong(tmp_path)

    assert words in str(error.value)
    assert "\n" not in str(error.value)
