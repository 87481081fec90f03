"""`lottery.keras` on the backends of Keras other than TensorFlow: a process has one, so each gets processes of its own."""

import importlib.util
import itertools
import os
import subprocess
import sys

import pytest
from helpers import ROOT

OTHERS = [
    pytest.param(name, marks=pytest.mark.skipif(not importlib.util.find_spec(name), reason=f"{name} is not installed"))
    for name in ("jax", "torch")
]
TESTS = [f"tests/test_keras{part}.py" for part in ("", "_between_fits", "_units")]

SAVE = """
import sys
from keras_networks import GRADUAL, fit, kept, network
from lottery.keras import prune
assert (sys.argv[2] == "tensorflow") == ("tensorflow" in sys.modules)
model = prune(network("adamw"), 0.8, schedule=GRADUAL)
fit(model)
model.save(sys.argv[1])
print(kept(model))
"""
LOAD = """
import sys, keras
from keras_networks import fit, is_exact, kept, left
from lottery.keras import resume
model = resume(keras.models.load_model(sys.argv[1]))
print(kept(model))
fit(model, 4, 1)
assert is_exact(model)
assert sum(kept(model).values()) == left("0.8")
"""


def on(backend, *arguments):
    """What Python prints with this backend."""
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), environment.get("PYTHONPATH", "")])
    ended = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    return ended.stdout.splitlines()[-1:]


@pytest.mark.parametrize("backend", OTHERS)
def test_masks_are_exact_on_every_backend(backend):
    on(backend, "-m", "pytest", "-q", "-n", "0", *TESTS)


@pytest.mark.parametrize("backend", OTHERS)
def test_a_file_goes_on_under_another_backend_with_its_masks(backend, tmp_path):
    for saver, loader in itertools.permutations(("tensorflow", backend)):
        file = str(tmp_path / f"{saver}.keras")
        assert on(saver, "-c", SAVE, file, saver) == on(loader, "-c", LOAD, file)
