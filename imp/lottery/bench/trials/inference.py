"""An exported network at work, in the process that is its own: rows of `imp bench inference`."""

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lottery.bench import measure
from lottery.engine import formats
from lottery.results import lookup
from lottery.run import open_run

WARM_UP = 10


def make_file(run: str, ticket: str, replicate: int, to: str, path: str) -> None:
    """Write the network `ticket` of a run to `path`, in a format of `formats`."""
    opened = open_run(Path(run), must_exist=True)
    manifest = opened.manifest()
    _, state = lookup.trained(opened, opened.replicate(replicate), ticket)
    made = formats.make(to, opened.recipe.model, manifest.shape, len(manifest.classes), state)
    Path(path).write_bytes(made.content)


def measure_file(path: str, threads: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Microseconds an image, one at a time, of each run of so many `seconds` (`us`), and by how many bytes the process grew at
    most for it (`peak_bytes`)."""
    with measure.peak_memory() as peak:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is to move to a package of its own
            interpreter = tf.lite.Interpreter(model_path=path, num_threads=threads)
        interpreter.allocate_tensors()
        given = interpreter.get_input_details()[0]
        image = np.random.default_rng(0).uniform(-1, 1, given["shape"]).astype(np.float32)

        def invoke(count: int) -> float:
            began = time.perf_counter()
            for _ in range(count):
                interpreter.set_tensor(given["index"], image)
                interpreter.invoke()
            return time.perf_counter() - began

        invoke(WARM_UP)
        count = max(1, round(seconds * WARM_UP / invoke(WARM_UP)))
        return {"us": [1e6 * invoke(count) / count for _ in range(repeats)], "peak_bytes": peak()}
