"""A network as the bytes of a file that others load: Keras's, or TensorFlow Lite's. Each is loaded and tried first."""

import contextlib
import io
import logging
import re
import tempfile
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from data_prep.errors import Failed, InputError
from data_prep.records import Shape
from lottery.engine import models
from lottery.engine.layers import BatchNorm, DepthwiseConv2D, GroupedConv2D, PointwiseConv2D
from lottery.engine.models.fingerprint import fingerprint
from lottery.experiment import recipe
from lottery.rundir import store
from lottery.rundir.identity import is_same

IMAGES = 8  # on which a file's outputs are compared with those of the network it was made of
TOLERANCE = {"keras": 1e-4, "tflite": 1e-3, "tflite_dynamic": 0.5}  # of the largest output

Outcome = tuple[bytes, np.ndarray]
Make = Callable[[keras.Model, np.ndarray], Outcome]


class Exported(NamedTuple):
    """A file; how far its outputs are from those of the network as it was trained, in shares of the largest of them; and the
    classes of a user's own that loading it needs."""

    content: bytes
    difference: float
    needs: list[type]


def make(to: str, model: recipe.Model, shape: Shape, classes: int, state: store.State, trained: str = "") -> Exported:
    """The network of `model` with the weights and statistics of `state` as a file in the format `to`: `keras`, `tflite`, or
    `tflite_dynamic`, TensorFlow Lite with its kernels quantised to 8 bits.

    It computes in float32 from images of float32 [batch, *shape], scaled as in training, to logits [batch, classes]; TensorFlow
    Lite's takes one image at a time. Raises InputError when the format cannot hold the network, or that is not the one of the
    fingerprint `trained`, and Failed when what was read back answers differently.
    """
    with _quietly_on_cpu():
        network = rebuilt(model, shape, classes, state, trained)
        images = np.random.default_rng(0).uniform(-1, 1, (IMAGES, *shape)).astype(np.float32)
        expected = np.asarray(network(images, training=False))
        plain = rebuild(network)
        content, outputs = _FORMATS[to](plain, images)
    difference = float(np.abs(outputs - expected).max() / max(np.abs(expected).max(), np.finfo(np.float32).tiny))
    if not difference <= TOLERANCE[to]:  # nor if it is NaN
        raise Failed(
            f"{model.name}: the outputs of the {to} file are {difference:.1e} of the largest off the network's, more than "
            f"{TOLERANCE[to]:g}: nothing was written, export to npz"
        )
    return Exported(content, difference, not_stock(plain) if to == "keras" else [])


def rebuilt(model: recipe.Model, shape: Shape, classes: int, state: store.State, trained: str = "") -> keras.Model:
    """The network of `model` in float32 with the weights and statistics of `state`. Raises InputError where it is another one
    than was trained: by their variables, and by the fingerprint `trained`, if one is given."""
    with models.policy("float32"):
        network = models.build(model, shape[0], classes, shape[2])
    if trained and not is_same(trained, fingerprint(network, shape)):
        raise InputError(f"{model.name} builds another network now than the one that was trained: build that one again")
    models.assign({variable.path: variable for variable in network.variables}, state.weights | state.statistics)
    return network


def rebuild(network: keras.Model) -> keras.Model:
    """`network` with each layer of ours replaced by Keras's own, for those without this package; it holds the same weights.
    All other layers are shared with `network`. What is neither functional nor Sequential is returned as it is."""
    if not isinstance(network, keras.Sequential | keras.src.models.Functional):
        return network

    def replaced(layer: keras.Operation) -> keras.Operation:
        if isinstance(layer, BatchNorm):
            options = {"momentum": layer.momentum, "epsilon": layer.epsilon}
            return keras.layers.BatchNormalization(**options, name=layer.name, dtype=layer.dtype_policy)
        if isinstance(layer, PointwiseConv2D | GroupedConv2D):
            size, stride, groups = (getattr(layer, name, 1) for name in ("size", "stride", "groups"))
            options = {"groups": groups, "use_bias": False, "name": layer.name, "dtype": layer.dtype_policy}
            return keras.layers.Conv2D(layer.filters, size, stride, "same" if size > 1 else "valid", **options)
        if isinstance(layer, DepthwiseConv2D):
            return keras.layers.DepthwiseConv2D.from_config(layer.get_config())
        return layer

    rebuilt = keras.models.clone_model(network, clone_function=replaced, recursive=True)
    rebuilt.set_weights(network.get_weights())
    return rebuilt


def not_stock(network: keras.Model) -> list[type]:
    """The classes of `network`, its own and its layers', that do not come with Keras, in the order of their names."""
    classes = {type(layer) for layer in network._flatten_layers()}
    return sorted((kind for kind in classes if kind.__module__.split(".")[0] != "keras"), key=lambda kind: kind.__name__)


@contextlib.contextmanager
def _quietly_on_cpu() -> Iterator[None]:
    """Without a GPU, which others may be using, and whose matrix products have fewer digits; and without TensorFlow's advice,
    which is for those who call these functions."""
    with contextlib.suppress(RuntimeError):  # raised where this process has already begun to use it
        tf.config.set_visible_devices([], "GPU")
    logger, before = tf.get_logger(), tf.get_logger().level
    logger.setLevel(logging.ERROR)
    try:
        with tf.device("CPU:0"), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(before)


def _keras(network: keras.Model, images: np.ndarray) -> Outcome:
    own = {kind.__name__: kind for kind in not_stock(network)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.keras"
        try:
            network.save(path)
            path.write_bytes(_timeless(path))
            loaded = keras.models.load_model(path, custom_objects=own, compile=False)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise InputError(
                f"{network.name} cannot be loaded from a .keras file ({_sentence(error)}): mend that, or export to npz"
            ) from error
        return path.read_bytes(), np.asarray(loaded(images, training=False))


def _sentence(error: Exception) -> str:
    """The first sentence of an error that goes on over many lines; of the one that it was raised for, where Keras tells it."""
    return " ".join(str(error).split()).rpartition("Exception encountered: ")[2].split(". ")[0]


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


def _tflite(network: keras.Model, images: np.ndarray, dynamic: bool = False) -> Outcome:
    one = tf.TensorSpec([1, *images.shape[1:]], tf.float32, name="images")
    function = tf.function(lambda images: network(images, training=False), input_signature=[one])
    frozen = convert_variables_to_constants_v2(function.get_concrete_function())
    converter = tf.lite.TFLiteConverter.from_concrete_functions([frozen], tf.Module())
    converter.optimizations = [tf.lite.Optimize.DEFAULT] if dynamic else []
    try:
        content = converter.convert()
    except tf.lite.python.convert_phase.ConverterError as error:
        raise InputError(f"TensorFlow Lite cannot express {network.name} ({_sentence(error)}): export to keras") from error
    plain = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = tf.lite.Interpreter(model_content=content, experimental_op_resolver_type=plain)
    interpreter.allocate_tensors()
    into, out = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    outputs = []
    for image in images:
        interpreter.set_tensor(into, image[np.newaxis])
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(out)[0])
    return content, np.array(outputs)


_FORMATS: dict[str, Make] = {"keras": _keras, "tflite": _tflite, "tflite_dynamic": partial(_tflite, dynamic=True)}
