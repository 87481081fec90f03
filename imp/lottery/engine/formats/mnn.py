"""MNN's files, which take one image at a time. MNN skips the zeros of a 1x1 convolution where there are enough of them."""

import re
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import keras
import numpy as np

from lottery.base import extras
from lottery.base.errors import InputError
from lottery.engine import mnn_session
from lottery.engine.formats import tflite

_IDENTIFIER = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def write(network: keras.Model, images: np.ndarray, sparse: bool = True) -> tuple[bytes, np.ndarray]:
    """The file of `network`, with sparse kernels where `sparse` and more than 60 % of a kernel are zeros, and its outputs for
    `images`. Raises InputError where MNN is not installed or cannot express the network."""
    extras.check("an .mnn file", "MNN")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / mnn_session.TFLITE).write_bytes(tflite.write(network, images)[0])
        np.save(folder / mnn_session.IMAGES, images)
        program = [sys.executable, "-P", mnn_session.__file__, name, *(["--detectSparseSpeedUp"] if sparse else [])]
        done = subprocess.run(program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            said = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), f"code {done.returncode}")
            raise InputError(f"MNN cannot express {network.name} ({said.strip()}): export to tflite")
        return _named_by_content((folder / mnn_session.MNN_FILE).read_bytes()), np.load(folder / mnn_session.OUTPUTS)


def _named_by_content(content: bytes) -> bytes:
    """A file with an identifier that follows from the rest, in place of the random one that each conversion gives it."""
    blank = _IDENTIFIER.sub(str(uuid.UUID(int=0)).encode(), content, count=1)
    return _IDENTIFIER.sub(str(uuid.uuid5(uuid.NAMESPACE_OID, blank.hex())).encode(), content, count=1)
