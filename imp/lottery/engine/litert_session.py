"""LiteRT: a session that answers to images by the network in a TensorFlow Lite file, in float32 or int8."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lottery.engine.start import silenced

PLAIN = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES  # LiteRT's own kernels, and not XNNPACK's


class Session:
    """The network in a .tflite `file`, or its content, computed by so many threads and `kernels`, by default XNNPACK's."""

    def __init__(self, file: Path | bytes, threads: int = 1, kernels: tf.lite.experimental.OpResolverType | None = None):
        options: dict[str, Any] = {"model_content": file} if isinstance(file, bytes) else {"model_path": str(file)}
        options |= {"experimental_op_resolver_type": kernels} if kernels else {}
        with silenced(), warnings.catch_warnings(action="ignore"):  # it is to move to a package of its own
            self.interpreter = tf.lite.Interpreter(num_threads=threads, **options)
            self.interpreter.allocate_tensors()
        (self._input,), (self._output,) = self.interpreter.get_input_details(), self.interpreter.get_output_details()

    def quantised(self, image: np.ndarray) -> np.ndarray:
        """An image (float32, [height, width, channels]) as the numbers that the file takes: the same, or int8."""
        if self._input["dtype"] != np.int8:
            return image
        scale, zero = self._input["quantization"]
        return np.clip(np.round(image / np.float32(scale)) + zero, -128, 127).astype(np.int8)

    def run(self, quantised: np.ndarray) -> np.ndarray:
        """The logits (float32, [classes]) of an image that is `quantised`."""
        self.interpreter.set_tensor(self._input["index"], quantised[np.newaxis])
        self.interpreter.invoke()
        outputs = self.interpreter.get_tensor(self._output["index"])[0]
        if self._output["dtype"] != np.int8:
            return outputs
        scale, zero = self._output["quantization"]
        return (outputs.astype(np.float32) - zero) * np.float32(scale)

    def answers(self, images: np.ndarray) -> np.ndarray:
        """The logits (float32, [n, classes]) of `images` (float32, [n, height, width, channels]), one after another."""
        return np.stack([self.run(self.quantised(image)) for image in images])
