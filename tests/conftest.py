import os

import pytest
from helpers import ROOT, imp

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


@pytest.fixture(scope="session")
def tensorflow():
    """TensorFlow with two logical CPU devices and everything deterministic, as the engine sets it up."""
    from lottery.loop import set_up_tensorflow
    from lottery.recipe import Train

    set_up_tensorflow(Train(devices=2))
    import tensorflow

    return tensorflow


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """A folder in which one command ran the smoke recipe, and how that ended."""
    folder = tmp_path_factory.mktemp("smoke")
    return folder, imp("run", str(ROOT / "pipelines/smoke.toml"), cwd=folder)
