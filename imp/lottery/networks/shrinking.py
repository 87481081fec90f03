"""A smaller network: a network without some of its channels."""

from typing import Any

import keras
import numpy as np

from lottery.base.errors import InputError, first_line
from lottery.networks.topology import functional, passed
from lottery.pruning.channels import Channels
from lottery.pruning.slices import Slices, axes, sliced, staying


def slices(network: keras.Model, channels: Channels, kept: np.ndarray) -> Slices:
    """What stays of each variable of `network` where only the channels `kept` (bool [count]) do. Raises InputError where a
    layer is called on channels of which not the same are kept."""
    result = {path: {axis: staying(numbers, kept) for axis, numbers in each.items()} for path, each in axes(channels).items()}
    for path, nodes in passed(network).items():
        first, *others = (staying(channels.by_node[node], kept) for node in nodes)
        if not all(np.array_equal(first, other) for other in others):
            raise InputError(f"{path} is shared by channels that do not go together: keep them all")
        result[path] = {-1: first}
    return result


def all_axes(network: keras.Model, channels: Channels) -> dict[str, dict[int, np.ndarray]]:
    """`axes`, and those of the variables in layers without a node. Raises InputError where such a layer is called on channels
    that do not go together."""
    found = axes(channels)
    for path, nodes in passed(network).items():
        first, *others = (channels.by_node[node] for node in nodes)
        if not all(np.array_equal(first, other) for other in others):
            raise InputError(f"{path} is shared by channels that do not go together: keep them all")
        found[path] = {-1: first}
    return found


def shrunk(network: keras.Model, channels: Channels, kept: np.ndarray) -> keras.Model:
    """A new network that is the built, functional or sequential `network` with only the `channels` that are `kept` (bool
    [count], at least one of each kernel's, see `with_one_each`), and with its values. Variables have the paths of `network`, in
    its order. It computes the same where all that made the others is 0. Raises InputError where a layer cannot be made anew."""
    parts = slices(network, channels, kept)
    values = sliced({variable.path: np.asarray(variable) for variable in network.variables}, parts)
    try:
        clone = _Smaller(channels, kept).network(network)
        for variable, large in zip(clone.variables, network.variables, strict=True):
            variable._path = large.path  # in which Keras counts generators of random numbers over the whole process
            variable.assign(values[large.path])
    except (NotImplementedError, TypeError, ValueError) as error:
        raise InputError(f"{network.name} cannot be built with fewer channels: {first_line(error)}") from error
    return clone


class _Smaller:
    """Makes layers and networks with only the channels that are `kept`, each once however often it is called."""

    def __init__(self, channels: Channels, kept: np.ndarray):
        self._channels, self._kept = channels, kept
        self._layers: dict[int, keras.Operation] = {}
        self._networks: dict[int, keras.Model] = {}

    def network(self, network: keras.Model, inputs: Any = None) -> keras.Model:
        """`network` on tensors of the structure of its inputs; without any on inputs of its own."""
        options = {"clone_function": self._layer, "call_function": self._called, "cache": self._layers}
        graph = functional(network)
        named = keras.Model(graph.input, graph.output, name=network.name)  # and not compiled: its loss may have no config
        return keras.models.clone_model(named, inputs, **options)

    def _called(self, layer: keras.Operation, *arguments: Any, **options: Any) -> Any:
        """The outputs of `layer`, or of the smaller network if it is one, on the smaller `arguments`."""
        inner = functional(layer)
        if inner is None:
            return layer(*arguments, **options)
        if id(layer) not in self._networks:
            inputs = keras.tree.map_structure(_input, arguments[0], inner.input)
            self._networks[id(layer)] = self.network(layer, inputs)
        return self._networks[id(layer)](*arguments, **options)

    def _layer(self, layer: keras.Operation) -> keras.Operation:
        """A layer like `layer`, of as many filters as are kept. Networks are made where they are called, by `_called`."""
        if not isinstance(layer, keras.Layer) or functional(layer) is not None:
            return layer
        is_ours = type(layer).__module__.startswith("lottery.")
        if is_ours and type(layer).__name__.endswith("BatchNorm"):  # whose initialiser may have no config
            return type(layer)(layer.momentum, layer.epsilon, "ones", name=layer.name, dtype=layer.dtype_policy)
        config = layer.get_config()
        if isinstance(layer, keras.layers.Reshape) and None not in (sizes := _output(layer).shape[1:-1]):
            config["target_shape"] = (*sizes, -1)  # only the last axis is channels
        for variable in layer.variables:
            if variable.path in self._channels.outputs:
                config |= self._sizes(variable.path, config)
        if is_ours:  # whose configs lack these
            config |= {"name": layer.name, "dtype": layer.dtype_policy}
        return type(layer).from_config(config)

    def _sizes(self, path: str, config: dict[str, Any]) -> dict[str, int]:
        """The settings of a layer with `config` that say how many channels its kernel at `path` has."""
        numbers = self._channels.inputs[path], self._channels.outputs[path]
        inputs, outputs = (int(staying(channel, self._kept).sum()) for channel in numbers)
        if "depth_multiplier" in config and not path.endswith("pointwise_kernel"):
            return {"depth_multiplier": outputs // inputs}
        sizes = {"groups": inputs} if config.get("groups", 1) > 1 and len(numbers[0]) == 1 else {}
        return sizes | {"units" if "units" in config else "filters": outputs}


def _input(tensor: keras.KerasTensor, before: keras.KerasTensor) -> keras.KerasTensor:
    """An input for `tensor` where `before` was one, whose dtype is not always that of what it is given."""
    return keras.Input(batch_shape=tensor.shape, dtype=before.dtype)


def _output(layer: keras.Operation) -> keras.KerasTensor:
    """Of a layer that may be called more than once, in the first call."""
    return layer._inbound_nodes[0].output_tensors[0]
