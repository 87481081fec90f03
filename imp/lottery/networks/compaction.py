"""Compaction: a trained network without the channels that do nothing, which answers the same.

A channel goes where no kernel that reads it needs it. A kernel does not need an input of which all weights are 0 that lead to
channels that stay, nor one that is 0 for every image. One that is the same for every image at all positions goes into the
kernel's bias; where the kernel reads padding beside it, that is not exact, and the channel stays. Which are the same for every
image follows from the weights that are not 0, as in `connectivity`; what they are, from computing them once."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from lottery.base.errors import InputError
from lottery.networks.shrinking import shrunk
from lottery.networks.topology import functional, is_known, run, topology
from lottery.pruning import costs
from lottery.pruning.channels import Channels, channels
from lottery.pruning.connectivity import Topology, forward, joined, met_and_kept
from lottery.pruning.masks import Bits
from lottery.pruning.slices import in_multiples, with_one_each
from lottery.pruning.state import Arrays

Readings = dict[str, list[np.ndarray]]  # by the path of a kernel, of each of its uses: float64 [inputs], NaN where it varies


class Size(NamedTuple):
    """How many channels of a network may go, its parameters, and its MACs for one image (None where that is not known)."""

    channels: int
    parameters: int
    macs: int | None


class Remains(NamedTuple):
    """Which of the `channels` of a network are `needed` (bool [count + 1], the last for what stays), and what the others add to
    the outputs of kernels: `offsets`, float64 [outputs] by path."""

    channels: Channels
    needed: np.ndarray
    offsets: Arrays


class _Reader(NamedTuple):
    """A kernel that reads channels: the numbers of its `inputs` and `outputs`, its `weights` [places, inputs, outputs], and by
    input the `constant` that may go into its bias, NaN where there is none: float64 [inputs]."""

    inputs: np.ndarray
    outputs: np.ndarray
    weights: np.ndarray
    constant: np.ndarray


def compact(network: keras.Model, stock: Callable[[keras.Model], keras.Model], multiple: int = 1) -> keras.Model:
    """A new network without the channels of `network` that do nothing. `stock` makes the same network of layers that may have a
    bias. Layers that keep so many keep a `multiple` of channels. Raises InputError where `network` cannot be followed."""
    found, needed, offsets = remains(network)
    kept = np.append(in_multiples(found, with_one_each(found, needed[:-1]), multiple), True)
    small = shrunk(network, found, kept[:-1])
    for variable in small.variables:  # what is only kept to make up a number is not read
        node = found.nodes.get(variable.path)
        if node and node.groups == 1:
            numbers, values = found.inputs[variable.path][:, 0], np.array(variable)
            rows = values.swapaxes(-1, -2) if node.transposed else values
            rows[..., ~needed[numbers[kept[numbers]]], :] = 0
            variable.assign(values)
    offsets = {path: offset[kept[found.outputs[path][0]]] for path, offset in offsets.items()}
    return _with_offsets(stock(small), offsets)


def size(network: keras.Model) -> Size:
    """The size of a network that can be followed."""
    found = _channels(network)
    return Size(found.count, network.count_params(), costs.macs({}, found.topology))


def remains(network: keras.Model) -> Remains:
    """What is left of `network`. Raises InputError where it is no built functional or Sequential one."""
    found, weights = _channels(network), {variable.path: np.asarray(variable) for variable in network.variables}
    readings, zeros = _observed(network, found)
    alive = _alive(found.topology, {path: array != 0 for path, array in weights.items()}, zeros)
    readers = _readers(found, weights, readings, alive)
    needed, offsets = _needed(found, list(readers.values())), Arrays()
    for path, reader in readers.items():
        constant = np.where(needed[reader.inputs], 0, np.nan_to_num(reader.constant))
        offset = constant @ reader.weights.sum(axis=0, dtype=np.float64)
        offsets |= {path: offset} if offset[needed[reader.outputs]].any() else {}
    return Remains(found, needed, offsets)


def _channels(network: keras.Model) -> Channels:
    plan, variables = topology(network), {variable.path: variable for variable in network.variables}
    if plan is None:
        raise InputError(f"{network.name} is not a built functional or Sequential model: its channels cannot be followed")
    if not all(keras.backend.is_float_dtype(variables[path].dtype) for path in plan.kernels):
        raise InputError(f"{network.name} is quantised: compact it before that")
    return channels(plan, {path: tuple(variable.shape) for path, variable in variables.items()})


def _observed(network: keras.Model, found: Channels) -> tuple[Readings, Iterator[list[np.ndarray]]]:
    """The constants that each kernel reads, and for each product in turn and each of its factors, which channels are 0. All for
    an input of zeros: they are only meant of what no input reaches. Nothing where the sizes of inputs are not known."""
    readings: Readings = defaultdict(list)
    zeros: list[list[np.ndarray]] = []

    def call(operation: Any, *arguments: Any, **options: Any) -> Any:
        tensors = [each for each in keras.tree.flatten((arguments, options)) if keras.ops.is_tensor(each)]
        for variable in getattr(operation, "variables", ()):
            if variable.path in found.inputs:
                readings[variable.path].append(_read(operation, variable, tensors[0]))
        if type(operation).__name__ == "Multiply" and is_known(operation) and len(tensors) > 1:
            zeros.append([_constant(each) == 0 for each in tensors])
        return operation(*arguments, **options)

    inputs = functional(network).inputs
    if all(size is not None for each in inputs for size in each.shape[1:]):
        with keras.device("cpu:0"):  # as the products of GPUs may have fewer digits
            run(call, network, [keras.ops.zeros((each.shape[0] or 1, *each.shape[1:]), each.dtype) for each in inputs])
    return readings, iter(zeros)


def _read(layer: keras.Layer, kernel: keras.Variable, tensor: Any) -> np.ndarray:
    """The constants that a `kernel` of `layer`, which is called with `tensor`, may take into its bias."""
    name, window = type(layer).__name__, kernel.shape[:-2]
    if kernel.path.endswith("pointwise_kernel"):  # which reads what the layer's other one makes
        geometry = {"strides": layer.strides, "padding": layer.padding, "dilation_rate": layer.dilation_rate}
        return _constant(keras.ops.depthwise_conv(tensor, layer.depthwise_kernel, **geometry))
    constant = _constant(tensor)
    is_padded = "Transpose" in name or (getattr(layer, "padding", "valid") != "valid" and max(window, default=1) > 1)
    return np.where(constant != 0, np.nan, constant) if is_padded else constant


def _constant(tensor: Any) -> np.ndarray:
    """The value of each channel of `tensor` [1, ..., channels]; NaN where positions differ by more than rounding."""
    values = np.asarray(keras.ops.convert_to_numpy(tensor), np.float64).reshape(-1, tensor.shape[-1])
    rounding = 1e-14 if keras.backend.standardize_dtype(tensor.dtype) == "float64" else 1e-6
    is_constant = (np.abs(values - values[0]) <= rounding * np.abs(values[0])).all(axis=0)
    return np.where(is_constant, values[0], np.nan)


def _alive(plan: Topology, mask: Bits, zeros: Iterator[list[np.ndarray]]) -> Arrays:
    """Which channels of each node depend on the input, bool [width] by name. A product does not where a factor is 0."""
    pairs, alive = joined(met_and_kept(plan, mask)), Arrays()
    for node in plan.nodes:
        factors = [alive[name] for name in node.inputs]
        if node.kind == "multiply":
            reached = forward(dataclasses.replace(node, kind="add"), factors, mask, pairs)
            for living, zero in zip(factors, next(zeros, ()), strict=False):
                reached = reached & (living | ~zero) if zero.size == node.width else reached
        else:
            reached = forward(node, factors, mask, pairs)
        alive[node.name] = reached
    return alive


def _readers(found: Channels, weights: Arrays, readings: Readings, alive: Arrays) -> dict[str, _Reader]:
    """The kernels that read channels, by path, as the network goes through them."""
    readers: dict[str, _Reader] = {}
    for node in found.topology.nodes:
        if node.kind == "linear" and node.groups == 1:
            ((path, _),) = node.kernels.items()
            inputs, outputs = found.inputs[path][:, 0], found.outputs[path][0]
            constant = np.where(alive[node.inputs[0]], np.nan, readings[path].pop(0) if readings else np.nan)
            if path in readers:  # in a layer that is called more than once
                constant = np.where(constant == readers[path].constant, constant, np.nan)
            arranged = node.arranged(weights[path], inputs.size)[:, :, 0]
            readers[path] = _Reader(inputs, outputs, arranged, constant)
    return readers


def _needed(found: Channels, readers: Sequence[_Reader]) -> np.ndarray:
    """Which channels the answers need: bool [count + 1], the last for what stays."""
    needed = np.append(np.zeros(found.count, bool), True)
    pairs = [(reader, (reader.weights != 0).any(axis=0) & np.isnan(reader.constant)[:, None]) for reader in reversed(readers)]
    before = 0
    while before < (before := needed.sum()):
        for reader, joins in pairs:
            needed[reader.inputs[joins[:, needed[reader.outputs]].any(axis=1)]] = True
    return needed


def _with_offsets(network: keras.Model, offsets: Arrays) -> keras.Model:
    """`network` with `offsets` added to the biases of layers, by the paths of their kernels. It shares its other layers."""
    changed: list[tuple[keras.Layer, keras.Layer, np.ndarray]] = []

    def remade(layer: keras.Operation) -> keras.Operation:
        for variable in getattr(layer, "variables", ()):
            if variable.path in offsets:
                biased = type(layer).from_config(layer.get_config() | {"use_bias": True})
                changed.append((layer, biased, offsets[variable.path]))
                return biased
        return layer

    clone = keras.models.clone_model(network, clone_function=remade, recursive=True) if offsets else network
    for layer, biased, offset in changed:
        for variable in biased.variables:
            value = getattr(layer, variable.name)
            variable.assign(value if variable.name != "bias" else offset if value is None else value + offset)
    return clone
