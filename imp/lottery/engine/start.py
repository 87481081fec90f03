"""Start TensorFlow quietly, and silence what is written in C++."""

import contextlib
import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator


def start_tensorflow() -> None:
    """Import TensorFlow and let it find its devices without the banner that no setting of its own turns off. What it says goes
    to standard error after all when the import fails. Called before an engine module is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as banner:
        os.dup2(banner.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()
        except BaseException:
            banner.seek(0)
            os.write(shown, banner.read())
            raise
        finally:
            os.dup2(shown, 2)
            os.close(shown)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Without what libraries written in C++ say of themselves."""
    shown = os.dup(1), os.dup(2)
    with open(os.devnull, "w") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        for number, own in enumerate(shown, 1):
            os.dup2(own, number)
            os.close(own)
