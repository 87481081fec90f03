"""TensorFlow Lite files, which take one image at a time."""

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from lottery.base.errors import InputError
from lottery.engine.formats.stock import sentence


def write(network: keras.Model, images: np.ndarray, optimization: tf.lite.Optimize | None = None) -> tuple[bytes, np.ndarray]:
    """The file of `network`, with this `optimization` of its kernels, and its outputs for `images`."""
    one = tf.TensorSpec([1, *images.shape[1:]], tf.float32, name="images")
    function = tf.function(lambda images: network(images, training=False), input_signature=[one])
    frozen = convert_variables_to_constants_v2(function.get_concrete_function())
    converter = tf.lite.TFLiteConverter.from_concrete_functions([frozen], tf.Module())
    converter.optimizations = [optimization] if optimization else []
    try:
        content = converter.convert()
    except tf.lite.python.convert_phase.ConverterError as error:
        raise InputError(f"TensorFlow Lite cannot express {network.name} ({sentence(error)}): export to keras") from error
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
