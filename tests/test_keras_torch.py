"""`lottery.keras` on PyTorch. A file of its own, so that another process tests it while one tests JAX."""

from keras_backends import run_the_tests, wants

pytestmark = wants("torch")


def test_masks_are_exact_on_pytorch():
    run_the_tests("torch")
