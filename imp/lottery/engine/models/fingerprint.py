"""What tells a network from another one that has variables of the same names and shapes."""

import hashlib
import json
from collections import Counter
from typing import Any

import keras
import tensorflow as tf

from lottery.engine.signature import Signature

# What says in which dtype a network is computed, by whom it was built, or what it draws, but not what it computes.
_LEFT_OUT = {"dtype", "build_config", "build_input_shape", "registered_name", "seed"}
_AS_KERAS = {"DepthwiseConv2D"}  # layers of ours with the names of Keras's, whose results are the same


def fingerprint(network: keras.Model, signature: Signature) -> str:
    """The version of Keras, which another may describe the same network otherwise than, and a sha256 of the layers of `network`
    with this signature, their settings and connections. Neither the dtype policy, nor seeds, nor automatic names count.

    Of a network that Keras cannot describe (subclassed, or with such a layer or a lambda) it is of the shapes of the variables
    and of how often each operation of TensorFlow, and each number written in it, occurs in a call."""
    described = _described(network) or _counted(network, signature)
    return f"keras-{keras.__version__} {hashlib.sha256(described.encode()).hexdigest()}"


def _described(network: keras.Model) -> str | None:
    try:
        config = network.get_config()
        text = json.dumps(_plain(config, {}), sort_keys=True)
    except (NotImplementedError, TypeError, ValueError):  # of a layer of the user's own
        return None
    return text if "layers" in config and '"__lambda__"' not in text else None


def _plain(config: Any, names: dict[str, str]) -> Any:
    """`config` without what is left out, each name in it the number of its first appearance."""
    match config:
        case dict():
            if isinstance(config.get("name"), str):
                names.setdefault(config["name"], f"#{len(names)}")
            if config.get("class_name") in _AS_KERAS:
                config = {**config, "module": "keras.layers"}
            return {str(key): _plain(value, names) for key, value in config.items() if key not in _LEFT_OUT}
        case list() | tuple():
            return [_plain(value, names) for value in config]
        case str():
            return names.get(config, config)
    return config


def _counted(network: keras.Model, signature: Signature) -> str:
    @tf.function
    def called(inputs: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("called"):  # within which a name may begin with an underscore
            return network(inputs)

    graph = called.get_concrete_function(tf.TensorSpec((None, *signature.shape), signature.dtype)).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    counts = Counter(_operation(node) for node in nodes if node.op != "Cast")
    return json.dumps([[list(variable.shape) for variable in network.variables], counts], sort_keys=True)


def _operation(node: Any) -> str:
    """What a node does; of a number with a fraction, the number, as precisely as all dtypes have it."""
    if node.op == "Const":
        value = tf.make_ndarray(node.attr["value"].tensor)
        if value.ndim == 0 and tf.as_dtype(value.dtype).is_floating:
            return f"Const {float(tf.cast(value, tf.bfloat16))}"
    return str(node.op)
