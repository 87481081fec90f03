"""The topology of a Keras network, along which `connectivity` follows what a mask leaves. Operations are known by the names of
their classes, if Keras or this project made them: a subclass may do anything, and counts as one that mixes all channels."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import keras

from lottery.networks.positions import Positions, convolved, everywhere, followed
from lottery.pruning import masks
from lottery.pruning.connectivity import Kind, Met, Node, Topology

_LINEAR = {
    *("Dense", "PointwiseConv2D", "GroupedConv2D"),
    *(f"{kind}Conv{rank}D" for kind in ("", "Depthwise", "Separable") for rank in (1, 2, 3)),
    *(f"Conv{rank}DTranspose" for rank in (1, 2, 3)),
}
_SCALES = {"BatchNorm", "SynchronisedBatchNorm", "BatchNormalization", "LayerScale"}
_MERGES: dict[str, Kind] = {
    **dict.fromkeys(("Add", "Subtract", "Average", "Maximum", "Minimum", "CustomScaleLayer"), "add"),
    "Multiply": "multiply",
}
_LOOKUPS = {"TokenEmbedding"}  # their kernels are looked up, not multiplied: no MACs
_RESHAPES = {"Flatten", "Reshape", "ExpandDims", "Squeeze"}
_CHANNELWISE = {
    *("PReLU", "Dropout", "GaussianDropout", "GaussianNoise", "AlphaDropout", "ActivityRegularization", "Identity"),
    *("FirstTokens", "Rescaling", "Normalization", "RepeatVector", "Divide", "TrueDivide", "Negative", "Absolute", "Square"),
    *(f"{kind}{rank}D" for kind in ("SpatialDropout", "ZeroPadding", "Cropping", "UpSampling") for rank in (1, 2, 3)),
    *(
        f"{part}{kind}Pooling{rank}D"
        for part, kind, rank in itertools.product(("", "Global", "Adaptive"), ("Average", "Max"), (1, 2, 3))
    ),
}
# Names of activations, functions or classes, without underscores and capitals.
_PLUS = ("softplus", "sparseplus", "squareplus")
_NOT_ZERO_AT_ZERO = {*("sigmoid", "hardsigmoid", "sparsesigmoid", "logsigmoid", "exponential", "exp"), *_PLUS}
ACTIVATIONS = _NOT_ZERO_AT_ZERO | {
    *("linear", "relu", "relu6", "leakyrelu", "elu", "selu", "celu", "gelu", "silu", "swish", "hardsilu", "hardswish", "mish"),
    *("tanh", "hardtanh", "tanhshrink", "hardshrink", "softshrink", "softsign", "threshold"),
}


class _Source(NamedTuple):
    """Where a tensor comes from: the name of its node, its positions that can depend on the input (None where its sizes are not
    known), and whether it differs from zero even where no input reaches it."""

    name: str
    positions: Positions | None
    constant: bool = False


def topology(network: keras.Model) -> Topology | None:
    """The topology of a built functional or sequential `network`, channels last, the networks within it included. None when its
    graph cannot be read, as that of a subclassed model."""
    graph = functional(network)
    if graph is None:
        return None
    reader = _Reader()
    outputs = reader.start(graph)
    return Topology(tuple(reader.nodes), tuple(dict.fromkeys(output.name for output in outputs)))


def passed(network: keras.Model) -> dict[str, list[str]]:
    """By the path of each variable with a last axis of channels in layers that have no node (PReLU, BatchNorm without gamma),
    the nodes that these channels are of. For a network that `topology` can read."""
    reader = _Reader()
    reader.start(functional(network))
    return reader.passed


def functional(operation: Any) -> Any:
    """The graph of operations that `operation` is or, as a Sequential does, holds; None where a call does anything else."""
    plain = getattr(type(operation), "call", None) in (keras.src.models.Functional.call, keras.Sequential.call)
    return getattr(operation, "_functional", operation) if plain else None


def run(call: Callable[..., Any], operation: Any, *arguments: Any, **options: Any) -> Any:
    """What `call` makes of an operation or, if it is a graph, of each operation in it, in the order of `topology`."""
    graph = functional(operation)
    if graph is None:
        return call(operation, *arguments, **options)
    return graph._run_through_graph(arguments[0], lambda inner: partial(run, call, inner))


def last_activation(network: keras.Model) -> str:
    """The plain name of the operation that gives the outputs of `network`, or of the activation of the layer that does
    (`linear`, `softmax`); empty where the graph cannot be read."""
    graph = functional(network)
    if graph is None:
        return ""
    last = graph.outputs[0]._keras_history.operation
    return last_activation(last) if functional(last) else plain_name(getattr(last, "activation", last))


class _Reader:
    """Gathers the nodes of a graph in the order of computation."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.passed: dict[str, list[str]] = {}
        self._names: Counter[str] = Counter()

    def node(self, name: str, kind: Kind, width: int, inputs: tuple[str, ...] = (), **options: Any) -> str:
        """Add a node, and return its name: `name`, numbered from its second use on."""
        self._names[name] += 1
        name = name if self._names[name] == 1 else f"{name}:{self._names[name]}"
        self.nodes.append(Node(name, kind, width, inputs, **options))
        return name

    def start(self, graph: Any) -> list[_Source]:
        """Read the whole `graph`, and return its outputs' sources."""
        inputs = [_Source(self.node(tensor.name, "input", _width(tensor)), everywhere(tensor)) for tensor in graph.inputs]
        return self.read(graph, inputs, "")

    def read(self, network: Any, inputs: list[_Source], prefix: str) -> list[_Source]:
        """Add the nodes of `network` on `inputs`, their names begun with `prefix`, and return its outputs' sources."""
        sources = {id(tensor): source for tensor, source in zip(network.inputs, inputs, strict=True)}
        for depth in sorted(network._nodes_by_depth, reverse=True):
            for call in network._nodes_by_depth[depth]:
                if not call.is_input:
                    outputs = self._call(call, [sources[id(tensor)] for tensor in call.input_tensors], prefix)
                    sources |= {id(tensor): source for tensor, source in zip(call.output_tensors, outputs, strict=True)}
        return [sources[id(tensor)] for tensor in network.outputs]

    def _call(self, call: Any, inputs: list[_Source], prefix: str) -> list[_Source]:
        """The sources of the outputs of one call of an operation."""
        operation, name = call.operation, prefix + call.operation.name
        inner = functional(operation)
        if inner is not None and len(inner.inputs) == len(inputs):
            return self.read(inner, inputs, f"{name}/")
        kind, names, (output, *others) = _kind(call), tuple(source.name for source in inputs), call.output_tensors
        if kind == "linear":
            return [self._linear(call, name, inputs[0])]
        if kind == "mix":
            mixed, kernels = _carriers(call, names), _kernels(operation)
            used = _uses(operation, call.input_tensors, output)
            for count in dict.fromkeys(used.values()) or [None]:
                alike = {path: shape for path, shape in kernels.items() if used[path] == count}
                mixed = (self.node(name, "mix", _width(output), mixed, kernels=alike, positions=count),)
            parts = [(self.node(name, "mix", _width(tensor), mixed), tensor) for tensor in others]
            return [_Source(node, everywhere(tensor)) for node, tensor in [(*mixed, output), *parts]]
        constant = _constant(operation, kind, [source.constant for source in inputs])
        reshaped = kind == "reshape"
        positions = everywhere(output) if reshaped else followed(operation, [source.positions for source in inputs], output)
        if kind == "pass":
            for variable in getattr(operation, "variables", []):
                if tuple(variable.shape[-1:]) == (_width(output),) and keras.backend.is_float_dtype(variable.dtype):
                    self.passed.setdefault(variable.path, []).append(names[0])
            return [_Source(names[0], positions, constant)]
        gamma = operation.gamma.path if kind == "scale" else ""
        gates = tuple(place for place, source in enumerate(inputs) if source.constant and kind == "multiply")
        return [_Source(self.node(name, kind, _width(output), names, gamma=gamma, gates=gates), positions, constant)]

    def _linear(self, call: Any, name: str, source: _Source) -> _Source:
        """The node of a kernel (a separable convolution has two), and of an activation over all channels behind it."""
        operation, output, width = call.operation, call.output_tensors[0], _width(call.input_tensors[0])
        node, positions = source.name, source.positions
        transposed = "Transpose" in type(operation).__name__
        for path, shape in _kernels(operation).items():
            depthwise = type(operation).__name__.startswith("Depthwise") or path.endswith("depthwise_kernel")
            groups = width if depthwise else getattr(operation, "groups", 1)
            width = width * shape[-1] if depthwise else shape[-2 if transposed else -1]
            met: Met = ()
            if len(shape) > 2 and not path.endswith("pointwise_kernel"):
                met, positions = convolved(operation, shape[:-2], positions, output)
            used = _count(call.input_tensors[0] if transposed else output)
            options = {"groups": groups, "transposed": transposed, "met": met, "positions": used}
            node = self.node(name, "linear", width, (node,), kernels={path: shape}, **options)
        activation = plain_name(getattr(operation, "activation", keras.activations.linear))
        if activation not in ACTIVATIONS:
            node, positions = self.node(f"{name}/{activation}", "mix", width, (node,)), everywhere(output)
        return _Source(node, positions, activation in _NOT_ZERO_AT_ZERO)


