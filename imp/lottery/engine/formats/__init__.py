"""A network as the bytes of a file that others load. Each is loaded and tried first."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from lottery.base.errors import Failed, InputError
from lottery.engine import models
from lottery.engine.formats import keras_file, mnn, onnx_file, tflite
from lottery.engine.layers import GroupedConv2D
from lottery.engine.models.fingerprint import fingerprint
from lottery.engine.signature import Signature
from lottery.engine.stock import not_stock, rebuild
from lottery.experiment import recipe
from lottery.networks import compaction
from lottery.rundir import store
from lottery.rundir.identity import is_same

IMAGES = 8  # on which a file's outputs are compared with those of the network it was made of
INT8 = "tflite_int8"
CALIBRATED_ON = 256  # training images


class Format(NamedTuple):
    """A function of a network of Keras's own layers and images, which returns the bytes of a file and what that answers to the
    images once it is read back; how far the answers may be off, in shares of the largest; the layers of ours that stay; and the
    `multiple` of channels that is fastest where it is loaded."""

    write: Callable[[keras.Model, np.ndarray], tuple[bytes, np.ndarray]]
    tolerance: float
    stay: tuple[type, ...] = ()
    multiple: int = 1


FORMATS = {
    "keras": Format(keras_file.write, 1e-4),
    "onnx": Format(onnx_file.write, 1e-5, (GroupedConv2D,), multiple=8),  # Keras's own is compiled by XLA
    "tflite": Format(tflite.write, 1e-3),
    "tflite_sparse": Format(partial(tflite.write, optimization=tf.lite.Optimize.EXPERIMENTAL_SPARSITY), 1e-3),
    INT8: Format(tflite.write_int8, 1.0),  # what it reaches is measured
    "mnn": Format(mnn.write, 1e-3),
    "mnn_dense": Format(partial(mnn.write, sparse=False), 1e-3),
}


class Exported(NamedTuple):
    """A file; how far its outputs are from those of the network as it was trained, in shares of the largest of them; the
    classes of a user's own that loading it needs; and, where the network in it is
    compact, the sizes of that and of the full one."""

    content: bytes
    difference: float
    needs: list[type]
    sizes: tuple[compaction.Size, ...]


def make(
    to: str,
    model: recipe.Model,
    signature: Signature,
    state: store.State,
    trained: str = "",
    images: np.ndarray | None = None,
    compact: bool = False,
) -> Exported:
    """The network of `model` with the weights and statistics of `state` as a file in the format `to`, one of `FORMATS`:
    `tflite_sparse` is TensorFlow Lite without the zeros of its kernels, `tflite_int8` in whole numbers alone; for measurements,
    `mnn_dense` is MNN without sparse kernels.

    It computes in float32 from images of float32 [batch, *shape], scaled as in training, to logits [batch, classes]; those of
    TensorFlow Lite and MNN take one image at a time. A `compact` one lacks the channels that do nothing. Its outputs are
    compared with the network's on `images`, or else on noise; `tflite_int8` takes the ranges of its numbers from them. Raises
    InputError when the format cannot hold the network, or that is not the one of the fingerprint `trained`, and Failed when
    what was read back answers differently."""
    with quietly_on_cpu():
        network = rebuilt(model, signature, state, trained)
        if images is None:
            images = np.random.default_rng(0).uniform(-1, 1, (IMAGES, *signature.shape)).astype(np.float32)
        expected = np.asarray(network(images, training=False))
        stay, multiple = FORMATS[to].stay, FORMATS[to].multiple
        stock = partial(rebuild, stay=stay)
        plain = compaction.compact(network, stock, multiple) if compact else stock(network)
        content, outputs = FORMATS[to].write(plain, images)
    difference = float(np.abs(outputs - expected).max() / max(np.abs(expected).max(), np.finfo(np.float32).tiny))
    if not difference <= FORMATS[to].tolerance:  # nor if it is NaN
        raise Failed(
            f"{model.name}: the outputs of the {to} file are {difference:.1e} of the largest off the network's, more than "
            f"{FORMATS[to].tolerance:g}: nothing was written, export to npz"
        )
    sizes = (compaction.size(plain), compaction.size(network)) if compact else ()
    return Exported(content, difference, not_stock(plain) if to == "keras" else [], sizes)


def rebuilt(model: recipe.Model, signature: Signature, state: store.State, trained: str = "") -> keras.Model:
    """The network of `model` in float32 with the weights and statistics of `state`. Raises InputError where it is another one
    than was trained: by their variables, and by the fingerprint `trained`, if one is given."""
    with models.policy("float32"):
        network = models.build(model, signature)
    if trained and not is_same(trained, fingerprint(network, signature)):
        raise InputError(f"{model.name} builds another network now than the one that was trained: build that one again")
    models.assign({variable.path: variable for variable in network.variables}, state.weights | state.statistics)
    return network


@contextlib.contextmanager
def quietly_on_cpu() -> Iterator[None]:
    """Without a GPU, whose matrix products have fewer digits, and without TensorFlow's advice."""
    with contextlib.suppress(RuntimeError):  # raised where this process has already begun to use it
        tf.config.set_visible_devices([], "GPU")
    logger, before = tf.get_logger(), tf.get_logger().level
    logger.setLevel(logging.ERROR)
    try:
        with tf.device("CPU:0"), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(before)
