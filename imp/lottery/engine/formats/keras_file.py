"""Keras's own file format, the same bytes for the same network."""

import io
import re
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path

import keras
import numpy as np

from lottery.base.errors import InputError
from lottery.engine.stock import not_stock, sentence


def write(network: keras.Model, images: np.ndarray) -> tuple[bytes, np.ndarray]:
    """The file of `network`, and its outputs for `images`."""
    own = {kind.__name__: kind for kind in not_stock(network)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.keras"
        try:
            network.save(path)
            path.write_bytes(_timeless(path))
            loaded = keras.models.load_model(path, custom_objects=own, compile=False)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise InputError(
                f"{network.name} cannot be loaded from a .keras file ({sentence(error)}): mend that, or export to npz"
            ) from error
        return path.read_bytes(), np.asarray(loaded(images, training=False))


def _timeless(path: Path) -> bytes:
    """A .keras file without what tells one writing of it from another: the hour, and the addresses of shared objects."""
    written = io.BytesIO()
    numbers: defaultdict[bytes, bytes] = defaultdict(lambda: str(len(numbers)).encode())
    with zipfile.ZipFile(path) as given, zipfile.ZipFile(written, "w") as copy:
        for name in given.namelist():
            member = given.read(name)
            if name.endswith(".json"):
                member = re.sub(rb'(?<="date_saved": ")[^"]*', b"1980-01-01@00:00:00", member)
                member = re.sub(rb'(?<="shared_object_id": )\d+', lambda found: numbers[found[0]], member)
            copy.writestr(zipfile.ZipInfo(name), member)
    return written.getvalue()
