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
TESTS = [f"tests/test_keras{part}.py" for part in ("", "_between_fits", "_growing", "_input", "_page", "_units")]

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
DISTRIBUTE = """
import jax, keras, sys
from keras_networks import GRADUAL, fit, is_exact, network, same
from lottery.keras import RigL, masks, prune, resume

def trained(schedule):
    model = prune(network("adamw"), 0.8, schedule=schedule)
    fit(model, 2)
    return model

for schedule in (GRADUAL, RigL(end=12, every=3)):
    keras.distribution.set_distribution(None)
    alone = trained(schedule)
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    model = trained(schedule)
    assert len(model.optimizer._masks[1].value.devices()) == len(jax.devices()) == 2
    assert is_exact(model)
    assert all((bits == masks(alone)[path]).all() for path, bits in masks(model).items())
    model.save(sys.argv[1])
    fit(model, 2, 2)
    other = resume(keras.models.load_model(sys.argv[1]))
    fit(other, 2, 2)
    assert same(model, other)
"""


def on(backend, *arguments, **variables):
    """What Python prints with this backend."""
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    environment |= variables
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


@pytest.mark.parametrize("backend", OTHERS[:1])
def test_devices_of_jax_keep_the_same_zeros(backend, tmp_path):
    on(backend, "-c", DISTRIBUTE, str(tmp_path / "model.keras"), XLA_FLAGS="--xla_force_host_platform_device_count=2")
