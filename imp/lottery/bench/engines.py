"""The engines that `imp bench inference` compares: each loads an exported file and answers to one image at a time."""

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lottery.bench import timing
from lottery.engine import mnn_session

IMAGES = 8  # of noise, on which the engines' outputs are compared

Answer = Callable[[np.ndarray], np.ndarray]  # of a float32 image [height, width, channels] float32 logits [classes]


class Engine(NamedTuple):
    """What loads files of a `format` of `formats.FORMATS`. Its `package` comes with the `extra` of ours; `flags` say how it is
    used. `load` gets a file and how many threads to use."""

    name: str
    package: str
    extra: str
    format: str
    flags: str
    load: Callable[[Path, int], Answer]
    tensorflow: bool = False  # whether it runs on it
    exact: bool = True  # whether its weights are those that were trained

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.package)


def keras_function(path: Path, threads: int) -> Answer:
    import keras
    import tensorflow as tf

    from lottery.engine import devices
    from lottery.experiment.recipe import Train

    devices.set_up_tensorflow(Train(threads=threads, devices=1), cores=1)
    with tf.device("CPU:0"):
        network = keras.models.load_model(path, compile=False)

    @tf.function(input_signature=[tf.TensorSpec([1, *network.input_shape[1:]], tf.float32)])
    def outputs(images: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:0"):
            return network(images, training=False)

    return lambda image: outputs(image[np.newaxis]).numpy()[0]


def litert(path: Path, threads: int) -> Answer:
    import warnings

    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is to move to a package of its own
        interpreter = tf.lite.Interpreter(model_path=str(path), num_threads=threads)
    interpreter.allocate_tensors()
    into, out = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]

    def answer(image: np.ndarray) -> np.ndarray:
        interpreter.set_tensor(into, image[np.newaxis])
        interpreter.invoke()
        return interpreter.get_tensor(out)[0]

    return answer


def onnx_session(path: Path, threads: int) -> Answer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda image: session.run(None, {name: image[np.newaxis]})[0][0]


ENGINES = (
    Engine("Keras", "keras", "", "keras", "tf.function", keras_function, tensorflow=True),
    Engine("LiteRT", "tensorflow", "", "tflite", "XNNPACK", litert, tensorflow=True),
    Engine(
        "LiteRT, 8 bits", "tensorflow", "", "tflite_dynamic", "XNNPACK, 8-bit kernels", litert, tensorflow=True, exact=False
    ),
    Engine("ONNX Runtime", "onnxruntime", "onnx", "onnx", "all optimisations", onnx_session),
    Engine("MNN", "MNN", "mnn", "mnn", "precision high, sparse", mnn_session.load),
    Engine("MNN, sparse off", "MNN", "mnn", "mnn_dense", "precision high", mnn_session.load),
)

_loaded: dict[str, tuple[Answer, np.ndarray]] = {}  # in the process that measures, by title: an engine, and an image for it


def load(title: str, engine: Engine, path: Path, threads: int, shape: Sequence[int]) -> tuple[np.ndarray, int]:
    """Load a file for `latency`. Returns what it answers to images of noise, float32 [IMAGES, classes], and by how many bytes
    this process grew at most."""
    images = np.random.default_rng(0).uniform(-1, 1, (IMAGES, *shape)).astype(np.float32)
    with _silence():
        importlib.import_module(engine.package)  # which is no part of what a file takes
    with timing.peak_memory() as peak, _silence():
        answer = engine.load(path, threads)
        outputs = np.stack([answer(image) for image in images])
        _loaded[title] = answer, images[0]
        return outputs, peak()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Without what engines written in C++ say of themselves."""
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


def latency(title: str, seconds: float) -> float:
    """The seconds of the fastest of the calls, three or more, that take so many seconds. Others would say how often another
    program has interrupted them, which happens to long calls more often than to short ones."""
    answer, image = _loaded[title]
    walls: list[float] = []
    end = time.perf_counter() + seconds
    while len(walls) < 3 or time.perf_counter() < end:
        begun = time.perf_counter()
        answer(image)
        walls.append(time.perf_counter() - begun)
    return min(walls)


def difference(outputs: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference between two arrays, as a share of the largest number expected."""
    return float(np.abs(outputs - expected).max() / max(np.abs(expected).max(), np.finfo(np.float32).tiny))
