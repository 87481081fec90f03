"""The examples of docs/keras.md, one after another, on each backend."""

import re

import keras
import pytest
from helpers import ROOT
from keras_networks import RNG

from lottery.keras import masks

pytestmark = [pytest.mark.usefixtures("any_backend"), pytest.mark.filterwarnings("ignore:fit ended before the schedule")]


def small_base(shape, pooling, **settings):
    """In the place of a MobileNetV2 without its head: two kernels."""
    images = keras.Input(shape)
    features = keras.layers.DepthwiseConv2D(3, use_bias=False)(keras.layers.Conv2D(4, 3, 2)(images))
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(keras.layers.BatchNormalization()(features)))


MOBILENET = pytest.param(keras.applications.MobileNetV2, 54, marks=pytest.mark.smoke)


@pytest.mark.parametrize(("base", "variables"), [(small_base, 4), MOBILENET])
def test_the_page_runs_as_it_stands(base, variables, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keras.applications, "MobileNetV2", base)
    keras.utils.set_random_seed(0)
    images, labels = RNG.integers(0, 256, (128, 28, 28)), RNG.integers(0, 10, 128)
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: ((images, labels), None))
    page, space = (ROOT / "docs/keras.md").read_text(), {}

    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block.replace("128", "2").replace("range(1, 6)", "range(1, 3)"), space)

    assert {one.name for one in tmp_path.iterdir()} == {"pruned.keras", "halfway.keras", "small.keras"}
    assert len(masks(space["model"])) == 1
    assert len(masks(space["tuned"])) == variables
