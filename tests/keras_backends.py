"""`lottery.keras` on another backend of Keras than this process has: each gets processes of its own."""

import importlib.util
import os
import subprocess
import sys

import pytest
from helpers import ROOT

TESTS = [f"tests/test_keras{part}.py" for part in ("", "_between_fits", "_growing", "_page", "_units")]
# Tests in them of which units are to stay, and which cannot be: no backend has a part in that.
ALIKE = "test_the_most_units_stay or test_units_that_do_not_fit"


def wants(backend):
    return pytest.mark.skipif(not importlib.util.find_spec(backend), reason=f"{backend} is not installed")


def on(backend, *arguments, **variables):
    """What Python prints with this backend."""
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    environment |= variables
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), environment.get("PYTHONPATH", "")])
    ended = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    return ended.stdout.splitlines()[-1:]


def run_the_tests(backend):
    on(backend, "-m", "pytest", "-q", "-n", "0", "-k", f"not ({ALIKE})", *TESTS)
