"""Files of `lottery.keras` that one backend of Keras has written, and another goes on with."""

import itertools

import pytest
from keras_backends import on, wants

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


@pytest.mark.parametrize("backend", [pytest.param(name, marks=wants(name)) for name in ("jax", "torch")])
def test_a_file_goes_on_under_another_backend_with_its_masks(backend, tmp_path):
    for saver, loader in itertools.permutations(("tensorflow", backend)):
        file = str(tmp_path / f"{saver}.keras")
        assert on(saver, "-c", SAVE, file, saver) == on(loader, "-c", LOAD, file)
