"""ONNX files by Keras's exporter, which take any number of images at a time; the same bytes for the same network."""

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from lottery.base import extras
from lottery.base.errors import InputError
from lottery.engine.stock import sentence


def write(network: keras.Model, images: np.ndarray) -> tuple[bytes, np.ndarray]:
    """The file of `network`, and what ONNX Runtime answers to `images`: float32 [batch, height, width, channels] called
    `images` in, [batch, classes] called `logits` out. Raises InputError where ONNX cannot express it, or is not installed."""
    extras.check("--to onnx", "onnx", "onnxruntime", "tf2onnx")
    import onnx
    import onnxruntime

    network(images[:1])  # a network that was never called is not exported
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        with _quietly():
            network.export(path, format="onnx", verbose=False)
        content = _renamed(onnx.load(path)).SerializeToString(deterministic=True)
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # of a class that only a private module has
        raise InputError(f"ONNX cannot express {network.name} ({sentence(error)}): export to keras") from error
    return content, session.run(None, {"images": images})[0]


def _renamed(model: Any) -> Any:
    """`model` with names that follow from its graph alone; the exporter's have numbers that differ from call to call."""
    graph = model.graph
    names = {graph.input[0].name: "images", graph.output[0].name: "logits", "": ""}
    for node in graph.node:
        for place in (node.input, node.output):
            place[:] = [names.setdefault(name, f"tensor_{len(names)}") for name in place]
    for number, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{number}"
    for one in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        one.name = names[one.name]
    for one in (graph.initializer, graph.value_info):
        one.sort(key=lambda value: value.name)
    for one in (*graph.input, *graph.output):
        one.type.tensor_type.shape.dim[0].dim_param = "batch"
    graph.name, graph.doc_string = "network", ""
    return model


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without what the exporter logs and prints: what it could not express, ONNX Runtime says when it loads the file."""
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)
