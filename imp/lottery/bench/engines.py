"""The engines that `imp bench inference` compares: each loads an exported file and answers to one image at a time."""

import importlib.metadata
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lottery.bench import timing
from lottery.engine import mnn_session
from lottery.engine.start import silenced

Function = Callable[[np.ndarray], np.ndarray]


class Loaded(NamedTuple):
    """A file in an engine: `answer` gives the logits (float32, [classes]) of what `prepare`, which takes no time that counts,
    has made of an image (float32, [height, width, channels])."""

    answer: Function
    prepare: Function = np.asarray


class Engine(NamedTuple):
    """What loads files of a `format` of `formats.FORMATS`. `flags` say how its `package` is used. `load` gets a file
    and how many threads to use."""

    name: str
    package: str
    format: str
    flags: str
    load: Callable[[Path, int], Loaded]
    tensorflow: bool = False  # whether it runs on it
    exact: bool = True  # whether its weights are those that were trained

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.package)


def keras_function(path: Path, threads: int) -> Loaded:
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

    return Loaded(lambda image: outputs(image[np.newaxis]).numpy()[0])


def litert(path: Path, threads: int) -> Loaded:
    from lottery.engine.litert_session import Session

    session = Session(path, threads)
    return Loaded(session.run, session.quantised)


def onnx_session(path: Path, threads: int) -> Loaded:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return Loaded(lambda image: session.run(None, {name: image[np.newaxis]})[0][0])


def mnn(path: Path, threads: int) -> Loaded:
    return Loaded(mnn_session.load(path, threads))


ENGINES = (
    Engine("Keras", "keras", "keras", "tf.function", keras_function, tensorflow=True),
    Engine("LiteRT", "tensorflow", "tflite", "XNNPACK", litert, tensorflow=True),
    Engine("LiteRT, int8", "tensorflow", "tflite_int8", "XNNPACK", litert, tensorflow=True, exact=False),
    Engine("ONNX Runtime", "onnxruntime", "onnx", "all optimisations", onnx_session),
    Engine("MNN", "MNN", "mnn", "precision high, sparse", mnn),
    Engine("MNN, sparse off", "MNN", "mnn_dense", "precision high", mnn),
)

_loaded: dict[str, tuple[Function, np.ndarray]] = {}  # in the process that measures, by title: an engine, and an image for it


def load(title: str, engine: Engine, path: Path, threads: int, images: Path) -> tuple[np.ndarray, int]:
    """Load a file for `latency`. Returns what it answers to `images`, an .npy file: float32 [n, classes]; and by how many bytes
    this process grew at most."""
    given = np.load(images, mmap_mode="r")
    with silenced():
        importlib.import_module(engine.package)  # which is no part of what a file takes
    with timing.peak_memory() as peak, silenced():
        answer, prepare = engine.load(path, threads)
        first = prepare(np.array(given[0]))
        answer(first)
        grown = peak()
        _loaded[title] = answer, first
        return np.stack([answer(prepare(np.array(image))) for image in given]), grown


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


def compared(logits: np.ndarray, labels: np.ndarray, expected: np.ndarray | None) -> dict[str, float | None]:
    """The `accuracy` of `logits` (float32, [n, classes]) for images with `labels` ([n]); and beside those `expected`, if any:
    `agreement`, the share with the same answer, and `off`, the largest difference as a share of the largest logit."""
    answers = logits.argmax(axis=1)
    accuracy = float(np.mean(answers == labels))
    if expected is None:
        return {"accuracy": accuracy, "agreement": None, "off": None}
    off = np.abs(logits - expected).max() / max(np.abs(expected).max(), np.finfo(np.float32).tiny)
    return {"accuracy": accuracy, "agreement": float(np.mean(answers == expected.argmax(axis=1))), "off": float(off)}
