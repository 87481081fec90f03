"""TensorFlow Lite files, which take one image at a time."""

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from lottery.base.errors import InputError
from lottery.engine.litert_session import PLAIN, Session
from lottery.engine.start import silenced
from lottery.engine.stock import sentence


def write(network: keras.Model, images: np.ndarray, optimization: tf.lite.Optimize | None = None) -> tuple[bytes, np.ndarray]:
    """The file of `network`, with this `optimization` of its kernels, and its outputs for `images`."""
    converter = _converter(network, images.shape[1:])
    converter.optimizations = [optimization] if optimization else []
    content = _converted(converter, network)
    session = Session(content, kernels=PLAIN)
    return content, session.answers(images)


def write_int8(network: keras.Model, images: np.ndarray) -> tuple[bytes, np.ndarray]:
    """The file of `network` that computes in whole numbers alone, and its outputs for `images`. Input, output and activations
    are int8, their ranges those that `images` give; weights are int8 with a scale for each channel (Jacob et al. 2018,
    arXiv 1712.05877). Raises InputError where an operation has no int8 kernel."""
    converter = _converter(network, images.shape[1:])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([image[np.newaxis]] for image in images)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    with silenced():
        content = _converted(converter, network)
    session = Session(content, kernels=PLAIN)
    if operations := sorted(_in_floats(session.interpreter)):
        raise InputError(f"{network.name} has no int8 kernel for {', '.join(operations)}: export it without --int8")
    return content, session.answers(images)


def _converter(network: keras.Model, shape: tuple[int, ...]) -> tf.lite.TFLiteConverter:
    """What converts `network`, for one image of `shape`."""
    image = tf.TensorSpec([1, *shape], tf.float32, name="images")
    function = tf.function(lambda images: network(images, training=False), input_signature=[image])
    frozen = convert_variables_to_constants_v2(function.get_concrete_function())
    return tf.lite.TFLiteConverter.from_concrete_functions([frozen], tf.Module())


def _converted(converter: tf.lite.TFLiteConverter, network: keras.Model) -> bytes:
    try:
        return converter.convert()
    except tf.lite.python.convert_phase.ConverterError as error:
        raise InputError(f"TensorFlow Lite cannot express {network.name} ({sentence(error)}): export to keras") from error


def _in_floats(interpreter: tf.lite.Interpreter) -> set[str]:
    """The operations that compute in floats, which the converter leaves between whole numbers where it has no other kernel."""
    floats = {tensor["index"] for tensor in interpreter.get_tensor_details() if np.issubdtype(tensor["dtype"], np.floating)}
    names = {one["op_name"] for one in interpreter._get_ops_details() if floats & {*one["inputs"], *one["outputs"]}}
    return names - {"QUANTIZE", "DEQUANTIZE"}
