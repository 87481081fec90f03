"""`lottery.keras` on JAX."""

from keras_backends import on, run_the_tests, wants

pytestmark = wants("jax")

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


def test_masks_are_exact_on_jax():
    run_the_tests("jax")


def test_devices_of_jax_keep_the_same_zeros(tmp_path):
    on("jax", "-c", DISTRIBUTE, str(tmp_path / "model.keras"), XLA_FLAGS="--xla_force_host_platform_device_count=2")