def _kind(call: Any) -> Kind | Literal["pass"]:
    """What a call of an operation does to channels; `pass` treats each on its own."""
    operation, name = call.operation, type(call.operation).__name__
    known = is_known(operation)
    before, after = ([_width(tensor) for tensor in tensors] for tensors in (call.input_tensors, call.output_tensors))
    if not known or len(after) > 1 or getattr(operation, "data_format", None) == "channels_first":
        return "mix"
    if name in _LINEAR and _kernels(operation) and not ("Transpose" in name and getattr(operation, "groups", 1) > 1):
        return "linear"
    last = getattr(operation, "axis", -1) in (-1, len(call.output_tensors[0].shape) - 1)
    if name == "Concatenate" and sum(before) == after[0] * (1 if last else len(before)):
        return "concatenate" if last else "add"
    if name in _MERGES and len(before) > 1:
        return _MERGES[name]
    if name in _RESHAPES and len(before) == 1:
        return "reshape"
    if name in _SCALES and last and operation.gamma is not None:
        return "scale"
    channelwise = name in _CHANNELWISE | _SCALES | set(_MERGES) or plain_name(operation) in ACTIVATIONS
    return "pass" if channelwise and before == after else "mix"


def _carriers(call: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Of the nodes `names` that a call reads, those whose values it passes on. Where it also reads floats, integers only say
    which of these count, as tokens do in attention."""
    floating = [keras.backend.is_float_dtype(tensor.dtype) for tensor in call.input_tensors]
    return tuple(itertools.compress(names, floating)) if any(floating) else names


def _constant(operation: Any, kind: str, inputs: list[bool]) -> bool:
    """Whether the output differs from zero where no input reaches, given that of the `inputs`. A sum of one tensor has a number
    as its other term."""
    if kind in ("scale", "concatenate"):
        return False
    if kind == "multiply":
        return all(inputs)
    number = _MERGES.get(type(operation).__name__) == "add" and len(inputs) == 1
    return any(inputs) or number or plain_name(operation) in _NOT_ZERO_AT_ZERO


def plain_name(function: Any) -> str:
    """The plain name of an activation or operation; of a layer that is nothing but an activation, that of the activation."""
    function = function.activation if isinstance(function, keras.layers.Activation) else function
    return getattr(function, "__name__", type(function).__name__).replace("_", "").lower()


def _kernels(operation: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of the kernels of an operation, by path; in layers of the user's own those of all matrices."""
    variables, own = getattr(operation, "variables", []), own_matrices(operation)
    shapes = {variable.path: tuple(variable.shape) for variable in variables}
    return {path: shape for path, shape in shapes.items() if path in own or masks.in_scope(path, shape, "kernels")}


def own_matrices(operation: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of what may be multiplied in layers of the user's own (none, unless `operation` is a layer or has some), by
    path: trained variables of two axes or more, whatever their names."""
    owned = [variable for layer in _layers(operation) if not is_known(layer) for variable in layer._trainable_variables]
    return {variable.path: tuple(variable.shape) for variable in owned if len(variable.shape) > 1}


def _layers(operation: Any) -> list[Any]:
    """The layer that `operation` is, and those within; none of another operation."""
    return operation._flatten_layers() if isinstance(operation, keras.Layer) else []


def is_known(operation: Any) -> bool:
    """Whether it is Keras's or this project's, and not of a subclass, which may do anything."""
    return type(operation).__module__.startswith(("keras.", "lottery."))


def _uses(operation: Any, inputs: list[Any], output: Any) -> dict[str, int | None]:
    """How often each weight is multiplied for one image, by the path of the kernels of an operation on the tensors `inputs`.
    None where that is not known, as in recurrent layers and those of the user's own."""
    name, kernels, (first, *others) = type(operation).__name__, _kernels(operation), inputs
    used: int | None = None
    if not all(map(is_known, _layers(operation))):
        return dict.fromkeys(kernels)
    if name in ("MultiHeadAttention", "GroupedQueryAttention"):  # of queries, values and perhaps keys
        read = {path: others[0] if path.split("/")[-2] in ("key", "value") else first for path in kernels}
        return {path: _count(tensor) for path, tensor in read.items()}
    if inner := functional(operation):
        within = topology(inner)
        return {path: within.positions.get(path) if within else None for path in kernels}
    if name in _LOOKUPS:
        used = 0
    elif name in _LINEAR:
        used = _count(first if "Transpose" in name else output, getattr(operation, "data_format", None) == "channels_first")
    return dict.fromkeys(kernels, used)


def _count(tensor: keras.KerasTensor, is_channels_first: bool = False) -> int | None:
    """The number of positions of `tensor` [batch, ..., channels]; None where one of its sizes is not known."""
    sizes = tensor.shape[2:] if is_channels_first else tensor.shape[1:-1]
    return None if None in sizes else math.prod(sizes)


def _width(tensor: keras.KerasTensor) -> int:
    """Channels or features: the size of the last axis, or 1 where that is unknown or the batch's."""
    return tensor.shape[-1] or 1 if len(tensor.shape) > 1 else 1
